"""`results.json`: everything an evaluation found, and all that is needed to find it again."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unembed.data.shards import write_whole
from unembed.errors import DataError
from unembed.typed import build

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its bootstrap 95 % interval, over n texts."""

    value: float
    low: float
    high: float
    n: int


Scores = dict[str, Estimate]


@dataclass(frozen=True, slots=True)
class Sample:
    """One text and what came back; drawn at random, so good and bad."""

    original: str
    recovered: str
    source: str
    token_accuracy: float
    cosine: float | None


@dataclass(frozen=True, slots=True)
class SystemResult:
    """The scores of one way to recover texts."""

    name: str
    kind: str
    """`inverter`, `baseline`, or `reference` (the originals themselves: the ceiling)."""
    description: str
    settings: dict[str, Any]
    overall: Scores
    by_source: dict[str, Scores]
    by_length: dict[str, Scores]
    seconds_per_text: float
    passes_per_text: float | None
    """Forward passes of the denoiser that one text took, each candidate and guidance pass counted; None: no net."""
    samples: list[Sample]
    without_copies: Scores | None = None
    """Over the texts that are not near copies of training texts; None if that was not looked for."""


@dataclass(frozen=True, slots=True)
class NearCopies:
    """How close the evaluated texts are to the training texts."""

    n: int
    training_texts: int
    cosine_quantiles: dict[str, float]
    """Quantiles of the cosine to the nearest training text: `0.05` to `1.0`."""
    f1_threshold: float
    copies: int
    """Texts whose nearest training text has a token F1 above the threshold."""
    cosine_threshold: float | None = None
    cosine_copies: int | None = None
    """Texts whose nearest training text has a cosine above the threshold."""
    left_out: int | None = None
    """Near copies by either: the texts that are left out of `SystemResult.without_copies`."""


@dataclass(frozen=True, slots=True)
class Results:
    """One evaluation: several systems on the same texts."""

    split: str
    n: int
    seed: int
    resamples: int
    systems: list[SystemResult]
    near_copies: NearCopies | None
    notes: list[str]
    """What a reader must know: a split that was trained on, a metric that was left out."""
    bleu_signature: str
    perplexity_model: str | None
    encoder: dict[str, str]
    """`name` and `fingerprint` of the encoder that re-embedded the texts."""
    weights: str
    """sha256 of the inverter's weights."""
    dataset: str
    """Fingerprint of the dataset."""
    versions: dict[str, str]
    machine: dict[str, str]
    command: str
    date: str
    format: int = field(default=FORMAT)

    def system(self, name: str) -> SystemResult:
        """The system of that name."""
        for system in self.systems:
            if system.name == name:
                return system
        known = ", ".join(system.name for system in self.systems)
        raise DataError(f"these results hold no system {name!r}: choose one of {known}")


def to_dict(results: Results) -> dict[str, Any]:
    """Plain values, for JSON."""
    return dataclasses.asdict(results)


def from_dict(values: dict[str, Any]) -> Results:
    """Rebuild results; an unknown or missing key or a value of another kind is an error."""
    if isinstance(values, dict) and values.get("format") != FORMAT:
        raise DataError(f"results of format {values.get('format')!r}, expected {FORMAT}: run `unembed evaluate` again")
    return build(Results, values, "results", DataError)


def save(results: Results, path: Path | str) -> None:
    """Write `results.json`, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(to_dict(results), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, lambda part: part.write_text(text, "utf-8"))


def load(path: Path | str) -> Results:
    """Read a `results.json`."""
    try:
        values = json.loads(Path(path).read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(f"no results at {path}: make them with `unembed evaluate -o {path}`") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} is not JSON ({error}): make it again with `unembed evaluate`") from None
    try:
        return from_dict(values)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
