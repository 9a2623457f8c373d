"""What an encoder's vectors have in common, whatever the text: statistics by which it is known again.

Mean and spread of each dimension depend on the texts and do not survive quantisation by dimension. How dimensions go
together does: an encoder's axes have their own meaning, so two dimensions that rise together do so for mails as for
abstracts, in int8 as in single bits. The score is the slope of the sample's correlations (all pairs of dimensions) on
those of the fingerprint: 1 for the texts it was made of, 0 for vectors of another encoder. `tools/fingerprints.py`
makes the file.
"""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unembed.errors import DataError
from unembed.measure.metrics import cosine

if TYPE_CHECKING:
    from numpy.typing import NDArray

FILE = Path(__file__).with_name("fingerprints.json")
FEWEST = 8
"""Different vectors that a score needs."""
DEAD = 1e-5
"""Below this standard deviation a dimension holds no information: all-MiniLM-L6-v2 has three that are always 0."""
AXES = 64
SHUFFLES = 32
MOST = 1000  # vectors that are compared


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Statistics of one encoder's vectors of many texts."""

    spec: str
    unit: bool
    """Whether the encoder's vectors are of unit length."""
    texts: int
    mean: NDArray[np.float64]  # (d,)
    std: NDArray[np.float64]  # (d,)
    axes: NDArray[np.float64]  # (k, d); axes.T @ axes is the correlation matrix of its strongest axes

    @property
    def dim(self) -> int:
        """Dimensions of the encoder."""
        return len(self.mean)

    @property
    def dead(self) -> NDArray[np.bool_]:
        """Dimensions that never change."""
        return self.std < DEAD


@dataclass(frozen=True, slots=True)
class Match:
    """How a sample fits a fingerprint."""

    count: int
    """Different vectors that were compared."""
    score: float
    error: float
    """Standard error of the score."""
    chance: float
    """What the score is when the fingerprint's dimensions are shuffled (root of the mean square)."""
    mean: float | None
    """Cosine of the two mean vectors; None where each dimension has a scale of its own."""
    dead_fit: bool | None
    """Whether the dimensions that never change in the fingerprint do not change in the sample; None also for bits."""


@lru_cache(maxsize=1)
def known() -> tuple[Fingerprint, ...]:
    """The fingerprints that come with unembed."""
    return tuple(_from_json(entry) for entry in json.loads(FILE.read_text())["encoders"])


def find(spec: str | None) -> Fingerprint | None:
    """The fingerprint of an encoder, if there is one."""
    return next((one for one in known() if one.spec == spec), None)


def make(spec: str, vectors: NDArray[np.float32], *, unit: bool) -> Fingerprint:
    """The fingerprint of an encoder from its vectors of many different texts."""
    if len(vectors) < 2 * AXES:
        raise DataError(f"{len(vectors)} vectors are too few for a fingerprint: give at least {2 * AXES}")
    mean, std = vectors.mean(0, dtype=np.float64), vectors.std(0, dtype=np.float64)
    z = np.where(std < DEAD, 0, (vectors - mean) / np.maximum(std, DEAD))  # (n, d)
    power, directions = np.linalg.eigh(z.T @ z / len(z))
    axes = np.sqrt(np.maximum(power[-AXES:], 0))[:, None] * directions[:, -AXES:].T
    return Fingerprint(spec, unit, len(vectors), mean, std, axes)


def match(vectors: NDArray[np.float32], fingerprint: Fingerprint, dtype: str = "float32") -> Match | None:
    """Compare vectors of the same or fewer dimensions, (n, k), scaled in any way; None: too few different ones."""
    some = np.linspace(0, len(vectors) - 1, min(MOST, len(vectors))).astype(int)
    rows = np.unique(vectors[some], axis=0).astype(np.float64)
    dims = rows.shape[1]
    if len(rows) < FEWEST or dims > fingerprint.dim:
        return None
    spread, dead = rows.std(0), fingerprint.dead[:dims]
    live = ~dead & (spread > 0)
    if live.sum() < 2:
        return None
    z = (rows[:, live] - rows[:, live].mean(0)) / spread[live]  # (n, live)
    axes = fingerprint.axes[:, :dims][:, live]  # (k, live)
    # The correlation of two signs is 2/pi of that of the numbers (while it is small).
    factor = math.pi / 2 if dtype == "binary" else 1.0
    slopes = factor * _slopes(z, axes)  # (n,)
    rng = np.random.default_rng(0)
    luck = [factor * _slopes(z, axes[:, rng.permutation(axes.shape[1])]).mean() for _ in range(SHUFFLES)]
    mean, dead_fit = None, None
    if dtype != "int8" or scaled_by_dimension(vectors, fingerprint) is False:
        mean = float(cosine(rows.mean(0)[None], fingerprint.mean[None, :dims])[0])
        # The sign of a number that is always 0 is noise.
        dead_fit = None if dtype == "binary" else bool((spread[dead] < 0.5 * np.median(spread[live])).all())
    error, chance = slopes.std(ddof=1) / math.sqrt(len(z)), np.sqrt(np.square(luck).mean())
    return Match(len(rows), float(slopes.mean()), float(error), float(chance), mean, dead_fit)


def _slopes(z: NDArray[np.float64], axes: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each standardised vector its share in the slope; their mean is the slope over all pairs of dimensions."""
    own = np.square(axes).sum(0)  # (live,), the diagonal, which says nothing
    together = np.square(z @ axes.T).sum(1) - np.square(z) @ own  # (n,)
    whole = np.square(axes @ axes.T).sum() - np.square(own).sum()
    slopes: NDArray[np.float64] = together * (len(z) / (len(z) - 1)) / whole
    return slopes


def complete(vectors: NDArray[np.float32], fingerprint: Fingerprint) -> NDArray[np.float32]:
    """Vectors of which the first dimensions are known, (n, k), with the others as they are to be expected, (n, d).

    The fingerprint is read as a factor model: numbers = mean + std * (factors @ axes + noise of each dimension).
    """
    given = vectors.shape[1]
    std = np.maximum(fingerprint.std, DEAD)
    power = np.square(fingerprint.mean[:given]).sum() + np.square(std[:given]).sum()
    scale = math.sqrt(power) / np.sqrt(np.square(vectors, dtype=np.float64).mean(0).sum())
    z = (vectors * scale - fingerprint.mean[:given]) / std[:given]
    seen, unseen = fingerprint.axes[:, :given], fingerprint.axes[:, given:]
    weighted = seen / np.maximum(1 - np.square(seen).sum(0), 0.05)  # (k, given), by the noise of each dimension
    factors = np.linalg.solve(np.eye(len(seen)) + weighted @ seen.T, weighted @ z.T).T  # (n, k)
    rest = fingerprint.mean[given:] + std[given:] * (factors @ unseen)
    return np.concatenate([vectors * scale, rest], axis=1).astype(np.float32)


def scaled_by_dimension(vectors: NDArray[np.float32], fingerprint: Fingerprint) -> bool | None:
    """Whether int8 vectors have a scale for each dimension: then the spreads are no longer those of the encoder.

    Of 32 vectors, the correlation of the two is at most .13 then, and at least .40 with one scale or one for each row.
    Of fewer it cannot be told: None.
    """
    if len(vectors) < 32:
        return None
    live = ~fingerprint.dead[: vectors.shape[1]]
    spread = vectors.std(0, dtype=np.float64)[live]
    return float(np.corrcoef(spread, fingerprint.std[: vectors.shape[1]][live])[0, 1]) < 0.25


def rescale(vectors: NDArray[np.float32], fingerprint: Fingerprint) -> NDArray[np.float32]:
    """Int8 that was scaled by dimension, brought to the spreads of the fingerprint.

    Symmetric scales leave zero in place and never give -128. Where smallest and largest value became -128 and 127, zero
    is lost: half way between the sample's own middle and the fingerprint's mean the cosine was best (.95 to .98).
    """
    dims = vectors.shape[1]
    spread = vectors.std(0, dtype=np.float64)
    gain = np.where(spread > 0, fingerprint.std[:dims] / np.maximum(spread, DEAD), 0)
    back = vectors * gain
    if vectors.min() <= -128:
        back += (fingerprint.mean[:dims] - back.mean(0)) / 2
    return back.astype(np.float32)


def to_json(fingerprint: Fingerprint) -> dict[str, Any]:
    """Plain values; the axes in one byte a number."""
    step = float(np.abs(fingerprint.axes).max() / 127)
    codes = np.rint(fingerprint.axes / step).astype(np.int8)
    return {
        "spec": fingerprint.spec,
        "unit": fingerprint.unit,
        "texts": fingerprint.texts,
        "mean": [float(f"{value:.3g}") for value in fingerprint.mean],
        "std": [float(f"{value:.3g}") for value in fingerprint.std],
        "step": step,
        "axes": base64.b64encode(codes.tobytes()).decode(),
    }


def _from_json(entry: dict[str, Any]) -> Fingerprint:
    mean, std = np.array(entry["mean"]), np.array(entry["std"])
    codes = np.frombuffer(base64.b64decode(entry["axes"]), np.int8).reshape(-1, len(mean))
    return Fingerprint(
        entry["spec"], entry["unit"], entry["texts"], mean, std, codes.astype(np.float64) * entry["step"]
    )
