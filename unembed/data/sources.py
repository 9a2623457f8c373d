"""Where text comes from: files, folders and Hugging Face datasets, read as one deterministic mixture.

Every source is a stream of records that is never held in memory. Sources are interleaved by weight: the next record
comes from the source with the smallest taken / weight, so any first N records are already the mixture. How many
records were taken from each source is all that is needed to go on later.
"""

from __future__ import annotations

import gzip
import hashlib
import heapq
import io
import itertools
import json
import lzma
import math
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from unembed.errors import DataError, MissingExtraError

PACKED = (".xz", ".gz", ".zst")
KINDS = (".txt", ".jsonl", ".parquet")
# A longer line is read in pieces: a file without line breaks must not fill the memory.
LONGEST_LINE = 1 << 20
# Sources that are open at the same time.
MOST_OPEN = 256
PAPER_LANGUAGES = ("en", "zh", "de", "fr", "ja", "es", "ru", "ko", "ar", "pt")


@dataclass(frozen=True, slots=True)
class Source:
    """A named stream of records; `read(start)` yields their texts from record number `start` on."""

    name: str
    weight: float
    identity: str
    """What a resumed run compares: a different file or dataset is another source."""
    read: Callable[[int], Iterator[str]]


def find_sources(
    specs: Sequence[str | Path],
    *,
    text_column: str = "text",
    weights: Mapping[str, float] | None = None,
    exclude: Collection[str] = (),
) -> list[Source]:
    """Turn files, folders and `hf:` specs into sources; `weights` and `exclude` go by source name."""
    weights = weights or {}
    files = [file for spec in specs if not _is_hub(spec) for file in _files(Path(spec))]
    found = _file_sources(list(dict.fromkeys(files)), text_column)
    usual = sum(source.weight for source in found) / len(found) if found else 1.0
    for spec in specs:
        if _is_hub(spec):
            found += _hub_sources(str(spec), text_column, usual)
    known = {alias for source in found for alias in _aliases(source)}
    for name in (*exclude, *weights):
        if name not in known:
            raise DataError(f"there is no source {name!r}; known: {', '.join(sorted(known)) or 'none'}")
    found = [source for source in found if not _aliases(source) & set(exclude)]
    if not found:
        raise DataError("no source is left: give files, folders or hf:<dataset>, and exclude less")
    return [replace(source, weight=_weight(source, weights)) for source in found]


def mix(sources: Sequence[Source], taken: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield (number of the source, text) by weight, from where `taken` records of each source were read."""
    streams = [source.read(start) for source, start in zip(sources, taken, strict=True)]
    queue = [(count / source.weight, index) for index, (source, count) in enumerate(zip(sources, taken, strict=True))]
    counts = list(taken)
    heapq.heapify(queue)
    while queue:
        index = queue[0][1]
        text = next(streams[index], None)
        if text is None:
            heapq.heappop(queue)
            continue
        counts[index] += 1
        heapq.heapreplace(queue, (counts[index] / sources[index].weight, index))
        yield index, text


def file_kind(path: Path) -> tuple[str, str]:
    """(.txt | .jsonl | .parquet, packing or ""); ("", "") for other files."""
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    packed = suffixes.pop() if suffixes and suffixes[-1] in PACKED else ""
    kind = suffixes[-1] if suffixes else ""
    return (kind, packed) if kind in KINDS and not (kind == ".parquet" and packed) else ("", "")


def bare_name(path: Path) -> str:
    """File name without its suffixes: `news.txt.xz` is `news`."""
    kind, packed = file_kind(path)
    return path.name[: -len(kind + packed)] if kind else path.name


@contextmanager
def open_lines(path: Path) -> Iterator[IO[str]]:
    """Open a text file, packed or not; a broken one is an error that names it."""
    packed = file_kind(path)[1]
    try:
        with _unpack(path, packed) as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="\n") as lines:
            yield lines
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error.reason}): convert it first") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error, pa.ArrowException) as error:
        raise DataError(f"{path} cannot be read, it may be cut off or damaged ({error}): restore the file") from None


def _unpack(path: Path, packed: str) -> Any:
    """Open a file for reading bytes."""
    if packed == ".xz":
        return lzma.open(path, "rb")
    if packed == ".gz":
        return gzip.open(path, "rb")
    if packed == ".zst":
        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"), 1 << 16)
    return path.open("rb")


def parquet_batches(path: Path, columns: list[str], start: int, rows: int = 1024) -> Iterator[pa.RecordBatch]:
    """Read some columns of a Parquet file from row `start` on, `rows` at a time."""
    try:
        # With a buffer, pages are read as they are needed, not a whole column chunk at once.
        file = pq.ParquetFile(path, buffer_size=1 << 20)
        for column in columns:
            if column not in file.schema_arrow.names:
                raise DataError(f"{path} has no column {column!r}; it has: {', '.join(file.schema_arrow.names)}")
        first = 0
        while first < file.num_row_groups and start >= file.metadata.row_group(first).num_rows:
            start -= file.metadata.row_group(first).num_rows
            first += 1
        groups = list(range(first, file.num_row_groups))
        for batch in file.iter_batches(rows, groups, columns=columns) if groups else ():
            if start < batch.num_rows:
                yield batch.slice(start)
            start = max(0, start - batch.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}): restore the file") from None


def json_record(line: str, path: Path, row: int) -> dict[str, Any]:
    """One line of a JSON lines file."""
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path} row {row}: not JSON ({error})") from None
    if not isinstance(record, dict):
        raise DataError(f"{path} row {row}: not a JSON object")
    return record


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        inside = sorted(file for file in path.rglob("*") if file.is_file() and file_kind(file)[0])
        if not inside:
            raise DataError(f"{path} holds no .txt, .jsonl or .parquet files (packed as {', '.join(PACKED)} or not)")
        return inside
    if not path.exists():
        raise DataError(f"{path} does not exist: give a file, a folder or hf:<dataset>")
    if not file_kind(path)[0]:
        raise DataError(f"{path} is not .txt, .jsonl (also .xz, .gz, .zst) or .parquet")
    return [path]


def _file_sources(files: list[Path], column: str) -> list[Source]:
    """One source per file; with very many files, one per folder, because all sources are open at the same time."""
    if len(files) > MOST_OPEN:
        folders: dict[Path, list[Path]] = {}
        for file in files:
            folders.setdefault(file.absolute().parent, []).append(file)
        if len(folders) > MOST_OPEN:
            raise DataError(f"{len(files)} files in {len(folders)} folders are too many to mix: join some of them")
        return [_source(folder.name, inside, column) for folder, inside in folders.items()]
    names = Counter(bare_name(file) for file in files)
    return [
        # Where two files have one name (de/mixed.txt, fr/mixed.txt), their folder comes before it.
        _source(f"{file.absolute().parent.name}/" * (names[bare_name(file)] > 1) + bare_name(file), [file], column)
        for file in files
    ]


def _source(name: str, files: list[Path], column: str) -> Source:
    sizes = [file.stat().st_size for file in files]
    identity = ", ".join(f"{file.name} {size}" for file, size in zip(files, sizes, strict=True))
    if len(files) > 1:
        identity = hashlib.sha256(identity.encode()).hexdigest()

    def read(start: int) -> Iterator[str]:
        if len(files) == 1:
            return _read_file(files[0], column, start)
        every = itertools.chain.from_iterable(_read_file(file, column, 0) for file in files)
        return itertools.islice(every, start, None)

    # Big sources must not drown small ones, nor be cut down to their size: the square root is the middle.
    return Source(name, math.sqrt(max(sum(sizes), 1)), identity, read)


def _aliases(source: Source) -> set[str]:
    return {source.name, source.name.rsplit("/", 1)[-1]}


def _weight(source: Source, weights: Mapping[str, float]) -> float:
    weight = weights.get(source.name, weights.get(source.name.rsplit("/", 1)[-1], source.weight))
    if not (weight > 0 and math.isfinite(weight)):
        raise DataError(f"the weight of {source.name} is {weight}: it must be above 0 (to leave it out, exclude it)")
    return weight


def _read_file(path: Path, column: str, start: int) -> Iterator[str]:
    kind = file_kind(path)[0]
    if kind == ".txt":
        return _read_text(path, start)
    return _read_json(path, column, start) if kind == ".jsonl" else _read_parquet(path, column, start)


def _read_text(path: Path, start: int) -> Iterator[str]:
    with open_lines(path) as lines:
        yield from itertools.islice(iter(lambda: lines.readline(LONGEST_LINE), ""), start, None)


def _read_json(path: Path, column: str, start: int) -> Iterator[str]:
    with open_lines(path) as lines:
        for row, line in itertools.islice(enumerate(lines, 1), start, None):
            if line.strip():
                yield _text(json_record(line, path, row), column, path, row)
            else:
                yield ""


def _read_parquet(path: Path, column: str, start: int) -> Iterator[str]:
    row = start
    for batch in parquet_batches(path, [column], start):
        for text in batch.column(0).to_pylist():
            row += 1
            yield _text({column: text}, column, path, row)


def _text(record: Mapping[str, Any], column: str, path: str | Path, row: int) -> str:
    """The text of a record; null is an empty text, anything else that is not text an error."""
    if column not in record:
        raise DataError(f"{path} row {row}: no {column!r}; it has: {', '.join(record)}")
    text = record[column]
    if text is not None and not isinstance(text, str):
        raise DataError(f"{path} row {row}: {column!r} is not text but {type(text).__name__}")
    return valid_unicode(text or "")


def valid_unicode(text: str) -> str:
    """JSON can hold half of a surrogate pair, which is no character: it becomes the replacement character."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _is_hub(spec: str | Path) -> bool:
    return isinstance(spec, str) and spec.startswith("hf:")


def _hub_sources(spec: str, text_column: str, weight: float) -> list[Source]:
    """`hf:<dataset>?config=..&split=..&text=..&revision=..`, and `&languages=en,zh,..` for the parts of mC4."""
    parts = urlsplit(spec)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = ("config", "split", "text", "revision", "languages")
    for key in options:
        if key not in known:
            raise DataError(f"{spec}: unknown option {key!r}; known: {', '.join(known)}")
    name, dataset = parts.path.rsplit("/", 1)[-1], parts.path
    config = options.get("config", "en" if dataset == "allenai/c4" else None)
    if "languages" not in options:
        label = f"{name}-{config}" if config else name
        return [_hub_source(label, weight, spec, dataset, config, None, options, text_column)]
    if dataset != "allenai/c4":
        raise DataError(f"{spec}: languages= is for hf:allenai/c4 only; elsewhere choose one with config=")
    languages = options["languages"].split(",") if options["languages"] != "paper" else list(PAPER_LANGUAGES)
    return [
        # By file, because not every language of mC4 is a config of that dataset. Validation files are named otherwise.
        _hub_source(
            f"{name}-{language}", weight, f"{spec}#{language}", dataset, None,
            f"multilingual/c4-{language}.tfrecord-*.json.gz", options, text_column,
        )
        for language in languages
    ]  # fmt: skip


def _hub_source(
    name: str,
    weight: float,
    identity: str,
    dataset: str,
    config: str | None,
    files: str | None,
    options: Mapping[str, str],
    text_column: str,
) -> Source:
    column, split = options.get("text", text_column), options.get("split", "train")

    def read(start: int) -> Iterator[str]:
        try:
            import datasets
        except ImportError:
            raise MissingExtraError("datasets", "hf", f"reading {identity}") from None
        try:
            rows = datasets.load_dataset(
                dataset, config, data_files={split: files} if files else None, split=split, streaming=True,
                revision=options.get("revision"),
            ).skip(start)  # fmt: skip
            for row, record in enumerate(rows, start + 1):
                yield _text(record, column, identity, row)
        except (OSError, ValueError) as error:
            raise DataError(f"{identity} cannot be read: {' '.join(str(error).split())}") from None

    return Source(name, weight, identity, read)
