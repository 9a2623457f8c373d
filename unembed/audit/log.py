"""`audit.jsonl`: all that an audit found, one JSON object on a line, appended as it comes.

The first line says what is audited and how; then come stages and vectors. Whatever is on the disk stays: an audit
that was killed, interrupted or out of space goes on after the last whole line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from unembed.data.shards import same_settings, write_whole
from unembed.errors import DataError

NAME = "audit.jsonl"
FORMAT = 1
GO_ON = "what was found is kept: run the same command again to go on"
Record = dict[str, Any]
T = TypeVar("T")


class Log:
    """The log of one audit, open for appending; `records` holds what was there and what was added."""

    def __init__(self, folder: Path, config: Record, *, overwrite: bool = False) -> None:
        """Begin a log, or go on with one of the same config; one of another config is refused.

        The file can be read by its owner only: redaction misses things.
        """
        self.path = folder / NAME
        self.records: list[Record] = []
        _checked(folder, lambda: folder.mkdir(mode=0o700, parents=True, exist_ok=True))
        if overwrite:
            _checked(self.path, lambda: self.path.unlink(missing_ok=True))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._file = _checked(self.path, lambda: os.open(self.path, flags, 0o600))
        try:
            self._begin(json.loads(json.dumps({"kind": "config", "format": FORMAT, **config})))
        except BaseException:
            self.close()
            raise

    def _begin(self, config: Record) -> None:
        self.records, whole = _parsed(self.path)
        if not self.records:
            os.ftruncate(self._file, 0)
            self.append([config])
            return
        same_settings(self.path.parent, self.records[0], config)
        os.ftruncate(self._file, whole)

    def append(self, records: Iterable[Record]) -> None:
        """Add lines; when this returns they are on the disk."""
        new = list(records)
        data = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in new)
        _checked(self.path, lambda: _write(self._file, data.encode()))
        self.records += new

    def stage(self, name: str) -> Record | None:
        """What a stage left, if it is done."""
        return next((record for record in self.records if record["kind"] == name), None)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(folder: Path) -> list[Record]:
    """The records of a finished audit."""
    path = folder / NAME
    records, _ = _parsed(path)
    if not records:
        raise DataError(f"{folder} holds no audit: make one with `unembed audit SOURCE -o {folder}`")
    if records[-1]["kind"] != "done":
        # Rows are in the order of the store, so the first so many are no sample of it.
        found = sum(record["kind"] == "vector" for record in records)
        raise DataError(f"the audit in {folder} is not finished ({found} vectors so far): run the same command again")
    return records


def save(path: Path, text: str) -> None:
    """Write a file that is made from the log, whole or not at all."""
    _checked(path, lambda: write_whole(path, lambda part: part.write_text(text, "utf-8")))


def _parsed(path: Path) -> tuple[list[Record], int]:
    """The records, and the number of bytes that they take; a torn last line is not among them."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check the folder") from None
    whole = data.rfind(b"\n") + 1
    records = [_record(path, number, line) for number, line in enumerate(data[:whole].splitlines(), 1)]
    if records and (records[0]["kind"] != "config" or records[0].get("format") != FORMAT):
        raise DataError(f"{path} is no log of this version: choose another folder, or --overwrite")
    return records, whole


def _record(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
        if isinstance(record, dict) and isinstance(record.get("kind"), str):
            return record
    except ValueError:
        pass
    raise DataError(f"{path} is damaged in line {number}: choose another folder, or begin anew with --overwrite")


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
    os.fsync(file)


def _checked(path: Path, call: Callable[[], T]) -> T:
    """Writing can fail at any time, and most often because the disk is full."""
    try:
        return call()
    except OSError as error:
        failure = error.strerror or type(error).__name__
    raise DataError(f"{path} cannot be written ({failure}): make room or choose another folder; {GO_ON}")
