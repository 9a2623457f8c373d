"""Texts that lie in a file of their own beside a store that keeps none (FAISS, .npy)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from unembed.audit.stores.base import as_text, pick_text
from unembed.data.sources import file_kind, open_lines, parquet_batches
from unembed.errors import DataError

ID_FIELDS = ("id", "_id", "ids", "uuid", "pk", "key")


def read_texts(path: Path, field: str | None, ids: Sequence[str], rows: int) -> list[str | None]:
    """The text of each id; a file without an id field has the text of row i on its i-th row, and as many as `rows`.

    Args:
        path: .txt (a text on each line), .jsonl (texts or objects) or .parquet.
        field: name of the text in an object or table; by default a usual name.
        ids: those of the sample.
        rows: how many the store has.
    """
    if not path.is_file():
        raise DataError(f"there is no file of texts {path}: give .txt, .jsonl or .parquet")
    wanted, found, count, keyed = set(ids), dict[str, str | None](), 0, False
    for row, (key, text) in enumerate(_records(path, field)):
        count, keyed = row + 1, keyed or key is not None
        name = str(row) if key is None else str(key)
        if name in wanted:
            found[name] = as_text(text)
    if not keyed and count != rows:
        raise DataError(f"{path} has {count} texts for {rows} vectors: give one for each row, or an id with each")
    if not found:
        raise DataError(f"{path} has no text of the sampled ids (such as {ids[0]}): give the id with each text")
    return [found.get(name) for name in ids]


def _records(path: Path, field: str | None) -> Iterator[tuple[Any, Any]]:
    """(id or None, text) of each row."""
    kind = file_kind(path)[0]
    if kind == ".txt":
        with open_lines(path) as lines:
            yield from ((None, line.rstrip("\r\n")) for line in lines)
    elif kind == ".jsonl":
        with open_lines(path) as lines:
            for row, line in enumerate(line for line in lines if line.strip()):
                yield _record(line, field, f"{path}, row {row}")
    elif kind == ".parquet":
        yield from _table(path, field)
    else:
        raise DataError(f"texts cannot be read from {path}: give .txt, .jsonl or .parquet")


def _record(line: str, field: str | None, where: str) -> tuple[Any, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        raise DataError(f"{where}: not JSON: give a text, or an object with one, on each line") from None
    if not isinstance(value, dict):
        return None, value
    name = pick_text(list(value), field, where)
    if name is None:
        raise DataError(f"{where}: no field with a usual name of a text among {', '.join(value)}: say which (text)")
    return next((value[key] for key in ID_FIELDS if key in value), None), value[name]


def _table(path: Path, field: str | None) -> Iterator[tuple[Any, Any]]:
    try:
        names = pq.read_schema(path).names
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors
        raise DataError(f"{path} is no Parquet file that can be read ({str(error).splitlines()[0]})") from None
    name = pick_text(names, field, str(path))
    if name is None:
        raise DataError(f"{path} has no column with a usual name of a text among {', '.join(names)}: say which (text)")
    key = next((key for key in ID_FIELDS if key in names), None)
    for batch in parquet_batches(path, [name] if key is None else [name, key], 0):
        keys = itertools.repeat(None) if key is None else batch.column(key).to_pylist()
        yield from zip(keys, batch.column(name).to_pylist(), strict=False)
