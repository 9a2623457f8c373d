"""`calibration.json` of an inverter folder: how sure recovery was, turned into an estimate of token F1.

Made by `tools/calibrate.py` on held-out texts: one half fits the line, the other half tells how good it is.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.data.shards import file_sha256, write_whole
from unembed.decode import DecodeConfig
from unembed.errors import CheckpointError, ConfigError, DataError
from unembed.measure.metrics import Array
from unembed.model.artifact import ECHO, SURROGATE, WRITER
from unembed.typed import build

FILE = "calibration.json"
FORMAT = 1
LEVEL = 0.95
RIDGE = 1.0
FOLDS = 10
GROUPS = 8  # points of the calibration curve
MIN_SPREAD = 0.02
FREE = ("seed", "precision")
"""Settings of decoding that make no difference to the estimates."""
UNKNOWN = "(no such setting)"
MIN_ROWS = 160  # of 80 residuals, 2 lie outside a 95 % interval


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Held-out texts of similar estimate: what was predicted and what was observed, with a 95 % interval."""

    predicted: float
    observed: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A line from features to token F1, and how far off it is."""

    mean: list[float]
    scale: list[float]
    weights: list[float]
    bias: float
    spread: list[float]
    """Expected absolute residual at an estimate e: spread[0] + spread[1] * e."""
    low: float
    """Residual divided by spread that 2.5 % of unseen texts stay below."""
    high: float
    n: int
    checked: int
    """Texts of the other half, on which the numbers below were measured."""
    coverage: float
    """Share of them within their 95 % interval."""
    width: float
    """Mean width of the interval."""
    error: float
    """Mean absolute error of the estimate."""
    bias_of_mean: float
    """Mean estimate less mean truth."""
    correlation: float
    curve: list[CurvePoint]

    def estimate(self, table: Array) -> Array:
        """Token F1 expected for rows of features, (n, k) -> (n,)."""
        return _predict({"mean": self.mean, "scale": self.scale, "weights": self.weights, "bias": self.bias}, table)

    def interval(self, table: Array) -> Array:
        """(n, 3): estimate, and low and high of its 95 % prediction interval."""
        value = self.estimate(table)
        spread = np.maximum(self.spread[0] + self.spread[1] * value, MIN_SPREAD)
        return np.clip(np.stack([value, value + self.low * spread, value + self.high * spread], axis=1), 0, 1)


def beside(folder: Path | str) -> dict[str, str]:
    """Hashes of what else decides on the texts of an inverter folder, as `Calibration` has them; empty if not there."""
    paths = {name: Path(folder) / file for name, file in (("surrogate", SURROGATE), ("writer", WRITER), ("echo", ECHO))}
    return {name: file_sha256(path) if path.is_file() else "" for name, path in paths.items()}


@dataclass(frozen=True, slots=True)
class Calibration:
    """The estimates of one inverter with one way of decoding."""

    weights: str
    """sha256 of model.safetensors."""
    decode: dict[str, Any]
    """Settings of decoding."""
    alone: Fit
    with_encoder: Fit
    n: int
    seed: int
    split: str
    dataset: str
    """Fingerprint."""
    sources: dict[str, int]
    command: str
    date: str
    surrogate: str = ""
    """sha256 of surrogate.safetensors, which steers the decoding; empty if there is none."""
    writer: str = ""
    """sha256 of writer.safetensors; empty if there is none."""
    echo: str = ""
    """sha256 of echo.safetensors, which chooses among what was written; empty if there is none."""
    notes: list[str] = field(default_factory=list)
    format: int = FORMAT

    @classmethod
    def load(cls, folder: Path | str) -> Calibration | None:
        """The calibration of an inverter folder; None if it has none. One of other weights is refused."""
        path = Path(folder) / FILE
        if not path.is_file():
            return None
        again = f"make it anew: python tools/calibrate.py TEXTS --inverter {folder}"
        try:
            found = build(cls, json.loads(path.read_text("utf-8")), str(path), CheckpointError)
        except ValueError as error:
            raise CheckpointError(f"{path} is not JSON ({error}): {again}") from None
        if found.format != FORMAT:
            raise CheckpointError(f"{path} is of format {found.format}, not {FORMAT}: {again}")
        weights = Path(folder) / "model.safetensors"
        if not weights.is_file():
            raise CheckpointError(f"{folder} has no model.safetensors: copy the whole inverter folder again")
        made_with = {"surrogate": found.surrogate, "writer": found.writer, "echo": found.echo}
        if (file_sha256(weights), beside(folder)) != (found.weights, made_with):
            raise CheckpointError(f"{path} was made for other weights than those beside it: {again}")
        return found

    def save(self, path: Path | str) -> None:
        """Write it, whole or not at all."""
        text = json.dumps(rounded(asdict(self)), indent=1, allow_nan=False) + "\n"
        write_whole(Path(path), lambda part: part.write_text(text, "utf-8"))

    @classmethod
    def fitting(cls, folder: Path | str | None, config: DecodeConfig) -> tuple[Calibration | None, str | None]:
        """The calibration of an inverter folder for these settings; or None, and why there is none.

        An audit goes on without: whatever is wrong with a calibration, the recovered texts are right.
        """
        try:
            found = None if folder is None else cls.load(folder)
            if found is None:
                return None, f"this inverter has no {FILE} (tools/calibrate.py makes one)"
            found.check(config)
        except (CheckpointError, ConfigError) as error:
            return None, str(error)
        return found, None

    def check(self, config: DecodeConfig) -> None:
        """Refuse settings of decoding that it was not made for; the seed and the precision do not matter.

        A setting that is younger than the calibration counts as having been at its default, which changes nothing.
        """
        asked, made = dataclasses.asdict(config), {**dataclasses.asdict(DecodeConfig()), **self.decode}
        differ = [name for name in made if name not in FREE and asked.get(name, UNKNOWN) != made[name]]
        if differ:
            told = ", ".join(f"{name} {asked.get(name, UNKNOWN)} instead of {made[name]}" for name in differ)
            raise ConfigError(f"the estimates were calibrated for other settings ({told}): calibrate anew, or without")

    def fit_for(self, encoder: bool) -> Fit:
        """The line to use: with or without the encoder's cosine."""
        return self.with_encoder if encoder else self.alone

    @property
    def curve(self) -> list[tuple[float, float, float, float, int]]:
        """Points of the calibration plot (with the encoder): predicted, observed, low, high, n."""
        return [dataclasses.astuple(point) for point in self.with_encoder.curve]


def fit(table: Array, truth: Array, seed: int) -> Fit:
    """Fit on one half of the rows (drawn by seed), measure on the other: features (n, k), token F1 (n,)."""
    if len(truth) < MIN_ROWS:
        raise DataError(f"{len(truth)} texts to calibrate on: at least {MIN_ROWS} are needed, 600 are usual")
    mine, other = halves(len(truth), seed)
    line = _line(table[mine], truth[mine])
    guessed = _out_of_fold(table[mine], truth[mine])
    residual = truth[mine] - guessed
    spread = _spread(guessed, np.abs(residual))
    relative = np.sort(residual / np.maximum(spread[0] + spread[1] * guessed, MIN_SPREAD))
    low, high = _quantiles(relative)
    found = Fit(
        **line, spread=spread, low=low, high=high, n=len(mine), checked=len(other),
        coverage=0, width=0, error=0, bias_of_mean=0, correlation=0, curve=[],
    )  # fmt: skip
    return _measured(found, table[other], truth[other], seed)


def halves(n: int, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The rows that the line is fitted on, and the others."""
    order = np.random.default_rng(seed).permutation(n)
    return order[: n // 2], order[n // 2 :]


def _line(table: Array, truth: Array) -> dict[str, Any]:
    """Ridge regression on standardised features."""
    mean, scale = table.mean(0), np.maximum(table.std(0), 1e-6)
    scaled = (table - mean) / scale
    inner = scaled.T @ scaled + RIDGE * np.eye(table.shape[1])
    weights = np.linalg.solve(inner, scaled.T @ (truth - truth.mean()))
    return {"mean": mean.tolist(), "scale": scale.tolist(), "weights": weights.tolist(), "bias": float(truth.mean())}


def _predict(line: dict[str, Any], table: Array) -> Array:
    scaled = (table - np.array(line["mean"])) / np.array(line["scale"])
    return np.asarray(np.clip(scaled @ np.array(line["weights"]) + line["bias"], 0, 1))


def _out_of_fold(table: Array, truth: Array) -> Array:
    """The estimate of every row by a line that was fitted without it."""
    guessed = np.empty(len(truth))
    folds = np.arange(len(truth)) % FOLDS
    for fold in range(FOLDS):
        out = folds == fold
        guessed[out] = _predict(_line(table[~out], truth[~out]), table[out])
    return guessed


def _spread(guessed: Array, absolute: Array) -> list[float]:
    """Absolute residual as a line of the estimate."""
    centred = guessed - guessed.mean()
    slope = float((centred @ absolute) / (centred @ centred + 1e-9))
    return [float(absolute.mean() - slope * guessed.mean()), slope]


def _quantiles(ordered: Array) -> tuple[float, float]:
    """The 2.5 % and 97.5 % residual, one further out where n is finite (split conformal)."""
    n, tail = len(ordered), (1 - LEVEL) / 2
    below = max(int(np.floor((n + 1) * tail)) - 1, 0)
    return float(ordered[below]), float(ordered[n - 1 - below])


def _measured(found: Fit, table: Array, truth: Array, seed: int) -> Fit:
    """The fit with what it does on rows it has not seen."""
    value, low, high = found.interval(table).T
    curve = []
    rng = np.random.default_rng(seed)
    for rows in np.array_split(np.argsort(value, kind="stable"), min(GROUPS, max(1, len(value) // 10))):
        means = truth[rows][rng.integers(0, len(rows), (1000, len(rows)))].mean(1)
        ends = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        curve.append(
            CurvePoint(float(value[rows].mean()), float(truth[rows].mean()), float(ends[0]), float(ends[1]), len(rows))
        )
    return dataclasses.replace(
        found,
        coverage=float(((low <= truth) & (truth <= high)).mean()),
        width=float((high - low).mean()),
        error=float(np.abs(value - truth).mean()),
        bias_of_mean=float((value - truth).mean()),
        correlation=float(np.corrcoef(value, truth)[0, 1]) if value.std() > 0 and truth.std() > 0 else 0.0,
        curve=curve,
    )


def rounded(value: Any) -> Any:
    """Numbers with six digits behind the point: more are noise."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list | tuple) else value
