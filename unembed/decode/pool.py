"""Continuous batching: texts that come and go share the forward passes of all that are there.

Every text runs its own strategy to its own length at its own pace. A round takes the question that each of them has
at that moment, answers all in one pass, and lets each go on to its next question. What an inverter's writer writes has
no such questions: it is written when it comes in, and its steps are fetched in the next round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from unembed.decode.config import WRITER, DecodeConfig, Precision
from unembed.decode.engine import inference, ranked
from unembed.decode.plan import Candidate, Course, Job, Stage, advance, conditions, course, plan
from unembed.decode.predict import Answer, Ask, answer
from unembed.decode.result import Inversion, Step
from unembed.decode.strategies.base import State
from unembed.decode.write import written
from unembed.errors import ConfigError, UnembedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from unembed.decode.vectors import Source
    from unembed.model.denoiser import Denoiser
    from unembed.model.echo import Echo
    from unembed.model.writer import Writer


class PoolFull(UnembedError):
    """All places are taken."""


@dataclass(frozen=True, slots=True)
class Part:
    """One text that is to be decoded for a vector: its length, and whether it is drawn."""

    vector: NDArray[np.float32]  # (1, d)
    c: Tensor  # (1, width)
    job: Job
    config: DecodeConfig


@dataclass(slots=True)
class _Running:
    """One text on its way."""

    course: Course
    precision: Precision
    ask: Ask | None = None
    """What it waits for; None when it has nothing more to ask."""
    done: list[Step] = field(default_factory=list)
    """Steps that nobody has fetched yet."""


class Pool:
    """Running texts, at most `capacity`. Not thread safe: one thread owns it. Made by `Inverter.pool`.

    A text's result is that of `Inverter.stream` with the same settings; only last bits of its confidences may differ,
    as texts of different lengths are padded to the longest.
    """

    def __init__(
        self,
        net: Denoiser,
        capacity: int,
        read: Callable[[Source], NDArray[np.float32]],
        show: Callable[[State, list[Candidate] | None], Step],
        words: Tensor | None = None,
        writer: Writer | None = None,
        echo: Echo | None = None,
    ) -> None:
        """`read` checks a vector, `show` makes of a state what the caller sees; the rest as in `engine.decode`."""
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity}: give a whole number of at least 1")
        self._net, self._read, self._show, self._words, self._writer = net, read, show, words, writer
        self._echo = echo
        self.capacity = capacity
        self._tickets = itertools.count()
        self._running: dict[int, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._running

    def add(self, vector: Source, config: DecodeConfig | None = None) -> int:
        """Take a vector (d,) in, for the next round; returns the ticket that its steps will carry."""
        self._check_room()
        (part,) = self.parts(vector, replace(config or DecodeConfig(), lengths=1, n_best=1))
        return self.add_part(part)

    def parts(self, vector: Source, config: DecodeConfig) -> list[Part]:
        """The texts that `lengths` and `n_best` ask for; `add_part` takes them, `best_of` chooses among the results."""
        row = self._read(vector)[None]
        config = config.resolved(self._writer is not None)
        with inference(self._net, config.precision):
            c = conditions(self._net, row, config)
            if config.strategy == WRITER:
                return [Part(row, c, Job(0, 0, 0.0, 0), config)]
            return [Part(row, c, job, config) for job in plan(self._net, c, config)]

    def add_part(self, part: Part) -> int:
        """Take one text in, for the next round; returns its ticket."""
        self._check_room()
        with inference(self._net, part.config.precision):
            if part.config.strategy == WRITER and self._writer is not None:
                stages = written(self._writer, part.vector, part.config, self._echo)
            else:
                stages = course(self._net, part.vector, part.c, [part.job], part.config, self._words)
            text = _Running(stages, part.config.precision)
            self._go_on(text, None)
        ticket = next(self._tickets)
        self._running[ticket] = text
        return ticket

    def drop(self, ticket: int) -> None:
        """Free its place at once; nothing happens if it has finished or never was."""
        self._running.pop(ticket, None)

    def step(self) -> list[tuple[int, Step]]:
        """One round: one forward pass for all, and the steps that it completed, in order of the tickets.

        The last step of a text holds its `Inversion`; its ticket is gone then. A text that fails, in its strategy or in
        the pass, is dropped and its error raised; the others lose nothing and go on in the next round.
        """
        for precision in sorted({text.precision for text in self._running.values()}):  # nearly always one
            waiting = [(ticket, text) for ticket, text in self._running.items() if text.precision == precision]
            asks = [(ticket, text, text.ask) for ticket, text in waiting if text.ask is not None]
            if not asks:
                continue
            with inference(self._net, precision):
                shared = self._shared([ask for _, _, ask in asks])
                for place, (ticket, text, ask) in enumerate(asks):
                    try:
                        self._go_on(text, shared[place] if shared else answer(self._net, [ask])[0])
                    except BaseException:
                        self.drop(ticket)
                        raise
        return self._fetch()

    def _check_room(self) -> None:
        if len(self) >= self.capacity:
            raise PoolFull(f"all {self.capacity} places are taken: try again when a text has finished")

    def _shared(self, asks: list[Ask]) -> list[Answer] | None:
        """One pass for all; None when it fails, which one of them may have caused: then each is asked alone."""
        try:
            return answer(self._net, asks)
        except Exception:
            return None

    def _go_on(self, text: _Running, found: Answer | None) -> None:
        """Let a text work until it asks the next question or is finished."""
        text.ask = None
        item = advance(text.course, found)
        while isinstance(item, Stage):
            text.done.append(self._show(item.state, item.candidates))
            item = advance(text.course, None)
        text.ask = item

    def _fetch(self) -> list[tuple[int, Step]]:
        steps = []
        for ticket, text in list(self._running.items()):
            steps += [(ticket, step) for step in text.done]
            text.done = []
            if text.ask is None:
                self.drop(ticket)
        return steps


def best_of(found: list[Inversion], n_best: int) -> Inversion:
    """The best of one vector's texts with the next ones as alternatives, ranked as `Inverter.invert` does it."""
    best, *others = ranked(found)[:n_best]
    return replace(best, alternatives=tuple(others)) if others else best
