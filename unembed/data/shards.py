"""The dataset folder on disk: its two manifests, its Parquet shards, and how a file is written whole or not at all.

`tokens/` has manifest.json, tokenizer.json and 00000.parquet ... with the columns tokens, source, hash. The folder of
an encoder has manifest.json and 00000.parquet ... with the column vector; row i belongs to row i of the tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from unembed.data.windows import SPLITS, in_split
from unembed.errors import DataError

FORMAT = 1
TOKENS = "tokens"
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is: rows done, rows in all (None if nobody knows), rows per second of this run."""

    done: int
    total: int | None
    rate: float
    left_out: dict[str, int] = field(default_factory=dict)
    """What was not taken, by reason."""


@dataclass(frozen=True, slots=True)
class EncoderInfo:
    """Which encoder made the vectors."""

    spec: str
    dim: int
    normalized: bool
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class Shard:
    """One written file; `splits` counts the rows of each split (token shards only)."""

    file: str
    rows: int
    sha256: str
    splits: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class TokensManifest:
    """What the token shards are, and where their writer goes on after an interruption."""

    settings: dict[str, Any]
    """Everything that decides the rows; a run with other settings is refused."""
    tokenizer_sha256: str
    vocab_size: int
    max_tokens: int
    shards: list[Shard] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    """Place in the sources just after the last written row."""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """`sources`: rows by source; `left_out`: what was not taken, by reason."""
    complete: bool = False


@dataclass(slots=True)
class VectorsManifest:
    """Which encoder the vector shards are of, and over which tokens."""

    encoder: EncoderInfo
    tokenizer_sha256: str
    shards: list[Shard] = field(default_factory=list)


ManifestT = TypeVar("ManifestT", TokensManifest, VectorsManifest)


def save_manifest(folder: Path, manifest: TokensManifest | VectorsManifest) -> None:
    """Write `manifest.json` of a tokens or vectors folder."""
    kind = "tokens" if isinstance(manifest, TokensManifest) else "vectors"
    content = {"format": FORMAT, "kind": kind, **dataclasses.asdict(manifest)}
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    write_whole(folder / MANIFEST, lambda path: path.write_bytes(text.encode()))


def load_manifest(folder: Path, kind: type[ManifestT]) -> ManifestT | None:
    """Read `manifest.json`; None if there is none."""
    path, name = folder / MANIFEST, "tokens" if kind is TokensManifest else "vectors"
    restore = f"restore it, or delete {folder} and encode again"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise DataError(f"{path} is not valid JSON: {restore}") from None
    if isinstance(content, dict) and isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise DataError(f"{path} is of format {content['format']}, this unembed reads up to {FORMAT}: upgrade unembed")
    try:
        if content.pop("format") != FORMAT or content.pop("kind") != name:
            raise ValueError
        content["shards"] = [Shard(**shard) for shard in content["shards"]]
        if kind is VectorsManifest:
            content["encoder"] = EncoderInfo(**content["encoder"])
        return kind(**content)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DataError(f"{path} is not a manifest of unembed {name}: {restore}") from None


def same_settings(folder: Path, found: dict[str, Any], asked: dict[str, Any]) -> None:
    """Refuse to go on in a folder that was begun with other settings."""
    asked = json.loads(json.dumps(asked))  # the form that the manifest has been through, too
    for key in sorted(found.keys() | asked.keys()):
        if found.get(key) != asked.get(key):
            raise DataError(
                f"{folder} was begun with another {key} ({_short(found.get(key))}, now {_short(asked.get(key))}): "
                "use the same settings, another folder, or delete this one"
            )


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def tokens_folder(folder: Path) -> Path:
    """Where the tokens of a dataset are."""
    return folder / TOKENS


def vectors_folder(folder: Path, spec: str) -> Path:
    """Where the vectors of an encoder are: its spec, made fit for a file name."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", spec).strip("-.")
    if not name or name == TOKENS:
        raise DataError(f"{spec!r} cannot name a folder of vectors: choose another encoder name")
    return folder / name


def load_tokenizer(source: Tokenizer | str | Path) -> Tokenizer:
    """A tokenizer from its file, or a copy of the given one, that neither cuts nor pads."""
    try:
        if isinstance(source, Tokenizer):
            tokenizer = Tokenizer.from_str(source.to_str())
        else:
            tokenizer = Tokenizer.from_file(str(source))
    except Exception as error:  # tokenizers raises bare Exception
        raise DataError(f"{source} is not a tokenizer.json: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_sha256(tokenizer: Tokenizer) -> str:
    """Hash of the file that `write_tokenizer` would write."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Put `tokenizer.json` into a tokens folder."""
    text = tokenizer.to_str().encode()
    write_whole(folder / TOKENIZER, lambda path: path.write_bytes(text))


def shard_name(index: int) -> str:
    """File name of shard number `index`."""
    return f"{index:05d}.parquet"


def write_token_shard(
    folder: Path,
    index: int,
    tokens: Sequence[Sequence[int]],
    sources: Sequence[str],
    hashes: npt.NDArray[np.uint64],
    vocab_size: int,
) -> Shard:
    """Write one shard of tokens and return its record."""
    small = pa.uint16() if vocab_size <= 1 << 16 else pa.uint32()
    table = pa.table(
        {
            "tokens": pa.array(tokens, pa.list_(small)),
            "source": pa.array(sources, pa.string()),
            "hash": pa.array(hashes, pa.uint64()),
        }
    )
    splits = {split: int(in_split(hashes, split).sum()) for split in SPLITS}
    return _write_table(folder, index, table, "zstd", splits)


def write_vector_shard(folder: Path, index: int, vectors: npt.NDArray[np.float16], made_of: dict[str, str]) -> Shard:
    """Write one shard of vectors (n, dim); `made_of` goes into the file so that it can be recognised."""
    flat = pa.array(np.ascontiguousarray(vectors).reshape(-1))
    table = pa.table({"vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})
    # float16 vectors do not compress.
    return _write_table(folder, index, table.replace_schema_metadata(made_of), "none", {})


def _write_table(folder: Path, index: int, table: pa.Table, compression: str, splits: dict[str, int]) -> Shard:
    path = folder / shard_name(index)

    def write(part: Path) -> None:
        pq.write_table(table, part, compression=compression, use_dictionary=["source"], write_statistics=False)

    write_whole(path, write)
    return Shard(path.name, table.num_rows, file_sha256(path), splits)


def read_table(folder: Path, shard: Shard, columns: list[str] | None = None) -> pa.Table:
    """Read a shard and check that it has the rows which the manifest promises."""
    path = folder / shard.file
    again = "delete it and run the same encode command again"
    try:
        table = pq.ParquetFile(path).read(columns=columns)
    except FileNotFoundError:
        raise DataError(f"{path} is missing: run the same encode command again, or restore the file") from None
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read ({str(error).splitlines()[0]}): {again}") from None
    if table.num_rows != shard.rows:
        raise DataError(f"{path} has {table.num_rows} rows, its manifest says {shard.rows}: {again}")
    return table


def token_rows(column: pa.ChunkedArray) -> list[npt.NDArray[Any]]:
    """A column of token lists as one small array per row (uint16 or uint32)."""
    array = column.combine_chunks()
    values, offsets = array.values.to_numpy(), array.offsets.to_numpy()
    return [values[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def vector_rows(column: pa.ChunkedArray) -> npt.NDArray[np.float16]:
    """A column of vectors as one array (n, dim)."""
    rows: npt.NDArray[np.float16] = column.combine_chunks().flatten().to_numpy()
    return rows.reshape(-1, column.type.list_size)


def file_sha256(path: Path) -> str:
    """Hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, then put it in place in one step; a kill leaves the old state."""
    part = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        write(part)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Make the folder if need be, and remove half-written files that a killed run left behind."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in folder.glob(".*.tmp"):
        # Younger ones may belong to another process that is at work here on other shards, and be gone in a moment.
        with contextlib.suppress(FileNotFoundError):
            if time.time() - part.stat().st_mtime > 600:
                part.unlink()
