"""`results.json`: everything an evaluation found, and all that is needed to find it again."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from unembed.errors import DataError

FORMAT = 1
T = TypeVar("T")


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
    built: Results = _build(Results, values, "results")
    return built


def save(results: Results, path: Path | str) -> None:
    """Write `results.json`, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(to_dict(results), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, "utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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


def _build(kind: Any, value: Any, where: str) -> Any:
    """`value` (from JSON) as an instance of the annotation `kind`."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if type(None) in args:  # X | None
        return None if value is None else _build(args[0], value, where)
    if origin is dict and isinstance(value, dict):
        return {key: _build(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is list and isinstance(value, list):
        return [_build(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        return _build_dataclass(kind, value, where)
    if kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if kind in (int, str) and type(value) is kind:
        return value
    raise DataError(f"{where} is {str(value)[:40]!r}, not a {getattr(origin or kind, '__name__', kind)}")


def _build_dataclass(kind: type[T], value: dict[str, Any], where: str) -> T:
    hints = get_type_hints(kind)
    for key in value:
        if key not in hints:
            raise DataError(f"{where} has an unknown key {key!r}: written by another version of unembed?")
    for key in hints:
        if key not in value:
            raise DataError(f"{where} lacks the key {key!r}: written by another version of unembed?")
    return kind(**{key: _build(hint, value[key], f"{where}.{key}") for key, hint in hints.items()})
