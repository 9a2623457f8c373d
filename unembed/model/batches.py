"""An endless, exactly repeatable stream of training batches from shards.

Shards are visited in a random order, a group at a time, and the rows of a group are shuffled together: memory is
bounded by the group, and the order is a function of (seed, epoch, group) alone. A cursor names the next batch, so a
resumed run reads on where the interrupted one stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from unembed.errors import DataError
from unembed.model.objective import Batch

# About 1M texts of 384 dimensions, 0.8 GB, are in memory at once.
GROUP_SHARDS = 64

Tokens = list[npt.NDArray[np.integer]]


class TrainingRows(Protocol):
    """The training rows of some shards."""

    def __len__(self) -> int:
        """Number of rows."""

    def take(self, rows: npt.NDArray[np.intp], key: tuple[int, ...]) -> tuple[Tokens, npt.NDArray[np.float16]]:
        """Tokens and vectors of some rows; what is random about them depends on the key alone."""


class ShardReader(Protocol):
    """What training needs of a dataset (`Dataset`, or `OnlineDataset`, which encodes as it goes)."""

    @property
    def shards(self) -> int:
        """Number of shards."""

    def training_rows(self, shards: list[int]) -> TrainingRows:
        """The training split of these shards."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next batch to read."""

    epoch: int = 0
    group: int = 0
    batch: int = 0


def stream(data: ShardReader, batch_texts: int, seed: int, start: Cursor) -> Iterator[tuple[Batch, Cursor]]:
    """Yield (batch, cursor of the batch after it), for ever."""
    cursor = start
    while True:
        groups = _groups(data.shards, seed, cursor.epoch)
        yielded = False
        for index in range(cursor.group, len(groups)):
            group = data.training_rows(groups[index])
            order = np.random.default_rng([seed, cursor.epoch, index]).permutation(len(group))
            # The remainder of a group is left out this time; the next epoch groups and shuffles differently.
            batches = 0 if not len(order) else max(1, len(order) // batch_texts)
            first = cursor.batch if index == cursor.group else 0
            for number in range(first, batches):
                rows = order[number * batch_texts : (number + 1) * batch_texts]
                last = number + 1 == batches
                after = Cursor(cursor.epoch, index + 1, 0) if last else Cursor(cursor.epoch, index, number + 1)
                yielded = True
                yield collate(*group.take(rows, (seed, cursor.epoch, index, number))), after
        if not yielded and cursor == Cursor(cursor.epoch):
            raise DataError("the training split is empty: encode more text first (unembed encode)")
        cursor = Cursor(cursor.epoch + 1)


def collate(tokens: Tokens, vectors: npt.NDArray[np.floating]) -> Batch:
    """Pad token arrays into one batch, sorted by length so that micro-batches need little padding."""
    lengths = np.array([len(row) for row in tokens])
    order = np.argsort(lengths, kind="stable")
    padded = np.zeros((len(tokens), int(lengths.max())), dtype=np.int64)
    for place, row in enumerate(order):
        padded[place, : lengths[row]] = tokens[row]
    return Batch(
        torch.from_numpy(padded), torch.from_numpy(lengths[order]), torch.from_numpy(vectors[order].astype(np.float32))
    )


def _groups(shards: int, seed: int, epoch: int) -> list[list[int]]:
    order = np.random.default_rng([seed, epoch]).permutation(shards).tolist()
    return [order[start : start + GROUP_SHARDS] for start in range(0, shards, GROUP_SHARDS)]
