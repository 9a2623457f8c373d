"""When is a vector met? Within the precision that it was stored in, and that the encoder computes in.

A truncated vector (its last entries are zeros) is compared in the entries that it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# 1 - cosine of two encodings of one text in batches of other shapes: float32 adds in another order.
ENCODER_NOISE = 2e-6
# Rounding errors are a sum over hundreds of entries: their sum of squares is this close to its mean.
MARGIN = 2.0
GRIDS = range(1, 9)
DECIMALS = range(2, 6)
# Fewer zeros at the end than this share of the entries come from rounding, not from truncation.
TRUNCATED = 0.05


def entries(vector: NDArray[np.float32]) -> int:
    """How many entries a vector has before it was truncated and filled up with zeros; all, if it was not."""
    last = int(np.flatnonzero(vector)[-1]) + 1
    return last if len(vector) - last > TRUNCATED * len(vector) else len(vector)


def truncate(vector: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """The unit vector of the first entries, zeros behind them."""
    if count == len(vector):
        return vector
    kept = np.where(np.arange(len(vector)) < count, vector, np.float32(0))
    norm = np.linalg.norm(kept)
    return kept / norm if norm > 0 else kept


def tolerance(vector: NDArray[np.float32]) -> float:
    """The 1 - cosine which the rounding of the stored vector alone may cause: float32, float16, int8, decimals."""
    vector = vector[: entries(vector)]
    step = _int8_step(vector) or _decimal_step(vector)
    if step is not None:
        squared = len(vector) * step**2 / 12
    elif np.array_equal(vector.astype(np.float16).astype(np.float32), vector):
        # The spacing of float16 numbers, at least 2**-24, differs from entry to entry.
        squared = float((np.spacing(np.abs(vector).astype(np.float16)).astype(np.float64) ** 2).sum()) / 12
    else:
        squared = 0.0
    return ENCODER_NOISE + MARGIN * squared / (2 * float(np.square(vector, dtype=np.float64).sum()))


def _int8_step(vector: NDArray[np.float32]) -> float | None:
    """The width of the grid if all entries lie on one of at most 127 steps to either side, as int8 entries do."""
    size = np.abs(vector[vector != 0])
    if not len(size):
        return None
    for smallest in GRIDS:  # the smallest entry that is not 0 is so many steps large
        step = float(size.min()) / smallest
        if size.max() / step > 128.5:
            continue
        # Divided by their norm, int8 vectors are off the grid by the rounding of float32.
        if np.abs(size / step - np.rint(size / step)).max() < 1e-3:
            return step
    return None


def _decimal_step(vector: NDArray[np.float32]) -> float | None:
    """The width of the grid if all entries were written with so few decimals, as text files have them."""
    exact = vector.astype(np.float64)
    for count in DECIMALS:
        # float32 itself is off a grid of five decimals by less than a hundredth of a step.
        if np.abs(exact * 10**count - np.rint(exact * 10**count)).max() < 1e-2:
            return float(10.0**-count)
    return None
