"""`audit.jsonl`: the log of an audit, appended to as the work goes on, so that a killed audit can go on.

The first line is the configuration. Then, in any order: one line for each vector and each vector of the random control,
one for the identification, one for the sample as a whole, and `end` when all is there. The log holds the texts as they
are, so only its owner may read it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unembed.data.shards import same_settings
from unembed.errors import DataError, UnembedError
from unembed.typed import build

FORMAT = 1
NAME = "audit.jsonl"


@dataclass(frozen=True, slots=True)
class Place:
    """Personal data of this type from character `start` to `end` of a text."""

    type: str
    start: int
    end: int
    score: float


@dataclass(frozen=True, slots=True)
class Guess:
    """Estimated token F1 with its 90 % interval, for one vector."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Scores:
    """A stored text against a recovered one."""

    exact: bool
    token_f1: float
    rouge_l: float


@dataclass(frozen=True, slots=True)
class Config:
    """What the audit is."""

    settings: dict[str, Any]
    """All that decides the results: an audit with other settings is another audit."""
    about: dict[str, Any]
    """What a reader wants to know besides: store, sample, versions, command, date."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Known:
    """Which encoder made the vectors (as `identify.Identification`), and what can be done with it."""

    encoder: str | None
    sure: float
    why: list[str]
    normalised: bool
    form: str
    full_dim: int | None
    advice: str
    at_hand: bool
    """Whether the encoder was there to embed the recovered texts."""
    inverted: bool
    """Whether the inverter is one for these vectors, so that they were inverted."""
    calibrated: bool
    """Whether the recovery could be estimated without the stored text."""
    notes: list[str]


@dataclass(frozen=True, slots=True)
class Row:
    """One sampled vector."""

    row: int
    """Place in the sample."""
    id: str
    stored: str | None
    stored_tokens: int | None
    recovered: str | None
    recovered_tokens: int | None
    cosine: float | None
    """Of the stored vector with that of the recovered text."""
    scores: Scores | None
    guess: Guess | None
    in_stored: list[Place]
    in_recovered: list[Place]
    topics: dict[str, float]
    other_row: int | None = None
    """The shuffled control: another row, drawn at random."""
    other_f1: float | None = None
    """Token F1 of that row's stored text with the text recovered here."""
    other_cosine: float | None = None
    """Of that row's vector with the text recovered here."""
    other_alike: float | None = None
    """Token F1 of the two recovered texts."""


@dataclass(frozen=True, slots=True)
class Random:
    """One random vector, treated like a sampled one."""

    row: int
    """Its stored text is that of this row of the sample."""
    recovered: str
    cosine: float | None
    token_f1: float | None
    guess: Guess | None
    in_recovered: list[Place]


@dataclass(frozen=True, slots=True)
class Whole:
    """The sample as a whole (as `unique.Uniqueness`)."""

    uniqueness: dict[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """The audit is complete."""

    date: str


KINDS: dict[str, type] = {
    "config": Config, "encoder": Known, "vector": Row, "random": Random, "sample": Whole, "end": End,
}  # fmt: skip
NAMES = {kind: name for name, kind in KINDS.items()}


@dataclass(slots=True)
class Content:
    """The log in memory."""

    config: Config
    encoder: Known | None = None
    rows: dict[int, Row] = field(default_factory=dict)
    random: dict[int, Random] = field(default_factory=dict)
    whole: Whole | None = None
    end: End | None = None

    def take(self, record: Any) -> None:
        """Add a record."""
        if isinstance(record, Row):
            self.rows[record.row] = record
        elif isinstance(record, Random):
            self.random[record.row] = record
        elif isinstance(record, Known):
            self.encoder = record
        elif isinstance(record, Whole):
            self.whole = record
        elif isinstance(record, End):
            self.end = record


class Log:
    """An open log: what is in it, and a way to add to it."""

    def __init__(self, folder: Path, config: Config) -> None:
        """Begin a log, or go on with the one that is there if it is of the same audit."""
        self.path = folder / NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = _cut(self.path) if self.path.exists() else b""
        except OSError as error:
            raise unwritable(error, self.path) from None
        if found:
            self.content = _parse(found, self.path)
            same_settings(folder, self.content.config.settings, config.settings)
        else:
            self.content = Content(config)
            self._write(_line(config), "x" if not self.path.exists() else "a")

    def add(self, records: Sequence[Any]) -> None:
        """Append records; they are on the disk when this returns."""
        self._write("".join(map(_line, records)), "a")
        for record in records:
            self.content.take(record)

    def _write(self, text: str, mode: str) -> None:
        try:
            with open(self.path, mode, encoding="ascii", opener=_private) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unwritable(error, self.path) from None


def read(folder: Path) -> Content:
    """The log of a folder, which may be of an audit that is still going on."""
    path = folder / NAME
    try:
        found = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{folder} holds no audit: make one with `unembed audit SOURCE -o {folder}`") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check that you may read it") from None
    whole = found[: found.rfind(b"\n") + 1]
    if not whole:
        raise DataError(f"{path} is empty: run the audit again")
    return _parse(whole, path)


def unwritable(error: OSError, path: Path) -> UnembedError:
    """The one line about a file that cannot be written: a full disk, no permission."""
    return DataError(
        f"{path} cannot be written ({error.strerror or error}): free the disk or check the folder, then run the same "
        "command again; what was done is kept"
    )




def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _cut(path: Path) -> bytes:
    """The whole lines; what a kill left of the last one is removed from the file."""
    with path.open("rb+") as file:
        found = file.read()
        end = found.rfind(b"\n") + 1
        file.truncate(end)
    return found[:end]


def _line(record: Any) -> str:
    # ASCII: a stored text may hold what UTF-8 cannot.
    return json.dumps({"kind": NAMES[type(record)], **dataclasses.asdict(record)}, allow_nan=False) + "\n"


def _parse(found: bytes, path: Path) -> Content:
    lines = found.split(b"\n")[:-1]
    config = _record(lines[0], 1, path)
    if not isinstance(config, Config):
        raise DataError(f"{path} does not begin with a configuration: it is no log of an audit; choose another folder")
    content = Content(config)
    for record in _records(lines[1:], path):
        content.take(record)
    return content


def _records(lines: Iterable[bytes], path: Path) -> Iterable[Any]:
    return (_record(line, number, path) for number, line in enumerate(lines, 2))


def _record(line: bytes, number: int, path: Path) -> Any:
    again = "delete the folder and run the audit again"
    try:
        values = json.loads(line)
        kind = KINDS[values.pop("kind")]
    except (ValueError, KeyError, AttributeError, TypeError):
        raise DataError(f"{path}, line {number} is damaged: {again}") from None
    if kind is Config and values.get("format") != FORMAT:
        raise DataError(f"{path} is of format {values.get('format')!r}, expected {FORMAT}: {again}")
    return build(kind, values, f"{path}, line {number}", DataError)
