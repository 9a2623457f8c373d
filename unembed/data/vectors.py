"""Stage 2: the vectors of one encoder for token shards that are there already.

A shard of vectors is a function of a shard of tokens and the encoder alone. So any process can make any shard, at any
time: `part=(i, n)` gives each of n machines every n-th shard, and a killed run does the shard again that it was at.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from unembed.data import shards as disk
from unembed.data.text import decode
from unembed.errors import DataError, EncoderError

if TYPE_CHECKING:
    from unembed.data.encoders import Encoder


def write_vectors(
    folder: str | Path, encoder: Encoder, *, batch: int = 2048, part: tuple[int, int] = (0, 1)
) -> Iterator[disk.Progress]:
    """Write `folder/<encoder>/`; the work is done as the progress is iterated over.

    Args:
        folder: a dataset folder whose tokens are complete.
        encoder: what makes the vectors; each is of exactly the text that the tokens of its row decode to.
        batch: texts handed to the encoder at once; they come sorted by length.
        part: (i, n) does every n-th shard from the i-th on, i counted from 0, for n processes at work together.
    """
    tokens = disk.load_manifest(disk.tokens_folder(Path(folder)), disk.TokensManifest)
    if tokens is None or not tokens.complete:
        state = "no" if tokens is None else "incomplete"
        raise DataError(f"{folder} has {state} tokens: run `unembed encode SOURCES -o {folder} --stage tokens` first")
    index, parts = part
    if not 0 <= index < parts or batch < 1:
        raise DataError(f"impossible: part {index} of {parts} (counted from 0), batches of {batch}")
    yield from _run(Path(folder), tokens, encoder, batch, range(index, len(tokens.shards), parts))


def _run(
    folder: Path, tokens: disk.TokensManifest, encoder: Encoder, batch: int, mine: range
) -> Iterator[disk.Progress]:
    place = disk.vectors_folder(folder, encoder.name)
    info = disk.EncoderInfo(encoder.name, encoder.dim, encoder.normalized, encoder.fingerprint)
    _begin(place, tokens, info)
    _record(place, tokens, info)
    tokenizer = disk.load_tokenizer(disk.tokens_folder(folder) / disk.TOKENIZER)
    total = sum(tokens.shards[number].rows for number in mine)
    done, encoded, began = 0, 0, time.monotonic()
    for number in mine:
        shard = tokens.shards[number]
        if not _is_there(place / shard.file, made_of(shard, info), shard.rows):
            rows = disk.token_rows(disk.read_table(disk.tokens_folder(folder), shard, ["tokens"])["tokens"])
            texts = decode(tokenizer, [row.tolist() for row in rows])
            vectors = np.empty((len(rows), info.dim), dtype=np.float16)
            order = np.argsort([len(row) for row in rows], kind="stable")
            for start in range(0, len(order), batch):
                some = order[start : start + batch]
                vectors[some] = _encode(encoder, [texts[i] for i in some], place / shard.file, some)
                encoded += len(some)
                rate = encoded / max(time.monotonic() - began, 1e-9)
                yield disk.Progress(done + min(start + batch, len(order)), total, rate)
            _record(place, tokens, info, disk.write_vector_shard(place, number, vectors, made_of(shard, info)))
        done += shard.rows
    yield disk.Progress(done, total, encoded / max(time.monotonic() - began, 1e-9))


def _encode(encoder: Encoder, texts: list[str], path: Path, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float16]:
    """Vectors of some texts, (n, dim); `path` and `rows` are for the message if they are not what they should be."""
    try:
        vectors = np.asarray(encoder.encode(texts))
    except EncoderError as error:
        raise EncoderError(f"{error} (in a batch for {path})") from error
    if vectors.shape != (len(texts), encoder.dim):
        raise EncoderError(
            f"{encoder.name} gave vectors of shape {vectors.shape} for {len(texts)} texts of {path} (row {rows[0]} and "
            f"on), expected ({len(texts)}, {encoder.dim}): check the encoder"
        )
    with np.errstate(over="ignore"):
        small = vectors.astype(np.float16)
    bad = np.flatnonzero(~np.isfinite(small).all(axis=1))
    if len(bad):
        row = bad[0]
        what = "too large for float16" if np.isfinite(vectors[row]).all() else "NaN or infinite"
        raise EncoderError(
            f"{encoder.name} gave a vector that is {what} for row {rows[row]} of {path} ({texts[row]!r}): "
            "check the encoder"
        )
    zero = np.flatnonzero(~small.any(axis=1))
    if len(zero):
        row = zero[0]
        raise EncoderError(
            f"{encoder.name} gives a zero vector for row {rows[row]} of {path} ({texts[row]!r}), which says nothing of "
            "the text: leave such texts out, or use another encoder"
        )
    return small


def _begin(place: Path, tokens: disk.TokensManifest, info: disk.EncoderInfo) -> None:
    """Make the folder, or refuse one that holds the vectors of something else."""
    disk.sweep(place)
    manifest = disk.load_manifest(place, disk.VectorsManifest)
    if manifest is None:
        disk.save_manifest(place, disk.VectorsManifest(info, tokens.tokenizer_sha256))
        return
    if manifest.encoder != info:
        raise DataError(f"{place} holds vectors of {manifest.encoder}, not of {info}: delete it, or use another folder")
    if manifest.tokenizer_sha256 != tokens.tokenizer_sha256:
        raise DataError(f"{place} holds vectors for tokens of another tokenizer: delete it and start again")


def made_of(shard: disk.Shard, info: disk.EncoderInfo) -> dict[str, str]:
    """What a shard of vectors was made from; kept in the file so that a file of other origin is never taken over."""
    return {"tokens": shard.sha256, "encoder": info.spec, "fingerprint": info.fingerprint}


def _is_there(path: Path, made_of: dict[str, str], rows: int) -> bool:
    try:
        file = pq.ParquetFile(path)
    except (OSError, pa.ArrowException):
        return False
    found = {key.decode(): value.decode() for key, value in (file.schema_arrow.metadata or {}).items()}
    return found == made_of and file.metadata.num_rows == rows


def _record(place: Path, tokens: disk.TokensManifest, info: disk.EncoderInfo, made: disk.Shard | None = None) -> None:
    """Enter the shard just made, and all others that are there, into the manifest.

    Other processes do the same at the same time, and the last one to write could have looked before another's shard
    was there. So each looks again after it has written, until nothing is missing; then no lock is needed.
    """
    while True:
        manifest = disk.load_manifest(place, disk.VectorsManifest)
        known = {} if manifest is None else {shard.file: shard for shard in manifest.shards}
        new = {
            shard.file: disk.Shard(shard.file, shard.rows, disk.file_sha256(place / shard.file))
            for shard in tokens.shards
            if shard.file not in known and _is_there(place / shard.file, made_of(shard, info), shard.rows)
        }
        if made and known.get(made.file) != made:  # made again after it was lost
            new[made.file] = made
        if not new:
            return
        records = [shard for _, shard in sorted({**known, **new}.items())]
        disk.save_manifest(place, disk.VectorsManifest(info, tokens.tokenizer_sha256, records))
