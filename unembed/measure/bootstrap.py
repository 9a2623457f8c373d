"""Percentile bootstrap: the texts are drawn again with replacement, and every metric is computed anew."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unembed.errors import ConfigError
from unembed.measure.metrics import METRICS, Array
from unembed.measure.results import Estimate

LEVEL = 0.95
# Draws held in memory at once: 2**20 weights are 8 MB.
_DRAWS = 2**20


def estimate(columns: dict[str, Array], *, resamples: int, seed: int) -> dict[str, Estimate]:
    """Value and 95 % interval of each metric from its columns (n, k); the same draws serve all metrics.

    Two systems scored on the same texts with the same seed are drawn alike.
    """
    if resamples < 1:
        raise ConfigError(f"{resamples} bootstrap resamples: at least 1 is needed, 1000 is usual")
    names = list(columns)
    table = np.concatenate([columns[name] for name in names], axis=1)
    ends = np.cumsum([columns[name].shape[1] for name in names])
    drawn = np.concatenate(list(_resampled_sums(table, resamples, seed)))  # (resamples, all k)
    result = {}
    for name, end in zip(names, ends, strict=True):
        part = slice(end - columns[name].shape[1], end)
        combine = METRICS[name].combine
        value = float(combine(table[:, part].sum(0)))
        # A resample in which the metric is undefined (no token at all, say) tells nothing about its spread.
        values = combine(drawn[:, part])
        values = values[np.isfinite(values)]
        if np.isfinite(value) and len(values):
            low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
            # A text without anything to count (no token for the language model) is not among the n.
            texts = int(np.count_nonzero(table[:, part].any(axis=1)))
            result[name] = Estimate(value, float(low), float(high), texts)
    return result


def _resampled_sums(table: Array, resamples: int, seed: int) -> Iterator[Array]:
    """Column sums of `resamples` draws of n rows with replacement, a block of draws at a time."""
    n = len(table)
    rng = np.random.default_rng(seed)
    block = max(1, _DRAWS // n)
    for start in range(0, resamples, block):
        count = min(block, resamples - start)
        rows = rng.integers(0, n, size=(count, n)) + n * np.arange(count)[:, None]
        weights = np.bincount(rows.ravel(), minlength=count * n).reshape(count, n)  # how often each row was drawn
        yield weights.astype(np.float64) @ table
