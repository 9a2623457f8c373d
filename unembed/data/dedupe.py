"""A set of 64-bit hashes in bounded memory, whatever their number: the latest in a table, the others in files.

A full table goes to disk as a sorted run; runs of like size are merged, so there are few of them, and all writing is
sequential. The files have no names, so a killed run leaves nothing behind: the set is made again from the shards.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from unembed.errors import DataError

Hashes = npt.NDArray[np.uint64]
Marks = npt.NDArray[np.bool_]

# Slots of the table: 16 MB, taken at once so that memory does not depend on the number of texts.
SLOTS = 1 << 21
# Probing gets slow near full: at this share (1.4 million hashes) the table goes to disk.
FULLEST = 0.7
# A run is read in blocks; the first hash of each stays in memory, so there are at most so many, at least so large.
MOST_BLOCKS, SMALLEST_BLOCK = 1 << 16, 512
# Hashes of a run held at once while it is merged.
CHUNK = 1 << 16


class HashSet:
    """Hashes are added many at a time; each is told apart from all that came before."""

    def __init__(self, folder: Path | None = None, slots: int = SLOTS) -> None:
        """Keep a table of `slots` (a power of two) in memory, and what is more in files in `folder`."""
        self._folder = folder
        self._table = _Table(slots)
        self._runs: list[_Run] = []
        self._has_zero = False

    def __len__(self) -> int:
        return self._table.count + sum(run.count for run in self._runs) + self._has_zero

    @property
    def on_disk(self) -> list[int]:
        """Hashes in each run, the largest first."""
        return [run.count for run in self._runs]

    def add(self, hashes: Hashes) -> Marks:
        """Add hashes; True for each that was not there yet (and is the first of its kind in `hashes`)."""
        fresh = np.zeros(len(hashes), dtype=np.bool_)
        values, first = np.unique(hashes, return_index=True)
        if len(values) and values[0] == 0:  # 0 marks an empty slot, so it is kept apart
            fresh[first[0]] = not self._has_zero
            self._has_zero = True
            values, first = values[1:], first[1:]
        while len(values):
            room = self._table.room
            fresh[first[:room]] = self._add(values[:room])
            values, first = values[room:], first[room:]
            if not self._table.room:
                self._spill()
        return fresh

    def _add(self, values: Hashes) -> Marks:
        """Add some hashes for which the table has room; they are sorted and all different."""
        new = np.ones(len(values), dtype=np.bool_)
        for run in self._runs:
            new[new] = ~run.has(values[new])
        new[new] = self._table.insert(values[new])
        return new

    def _spill(self) -> None:
        """Empty the table into a run, and merge runs until each is larger than all after it together."""
        run = _Run([self._table.empty()], self._table.most, self._folder)
        while self._runs and self._runs[-1].count <= run.count:
            other = self._runs.pop()
            run = _Run(_merged(other, run), other.count + run.count, self._folder)
        self._runs.append(run)


class _Table:
    """Open addressing with linear probing; an empty slot holds 0."""

    def __init__(self, slots: int) -> None:
        self._slots: Hashes = np.zeros(slots, dtype=np.uint64)
        self.most = int(FULLEST * slots)
        self.count = 0

    @property
    def room(self) -> int:
        """How many more hashes may come."""
        return self.most - self.count

    def empty(self) -> Hashes:
        """Take out all hashes, sorted."""
        hashes = np.sort(self._slots[self._slots != 0])
        self._slots[:] = 0
        self.count = 0
        return hashes

    def insert(self, values: Hashes) -> Marks:
        """Insert different, non-zero values; True for each that was new."""
        table, last = self._slots, np.uint64(len(self._slots) - 1)
        new = np.zeros(len(values), dtype=np.bool_)
        open_ = np.arange(len(values))
        slots = values & last
        while len(open_):
            there = table[slots]
            empty = there == 0
            # Where two values claim one empty slot, the later write stays, and the other finds it taken.
            table[slots[empty]] = values[open_[empty]]
            won = empty & (table[slots] == values[open_])
            new[open_[won]] = True
            go_on = ~won & (there != values[open_])
            open_, slots = open_[go_on], (slots[go_on] + np.uint64(1)) & last
        self.count += int(np.count_nonzero(new))
        return new


class _Run:
    """Sorted, different hashes in a nameless file."""

    def __init__(self, parts: Iterator[Hashes] | list[Hashes], count: int, folder: Path | None) -> None:
        self.count = count
        self._block = max(SMALLEST_BLOCK, -(-count // MOST_BLOCKS))
        starts, place = [], 0
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 (lives on)
            for part in parts:
                starts.append(part[-place % self._block :: self._block])
                place += len(part)
                _write_all(self._file, np.ascontiguousarray(part).data.cast("B"))
        except OSError as error:
            raise DataError(
                f"cannot keep {count * 8 >> 20} MB of hashes in {folder or tempfile.gettempdir()}, to find duplicates "
                f"({error.strerror}): make room there, then run the same command again"
            ) from None
        self._starts = np.concatenate(starts)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def chunks(self) -> Iterator[Hashes]:
        """All hashes, in order."""
        self._file.seek(0)
        place = 0
        while part := self._file.read(CHUNK * 8):
            place += len(part)
            yield np.frombuffer(part, dtype=np.uint64)
            self._file.seek(place)

    def has(self, values: Hashes) -> Marks:
        """Which of some sorted hashes are here; only the blocks are read in which they would be."""
        found = np.zeros(len(values), dtype=np.bool_)
        blocks = np.searchsorted(self._starts, values, side="right") - 1  # -1: before all
        ends = [*(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(values)]
        begin = 0
        for end in ends if len(values) else ():
            if blocks[begin] >= 0:
                self._file.seek(int(blocks[begin]) * self._block * 8)
                there = np.frombuffer(self._file.read(self._block * 8), dtype=np.uint64)
                some = values[begin:end]
                place = np.searchsorted(there, some)
                found[begin:end] = there[np.minimum(place, len(there) - 1)] == some
            begin = end
        return found


def _merged(a: _Run, b: _Run) -> Iterator[Hashes]:
    """The hashes of two runs that share none, in order, with a chunk of each in memory."""
    nothing: Hashes = np.empty(0, dtype=np.uint64)
    chunks = [run.chunks() for run in (a, b)]
    held = [next(more, nothing) for more in chunks]
    while all(len(part) for part in held):
        limit = min(part[-1] for part in held)  # up to here, nothing more can come
        cuts = [int(np.searchsorted(part, limit, side="right")) for part in held]
        yield np.sort(np.concatenate([part[:cut] for part, cut in zip(held, cuts, strict=True)]))
        rest = [part[cut:] for part, cut in zip(held, cuts, strict=True)]
        held = [part if len(part) else next(more, nothing) for part, more in zip(rest, chunks, strict=True)]
    for part, more in zip(held, chunks, strict=True):  # of one of them
        if len(part):
            yield part
            yield from more


def _write_all(file: IO[bytes], data: memoryview) -> None:
    """Write bytes; an unbuffered file may take only part of them at a time."""
    while data:
        data = data[file.write(data) :]
