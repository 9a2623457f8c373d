"""A file of vectors to a file of texts: bounded memory, progress, and no work lost when it is killed.

While it runs, texts are appended to `<output>.part`; after each chunk the part is synced and `<output>.part.json`
says how far it reaches and what it was made from. A new start cuts the part back to that point and goes on. The
output itself appears when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from unembed.data.shards import write_whole
from unembed.decode.result import Inversion
from unembed.decode.vectors import VectorReader
from unembed.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    done: int
    total: int | None
    """None where the source does not say (JSON lines)."""
    rate: float
    """Vectors per second in this run."""
    resumed: int
    """Rows that an earlier run had done."""
    notes: tuple[str, ...] = ()
    """What was changed in the vectors."""


@dataclass(frozen=True, slots=True)
class _Mark:
    """How far the part file reaches."""

    rows: int
    bytes: int
    vectors: str
    """Hash of those rows: another input is noticed, a longer one is welcome."""


def invert_rows(
    reader: VectorReader,
    invert: Callable[[NDArray[np.float32]], list[Inversion]],
    output: Path,
    *,
    settings: dict[str, Any],
    with_tokens: bool = False,
    overwrite: bool = False,
) -> Iterator[Progress]:
    """Write a JSON line for each vector; the work is done as the progress is iterated over.

    Args:
        reader: where the vectors come from.
        invert: what makes inversions of vectors (n, d); each must depend on its own vector only.
        output: the file to write.
        settings: what else decides the result; a part made with others is refused.
        with_tokens: also write token ids and the confidence of each.
        overwrite: replace an output that is there, and begin anew instead of going on with a part.
    """
    part, sidecar = Path(f"{output}.part"), Path(f"{output}.part.json")
    if not output.parent.is_dir():
        raise DataError(f"no folder {output.parent}: make it first")
    if overwrite:
        part.unlink(missing_ok=True)
        sidecar.unlink(missing_ok=True)
    elif output.exists():
        raise DataError(f"{output} is there already: delete it, choose another name, or overwrite it")
    mark = _resume(part, sidecar, settings)
    return _run(reader, invert, output, part, sidecar, mark, settings, with_tokens)


def _run(
    reader: VectorReader,
    invert: Callable[[NDArray[np.float32]], list[Inversion]],
    output: Path,
    part: Path,
    sidecar: Path,
    mark: _Mark | None,
    settings: dict[str, Any],
    with_tokens: bool,
) -> Iterator[Progress]:
    resumed = mark.rows if mark else 0
    began = time.monotonic()
    seen = hashlib.sha256()
    done = 0
    with part.open("r+b" if mark else "wb") as file:
        file.truncate(mark.bytes if mark else 0)  # a torn line, or lines that the sidecar does not know of
        file.seek(0, os.SEEK_END)
        for chunk in reader:
            # Rows of an earlier run are read and checked again, but not inverted again.
            old = min(max(resumed - chunk.first, 0), len(chunk.vectors))
            seen.update(chunk.vectors[:old].tobytes())
            done = chunk.first + old
            if mark and done == resumed and old and seen.hexdigest() != mark.vectors:
                raise DataError(f"{part} was made from other vectors than {reader.name}: delete it or use another name")
            new = chunk.vectors[old:]
            if len(new):
                _append(file, done, invert(new), with_tokens)
                seen.update(new.tobytes())
                done += len(new)
                _save(sidecar, _Mark(done, file.tell(), seen.hexdigest()), settings)
            rate = max(done - resumed, 0) / max(time.monotonic() - began, 1e-9)
            yield Progress(done, reader.total, rate, resumed, reader.notes)
        if done < resumed:
            raise DataError(f"{part} has {resumed} rows, {reader.name} only {done}: delete it or choose another output")
        if not done:
            raise DataError(f"{reader.name} has no vectors: give a file with some")
    os.replace(part, output)
    sidecar.unlink(missing_ok=True)


def _append(file: IO[bytes], first: int, inversions: list[Inversion], with_tokens: bool) -> None:
    for row, inversion in enumerate(inversions, first):
        file.write(json.dumps(_record(row, inversion, with_tokens), ensure_ascii=False).encode() + b"\n")
    file.flush()
    os.fsync(file.fileno())


def _record(row: int, inversion: Inversion, with_tokens: bool) -> dict[str, Any]:
    """One line: the confidence of a text is the mean of its tokens'."""
    record: dict[str, Any] = {"row": row, **_summary(inversion, with_tokens)}
    if inversion.alternatives:
        record["alternatives"] = [_summary(other, with_tokens) for other in inversion.alternatives]
    return record


def _summary(inversion: Inversion, with_tokens: bool) -> dict[str, Any]:
    confidence = sum(inversion.confidence) / len(inversion.confidence)
    summary: dict[str, Any] = {
        "text": inversion.text,
        "score": round(inversion.score, 4),
        "confidence": round(confidence, 4),
    }
    if inversion.cosine is not None:
        summary |= {
            "cosine": round(inversion.cosine, 6), "queries": inversion.queries, "gradients": inversion.gradients,
        }  # fmt: skip
    if with_tokens:
        summary["tokens"] = list(inversion.tokens)
        summary["token_confidence"] = [round(p, 4) for p in inversion.confidence]
    return summary


def _resume(part: Path, sidecar: Path, settings: dict[str, Any]) -> _Mark | None:
    """Where an earlier run stopped, if its part can be gone on with."""
    if not sidecar.exists() or not part.exists():
        return None
    try:
        saved = json.loads(sidecar.read_text())
        mark = _Mark(saved["rows"], saved["bytes"], saved["vectors"])
        same = saved["format"] == FORMAT and saved["settings"] == json.loads(json.dumps(settings))
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{sidecar} cannot be read: delete it and {part}, then start again") from None
    if not same:
        raise DataError(f"{part} was made with other settings or another inverter: delete it or choose another output")
    if part.stat().st_size < mark.bytes:
        raise DataError(f"{part} is shorter than it was: delete it and start again")
    return mark


def _save(sidecar: Path, mark: _Mark, settings: dict[str, Any]) -> None:
    saved = {"format": FORMAT, "rows": mark.rows, "bytes": mark.bytes, "vectors": mark.vectors, "settings": settings}
    write_whole(sidecar, lambda part: part.write_text(json.dumps(saved)))
