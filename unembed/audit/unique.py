"""How alone the sampled vectors are: near-duplicates, and pairs that can be linked to each other.

A store without names still tells that two rows are of one person, letter or event when their vectors are far closer
than those of two rows drawn at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEAR_DUPLICATE = 0.95
EXPECTED_BY_CHANCE = 0.01
"""Links that the background alone may be expected to give in a whole sample."""
MIN_ROWS = 20
_BLOCK = 1024
_PAIRS = 200_000
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Uniqueness:
    """Counts of sampled vectors."""

    n: int
    near_duplicates: int
    """Vectors with another one at a cosine of at least 0.95."""
    linked: int
    """Vectors in a linked pair: each is the other's nearest, closer than `threshold`."""
    threshold: float
    background: float
    """Median cosine of two vectors drawn at random."""
    pairs: tuple[tuple[int, int, float], ...]
    """The closest linked pairs: two rows and their cosine."""
    note: str


def uniqueness(vectors: NDArray[np.float32], *, seed: int = 0) -> Uniqueness:
    """Count near-duplicates and linked pairs among the vectors (n, d); time grows with n squared, memory with n."""
    n = len(vectors)
    if n < 2:
        return Uniqueness(n, 0, 0, NEAR_DUPLICATE, 0.0, (), "One vector alone cannot be linked to another.")
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    nearest, closeness, second = _nearest(units)
    pairs_centre, pairs_limit = _limit(_random_pairs(units, seed), n * (n - 1) / 2)
    second_centre, second_limit = _limit(second, n)
    few = n < MIN_ROWS
    threshold = NEAR_DUPLICATE if few else min(max(pairs_limit, second_limit), NEAR_DUPLICATE)
    mutual = (nearest[nearest] == np.arange(n)) & (closeness >= threshold)
    pairs = sorted(
        ((int(row), int(nearest[row]), float(closeness[row])) for row in np.flatnonzero(mutual) if row < nearest[row]),
        key=lambda pair: (-pair[2], pair[0]),
    )
    how = (
        f"Fewer than {MIN_ROWS} vectors have no background to stand out from, so that limit is used here too."
        if few
        else f"Two vectors drawn at random have a median cosine of {pairs_centre:.2f}, a vector and its second nearest "
        f"one of {second_centre:.2f}; the limit lies so far above the spread of both that the whole sample should pass "
        f"it {EXPECTED_BY_CHANCE} times by chance, if they were spread normally."
    )
    note = (
        f"Near-duplicate: another sampled vector at a cosine of {NEAR_DUPLICATE} or more. Linked: two vectors that are "
        f"each other's nearest, at {threshold:.2f} or more. {how} Texts on one narrow subject can pass it. A sample "
        f"shows only links among its own rows: a larger one shows more."
    )
    duplicates = int((closeness >= NEAR_DUPLICATE).sum())
    return Uniqueness(n, duplicates, 2 * len(pairs), threshold, pairs_centre, tuple(pairs[:_SHOWN]), note)


def _nearest(units: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.float32]]:
    """For each row the nearest other row, its cosine, and that of the second nearest; a block of rows at a time."""
    n = len(units)
    nearest = np.empty(n, dtype=np.intp)
    closeness, second = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.float32)
    for start in range(0, n, _BLOCK):
        cosines = units[start : start + _BLOCK] @ units.T  # (block, n)
        rows, block = np.arange(len(cosines)), slice(start, start + _BLOCK)
        cosines[rows, rows + start] = -2  # not itself
        nearest[block] = cosines.argmax(1)
        closeness[block] = cosines[rows, nearest[block]]
        cosines[rows, nearest[block]] = -2
        second[block] = cosines.max(1)
    return nearest, closeness, second


def _random_pairs(units: NDArray[np.float32], seed: int) -> NDArray[np.float32]:
    """Cosines of pairs drawn at random."""
    n = len(units)
    rng = np.random.default_rng(seed)
    first = rng.integers(0, n, min(_PAIRS, 50 * n))
    second = (first + rng.integers(1, n, len(first))) % n
    return np.asarray(np.einsum("ij,ij->i", units[first], units[second]))


def _limit(cosines: NDArray[np.float32], trials: float) -> tuple[float, float]:
    """Median, and the value that so many trials should hardly ever pass."""
    centre = float(np.median(cosines))
    # The median distance, not the standard deviation: real links must not raise their own limit.
    spread = 1.4826 * float(np.median(np.abs(cosines - centre)))
    return centre, centre + NormalDist().inv_cdf(1 - min(EXPECTED_BY_CHANCE / trials, 0.5)) * max(spread, 1e-3)
