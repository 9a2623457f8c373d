"""A set of 64-bit hashes in one flat array, for texts by the hundred million: 11 to 22 bytes each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

# Probing gets slow near full; above this share the table doubles.
FULLEST = 0.7
# Rows handled at once while the table grows, to bound the temporary arrays.
CHUNK = 1 << 18


class HashSet:
    """Open addressing with linear probing, many hashes at a time; an empty slot holds 0."""

    def __init__(self, capacity: int = 1 << 16) -> None:
        """`capacity` must be a power of two."""
        self._table: Hashes = np.zeros(capacity, dtype=np.uint64)
        self._count = 0
        self._has_zero = False

    def __len__(self) -> int:
        return self._count + self._has_zero

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self._table.nbytes

    def add(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Add hashes; True for each that was not there yet (and is the first of its kind in `hashes`)."""
        fresh = np.zeros(len(hashes), dtype=np.bool_)
        values, first = np.unique(hashes, return_index=True)
        if len(values) and values[0] == 0:  # 0 marks an empty slot, so it is kept apart
            fresh[first[0]] = not self._has_zero
            self._has_zero = True
            values, first = values[1:], first[1:]
        self._make_room(len(values))
        fresh[first] = self._insert(values)
        self._count += int(np.count_nonzero(fresh[first]))
        return fresh

    def _make_room(self, more: int) -> None:
        capacity = len(self._table)
        while self._count + more > FULLEST * capacity:
            capacity *= 2
        if capacity == len(self._table):
            return
        old, self._table = self._table, np.zeros(capacity, dtype=np.uint64)
        for start in range(0, len(old), CHUNK):
            some = old[start : start + CHUNK]
            self._insert(some[some != 0])

    def _insert(self, values: Hashes) -> npt.NDArray[np.bool_]:
        """Insert different, non-zero values; True for each that was new."""
        table, last = self._table, np.uint64(len(self._table) - 1)
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
        return new
