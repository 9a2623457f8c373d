"""Own (text, vector) pairs as a dataset folder: for encoders that cannot be run here, or vectors that exist already.

The vectors are taken as they are. Since a vector belongs to its whole text, a text longer than a window is left out
and not cut. Rows are counted from 1, as the lines of a file are.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from tokenizers import Tokenizer

from unembed.data import shards as disk
from unembed.data.sources import bare_name, file_kind, json_record, open_lines, parquet_batches, valid_unicode
from unembed.data.text import decode
from unembed.data.tokens import TokenWriter
from unembed.data.vectors import made_of
from unembed.data.windows import special_ids, text_hash
from unembed.errors import DataError

Pair = tuple[int, Any, Any]
"""Row number, text, vector; as found, not checked yet."""

BATCH = 1024
# Vectors within this of length 1 are called normalised.
UNIT_TOLERANCE = 1e-3


def write_pairs(
    sources: Sequence[str | Path],
    folder: str | Path,
    tokenizer: Tokenizer | str | Path,
    encoder: str,
    *,
    text_column: str = "text",
    vector_column: str = "vector",
    dim: int | None = None,
    max_tokens: int = 32,
    limit: int | None = None,
    shard_size: int = 16384,
    skip_bad: bool = False,
) -> Iterator[disk.Progress]:
    """Write `folder/tokens/` and `folder/<encoder>/` from files of pairs; the work is done while iterating.

    Args:
        sources: `.parquet` or `.jsonl` with a text and a vector column, or a text file with its `.npy` beside it.
        folder: the dataset folder; if it was begun from the same files, the work goes on there.
        tokenizer: the inverter's tokenizer, or its file.
        encoder: spec or name of what made the vectors.
        text_column: name of the column of texts.
        vector_column: name of the column of vectors.
        dim: the dimension that vectors must have; the default is that of the first.
        max_tokens: longer texts are left out.
        limit: stop after so many rows.
        shard_size: rows of a shard.
        skip_bad: leave bad rows out and count them, instead of stopping at the first.
    """
    folder, paths = Path(folder), [Path(source) for source in sources]
    if max_tokens < 1 or shard_size < 1 or (limit is not None and limit < 1) or not paths:
        raise DataError(
            f"impossible settings: {len(paths)} files, max_tokens {max_tokens}, shard_size {shard_size}, limit {limit}"
        )
    for path in paths:
        if not path.is_file():
            raise DataError(f"{path} is not a file: give .parquet, .jsonl, or .txt with its .npy beside it")
    tokenizer = disk.load_tokenizer(tokenizer)
    settings = {
        "pairs": [[path.name, path.stat().st_size] for path in paths],
        "columns": [text_column, vector_column],
        "dim": dim,
        "encoder": encoder,
        "max_tokens": max_tokens,
        "limit": limit,
        "shard_size": shard_size,
    }
    writer = TokenWriter(folder, tokenizer, max_tokens, settings)
    left_out = Counter(writer.manifest.counts["left_out"])
    cursor = writer.manifest.cursor or {"file": 0, "row": 0}
    output = _Output(folder, encoder, writer, dim)
    for number in range(cursor["file"], len(paths)):
        check = _Checker(paths[number], tokenizer, max_tokens, output, left_out, skip_bad)
        pairs = _read(paths[number], text_column, vector_column, cursor["row"] if number == cursor["file"] else 0)
        while not writer.manifest.complete and (batch := list(itertools.islice(pairs, BATCH))):
            for row, tokens, hash_, vector in check.good_rows(batch):
                output.add(tokens, bare_name(paths[number]), hash_, vector)
                if writer.full:
                    output.write({"file": number, "row": row}, left_out)
                    if writer.manifest.complete:
                        break
            yield writer.progress(left_out)
    if not writer.manifest.complete:
        output.write({"file": len(paths), "row": 0}, left_out, last=True)
    yield writer.progress(left_out)


class _Output:
    """The two folders, written shard by shard; the manifest of the tokens, written last, decides what is there."""

    def __init__(self, folder: Path, encoder: str, writer: TokenWriter, dim: int | None) -> None:
        self.writer, self.encoder, self.dim = writer, encoder, dim
        self.place = disk.vectors_folder(folder, encoder)
        self.normalized = True
        self._vectors: list[npt.NDArray[np.float16]] = []
        self._records: list[disk.Shard] = []
        disk.sweep(self.place)
        if writer.manifest.shards:
            manifest = disk.load_manifest(self.place, disk.VectorsManifest)
            if manifest is None or len(manifest.shards) < len(writer.manifest.shards):
                raise DataError(f"{self.place} has lost vectors: delete {folder} and start again")
            # It may be one shard ahead of the tokens, which is then made again.
            self._records = manifest.shards[: len(writer.manifest.shards)]
            self.dim, self.normalized = manifest.encoder.dim, manifest.encoder.normalized

    def add(self, tokens: list[int], source: str, hash_: int, vector: npt.NDArray[np.float16]) -> None:
        self.writer.add(tokens, source, hash_)
        self._vectors.append(vector)

    def write(self, cursor: dict[str, int], left_out: Counter[str], *, last: bool = False) -> None:
        self.writer.write(cursor, left_out, last=last, beside=self._write_vectors)

    def _write_vectors(self, index: int, shard: disk.Shard) -> None:
        assert self.dim is not None  # there are rows
        info = disk.EncoderInfo(self.encoder, self.dim, self.normalized)
        self._records.append(disk.write_vector_shard(self.place, index, np.stack(self._vectors), made_of(shard, info)))
        sha256 = self.writer.manifest.tokenizer_sha256
        disk.save_manifest(self.place, disk.VectorsManifest(info, sha256, self._records))
        self._vectors = []


class _Checker:
    """Sorts the rows: good ones go on, bad ones are errors (or counted), others are left out and counted."""

    def __init__(
        self, path: Path, tokenizer: Tokenizer, max_tokens: int, output: _Output, left_out: Counter[str], skip_bad: bool
    ) -> None:
        self.path, self.tokenizer, self.max_tokens = path, tokenizer, max_tokens
        self.output, self.left_out, self.skip_bad = output, left_out, skip_bad
        self.special = special_ids(tokenizer)
        self.declared = output.writer.manifest.settings["dim"]

    def good_rows(self, batch: list[Pair]) -> Iterator[tuple[int, list[int], int, npt.NDArray[np.float16]]]:
        """Yield (row, tokens, hash, vector) of the rows that are taken."""
        texts = [valid_unicode(text) if isinstance(text, str) else "" for _, text, _ in batch]
        ids = [found.ids for found in self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        short = [some[: self.max_tokens] for some in ids]
        decoded = decode(self.tokenizer, short)
        for (row, text, given), tokens, kept in zip(batch, ids, decoded, strict=True):
            vector, wrong = _vector(given)
            reason, message = wrong or self._wrong(text, tokens, vector)
            if reason:
                if not self.skip_bad:
                    raise DataError(f"{self.path} row {row}: {message}; correct it, or skip bad rows (--skip-bad)")
                self.left_out[reason] += 1
                continue
            hash_ = text_hash(kept)
            if len(tokens) > self.max_tokens:
                self.left_out["too long"] += 1
            elif not self.special.isdisjoint(tokens):
                self.left_out["unknown to the tokenizer"] += 1
            elif not self.output.writer.seen.add(np.array([hash_], dtype=np.uint64))[0]:
                self.left_out["duplicate"] += 1
            else:
                self.output.normalized &= abs(float(np.linalg.norm(vector.astype(np.float64))) - 1) < UNIT_TOLERANCE
                with np.errstate(over="ignore", under="ignore"):
                    yield row, tokens, hash_, vector.astype(np.float16)

    def _wrong(self, text: object, tokens: list[int], vector: npt.NDArray[np.floating]) -> tuple[str, str]:
        """(kind, message) of what is wrong with a row, ("", "") if nothing is."""
        if text is not None and not isinstance(text, str):
            return "not a text", f"the text is not a string but {type(text).__name__}"
        if not tokens:
            return "empty text", "the text is empty"
        if self.output.dim is not None and len(vector) != self.output.dim:
            if self.declared is None:
                return "ragged", f"the vector has {len(vector)} numbers, those before it have {self.output.dim}"
            return "wrong dimension", f"the vector has {len(vector)} numbers, not {self.output.dim}"
        with np.errstate(over="ignore", under="ignore"):
            small = vector.astype(np.float16)
        if not np.isfinite(vector).all():
            return "not finite", "the vector has NaN or infinite numbers"
        if not np.isfinite(small).all():
            return "too large", "the vector has numbers too large for float16 (above 65504)"
        if not small.any():
            return "zero vector", "the vector is zero" + (" in float16" if vector.any() else "")
        if self.output.dim is None:  # the first good row decides
            self.output.dim = len(vector)
        return "", ""


def _vector(given: Any) -> tuple[npt.NDArray[np.floating], tuple[str, str] | None]:
    """A row of numbers as an array, or what is wrong with it."""
    nothing = np.empty(0)
    if given is None:
        return nothing, ("no vector", "there is no vector")
    try:
        array = np.asarray(given)
    except ValueError:
        return nothing, ("no vector", "the vector is not a list of numbers")
    if array.ndim != 1 or array.dtype.kind not in "fiu" or not array.size:
        return nothing, ("no vector", "the vector is not a list of numbers")
    if array.dtype.kind == "f":
        return array, None
    numbers = array.astype(np.float32)
    if array.dtype == np.int8:  # quantised, the scale is lost: unit length, as decoding does with int8
        numbers /= max(float(np.linalg.norm(numbers)), 1e-9)
    return numbers, None


def _read(path: Path, text_column: str, vector_column: str, start: int) -> Iterator[Pair]:
    kind = file_kind(path)[0]
    if kind == ".parquet":
        return _read_parquet(path, text_column, vector_column, start)
    if kind == ".jsonl":
        return _read_json(path, text_column, vector_column, start)
    if kind == ".txt":
        return _read_text(path, start)
    raise DataError(f"{path} is not .parquet, .jsonl, or .txt with its .npy beside it")


def _read_parquet(path: Path, text_column: str, vector_column: str, start: int) -> Iterator[Pair]:
    row = start
    for batch in parquet_batches(path, [text_column, vector_column], start):
        texts = batch.column(text_column).to_pylist()
        for text, vector in zip(texts, _lists(batch.column(vector_column)), strict=True):
            row += 1
            yield row, text, vector


def _lists(column: pa.Array) -> Iterator[Any]:
    """The rows of a list column as arrays, without a Python object for each number."""
    fixed = pa.types.is_fixed_size_list(column.type)
    if not (fixed or pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        yield from column.to_pylist()
        return
    values = column.values.to_numpy(zero_copy_only=False)
    every = (np.arange(len(column) + 1) + column.offset) * column.type.list_size if fixed else None
    ends = column.offsets.to_numpy() if every is None else every
    for start, end, there in zip(ends[:-1], ends[1:], column.is_valid().to_pylist(), strict=True):
        yield values[start:end] if there else None


def _read_json(path: Path, text_column: str, vector_column: str, start: int) -> Iterator[Pair]:
    with open_lines(path) as lines:
        for row, line in itertools.islice(enumerate(lines, 1), start, None):
            record = json_record(line, path, row)
            for column in (text_column, vector_column):
                if column not in record:
                    raise DataError(f"{path} row {row}: no {column!r}; it has: {', '.join(record) or 'nothing'}")
            yield row, record[text_column], record[vector_column]


def _read_text(path: Path, start: int) -> Iterator[Pair]:
    beside = path.with_name(bare_name(path) + ".npy")
    try:
        vectors = np.load(beside, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} needs its vectors beside it, in {beside}: one row for each line") from None
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{beside} cannot be read as an array of numbers ({error}): save it by numpy.save") from None
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise DataError(f"{beside} holds {vectors.dtype} of shape {vectors.shape}: it must be numbers, (rows, dim)")
    row = 0
    with open_lines(path) as lines:
        for row, line in enumerate(lines, 1):
            if row > len(vectors):
                raise DataError(f"{path} has more lines than {beside} has rows ({len(vectors)}): one row for each line")
            if row > start:
                yield row, line.rstrip("\r\n"), np.array(vectors[row - 1])
    if row < len(vectors):
        raise DataError(f"{path} has {row} lines, but {beside} has {len(vectors)} rows: one row for each line")
