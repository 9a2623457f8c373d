"""The stages of an audit after the sample is drawn. Each looks first whether the log has its result."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unembed.audit import controls, leak, personal
from unembed.audit.examples import covered, known_parts, side_by_side
from unembed.audit.identify import Identity, identify, usable
from unembed.audit.log import Log, Record
from unembed.audit.stores import shown
from unembed.audit.topics import TopicModel
from unembed.audit.unique import uniqueness
from unembed.data import encoders
from unembed.errors import DataError, EncoderError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.audit.leak import Calibration, Recovered
    from unembed.audit.stores import Sample
    from unembed.data.encoders import Encoder
    from unembed.inverter import Inverter

BATCH = 64
EXAMPLES = 8
CONTROLS = 128
"""Rows of the controls: enough for a mean, few enough to cost little."""


class Stages:
    """What is done with a sample, one stage after the other."""

    def __init__(
        self, log: Log, sample: Sample, inverter: Inverter, home: Path | None, seed: int, *, reveal: bool
    ) -> None:
        self.log, self.sample, self.inverter, self.home = log, sample, inverter, home
        self.seed, self.reveal = seed, reveal
        self.decoding = inverter.decoding()
        self.vectors: NDArray[np.float32] | None = None
        """As the inverter reads them; None if it cannot."""
        self.encoder: Encoder | None = None
        self.calibration: Calibration | None = None
        self.uncalibrated: str | None = None
        """Why there is no calibration, where there should be one."""
        self.topics: TopicModel | None = None
        self._found: dict[int, Recovered] = {}  # of this run; the log has them with personal data covered

    def identify(self, told: str | None, *, named: bool) -> None:
        """Find the encoder, and bring the vectors into the form that the inverter reads.

        Args:
            told: the encoder, if the user knows it.
            named: whether the user named the inverter.
        """
        began = time.perf_counter()
        identity = identify(self.sample, told=told, inverter=self.inverter, seed=self.seed)
        why_not, notes = self._prepare(identity, named)
        if why_not is None:
            self.calibration, self.uncalibrated = leak.Calibration.fitting(self.home, self.decoding)
        if self.encoder is not None:
            self.topics = TopicModel.build(self.encoder)
        if self.log.stage("method") is None:
            told = told or ""
            self._write("identity", began, **_without_keys(dataclasses.asdict(identity), told))
            self._write("method", None, **_without_keys(self._method(why_not, notes), told))

    def _prepare(self, identity: Identity, named: bool) -> tuple[str | None, list[str]]:
        """(why nothing can be recovered, or None; remarks)."""
        reads, remarks = self.inverter.encoder.spec, []
        if identity.encoder is None and not named:
            return "the encoder of these vectors is not known", []
        if identity.encoder is None:
            remarks.append("The inverter was named; the vectors do not tell whether they are of its encoder.")
        elif identity.encoder != reads:
            return f"these are vectors of {identity.encoder}, and the inverter reads those of {reads}", []
        try:
            self.vectors, notes = usable(self.sample.vectors, identity, self.inverter.dim)
        except DataError as error:
            return str(error), []
        try:
            self.encoder = encoders.load(reads)
        except EncoderError as error:
            remarks.append(f"Recovered texts were not embedded again, and topics not looked for: {error}.")
        return None, [*notes, *remarks]

    def _method(self, why_not: str | None, notes: list[str]) -> Record:
        fit = None if self.calibration is None else self.calibration.fit_for(self.encoder is not None)
        kept = ("n", "checked", "coverage", "width", "error", "bias_of_mean", "correlation", "curve")
        return {
            "why_not": why_not,
            "notes": notes,
            "reads": self.inverter.encoder.spec,
            "inverter": self.log.records[0]["inverter"],
            "weights": self.log.records[0]["weights"],
            "max_tokens": self.inverter.max_tokens,
            "decode": dataclasses.asdict(self.decoding),
            "asked": "0 times to recover; afterwards once a text, for the cosine" if self.encoder else "never",
            "uncalibrated": self.uncalibrated,
            "calibration": None if fit is None else {key: dataclasses.asdict(fit)[key] for key in kept},
        }

    def recover(self) -> Iterator[int]:
        """Invert the vectors, a batch at a time, and write down what each gave; yields how many are done."""
        if self.vectors is None:
            return
        done = {record["row"] for record in self.log.records if record["kind"] == "vector"}
        examples = set(self._drawn(EXAMPLES))  # the rows that the report shows
        for start in range(0, len(self.vectors), BATCH):
            yield start
            rows = [row for row in range(start, min(start + BATCH, len(self.vectors))) if row not in done]
            if rows:
                began = time.perf_counter()
                records = self._batch(rows, examples)
                each = round((time.perf_counter() - began) / len(rows), 4)
                self.log.append({**record, "seconds": each} for record in records)
        yield len(self.vectors)

    def _drawn(self, count: int) -> list[int]:
        """Some rows, drawn at random, from those with text if there are any."""
        rows = [row for row, text in enumerate(self.sample.texts) if text] or list(range(len(self.sample.texts)))
        drawn: list[int] = np.random.default_rng(self.seed).permutation(rows)[:count].tolist()
        return drawn

    def _batch(self, rows: list[int], examples: set[int]) -> list[Record]:
        texts = [self.sample.texts[row] for row in rows]
        found = self._recovered(rows)
        self._found.update(zip(rows, found, strict=True))
        tokens = leak.tokens_of(self.inverter.artifact.tokenizer, [text or "" for text in texts])
        topics = self._topics(rows)
        return [
            {
                "kind": "vector",
                "row": row,
                **self._about(row, one, row in examples),
                "tokens": len(tokens[place]) or len(one.confidence),
                "topics": topics[place],
            }
            for place, (row, one) in enumerate(zip(rows, found, strict=True))
        ]

    def _recovered(self, rows: Sequence[int]) -> list[Recovered]:
        assert self.vectors is not None
        return leak.recover(
            self.inverter,
            self.vectors[list(rows)],
            [self.sample.texts[row] for row in rows],
            encoder=self.encoder,
            calibration=self.calibration,
            config=self.decoding,
        )

    def _topics(self, rows: list[int]) -> list[dict[str, float] | None]:
        if self.topics is None or self.vectors is None:
            return [None] * len(rows)
        table = self.topics.probabilities(self.vectors[rows])
        return [dict(zip(self.topics.names, np.round(row, 3).tolist(), strict=True)) for row in table]

    def _about(self, row: int, one: Recovered, example: bool) -> Record:
        """One line of the log; what is personal in it is covered, unless it is to be revealed."""
        text, name = self.sample.texts[row], self.sample.ids[row]
        found, again = personal.find(text) if text else [], personal.find(one.text)
        parts = known_parts(text or "", found)
        sides = side_by_side(text or "", one.text, found, again, reveal=self.reveal) if example else None
        return {
            "id": covered(name, personal.find(name), {}, reveal=self.reveal),
            "text": covered(one.text, again, parts, reveal=self.reveal),
            "score": round(one.score, 4),
            "confidence": round(float(np.mean(one.confidence)) if one.confidence else 0.0, 4),
            "cosine": _rounded(one.cosine),
            "estimate": _rounded(one.estimate),
            "low": _rounded(one.low),
            "high": _rounded(one.high),
            "truth": None if one.truth is None else {key: round(value, 4) for key, value in one.truth.items()},
            "personal": _counts(text, one.text),
            "pieces": None if sides is None else {"original": sides[0] if text else None, "recovered": sides[1]},
        }

    def feedback(self, count: int) -> None:
        """Recover some rows once more, now asking the encoder: what somebody who has it, too, would get."""
        if not count or self.vectors is None or self.encoder is None or self.log.stage("feedback") is not None:
            return
        began = time.perf_counter()
        rows = self._drawn(count)
        found = self.inverter.invert(self.vectors[rows], self.decoding, encoder=self.encoder)
        texts = [self.sample.texts[row] for row in rows]
        scores = leak.truth(self.inverter.artifact.tokenizer, texts, found, None, None)
        self._write(
            "feedback",
            began,
            rows=rows,
            truth=[None if one is None else {key: round(value, 4) for key, value in one.items()} for one in scores],
            cosine=[_rounded(one.cosine) for one in found],
            queries=max(one.queries + one.gradients for one in found),
        )

    def uniqueness(self) -> None:
        """Near-duplicates and links among the sampled vectors."""
        if self.log.stage("uniqueness") is None:
            began = time.perf_counter()
            found = uniqueness(self.sample.vectors, seed=self.seed)
            pairs = [[int(first), int(second), round(closeness, 4)] for first, second, closeness in found.pairs]
            self._write("uniqueness", began, **{**dataclasses.asdict(found), "pairs": pairs})

    def controls(self) -> None:
        """The same with random vectors, and with what came back of other rows."""
        if self.vectors is None or self.log.stage("controls") is not None:
            return
        began = time.perf_counter()
        rows = np.random.default_rng(self.seed).permutation(len(self.vectors))[:CONTROLS].tolist()
        missing = [row for row in rows if row not in self._found]  # recovered by an earlier run
        self._found.update(zip(missing, self._recovered(missing), strict=True))
        found = controls.controls(
            self.inverter,
            self.vectors[rows],
            [self.sample.texts[row] for row in rows],
            [self._found[row] for row in rows],
            encoder=self.encoder,
            find=personal.find,
            config=self.decoding,
            seed=self.seed,
        )
        self._write("controls", began, **found)

    def _write(self, kind: str, began: float | None, **values: Any) -> None:
        seconds = {} if began is None else {"seconds": round(time.perf_counter() - began, 3)}
        self.log.append([{"kind": kind, **seconds, **values}])


def _without_keys(value: Any, told: str) -> Any:
    """Plain values without the credentials that an encoder's address may hold."""
    if isinstance(value, str):
        hidden = value.replace(told, shown(told)) if told else value
        return re.sub(r"//[^/@\s]+@", "//***@", hidden)
    if isinstance(value, dict):
        return {key: _without_keys(one, told) for key, one in value.items()}
    return [_without_keys(one, told) for one in value] if isinstance(value, list | tuple) else value


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _counts(original: str | None, recovered: str) -> dict[str, dict[str, int]]:
    """Numbers of values by kind: in the original, in the recovered text, and in both."""
    scores = personal.compare([original or ""], [recovered])
    return {
        name: {kind: count for kind, score in scores.items() if (count := getattr(score, name))}
        for name in ("stored", "found", "right")
    }
