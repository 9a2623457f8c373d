"""Continuous batching: texts that come and go share the forward passes of all that are there.

Every text runs its own strategy to its own length at its own pace. A round takes the question that each of them has
at that moment, answers all in one pass, and lets each go on to its next question.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unembed.decode.config import DecodeConfig, Precision
from unembed.decode.engine import inference, single
from unembed.decode.plan import Candidate, Course, Stage, advance
from unembed.decode.predict import Answer, Ask, answer
from unembed.decode.result import Step
from unembed.decode.strategies.base import State
from unembed.errors import ConfigError, UnembedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unembed.decode.vectors import Source
    from unembed.model.denoiser import Denoiser


class PoolFull(UnembedError):
    """All places are taken."""


@dataclass(slots=True)
class _Running:
    """One text on its way."""

    course: Course
    precision: Precision
    ask: Ask | None = None
    """What it waits for; None when it has nothing more to ask."""
    done: list[Stage] = field(default_factory=list)
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
        show: Callable[[State, Candidate | None], Step],
    ) -> None:
        """`read` checks a vector, `show` makes of a state what the caller sees."""
        if capacity < 1:
            raise ConfigError(f"capacity is {capacity}: give a whole number of at least 1")
        self._net, self._read, self._show = net, read, show
        self.capacity = capacity
        self._tickets = itertools.count()
        self._running: dict[int, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._running

    def add(self, vector: Source, config: DecodeConfig | None = None) -> int:
        """Take a vector (d,) in, for the next round; returns the ticket that its steps will carry."""
        if len(self) >= self.capacity:
            raise PoolFull(f"all {self.capacity} places are taken: try again when a text has finished")
        config = config or DecodeConfig()
        text = _Running(single(self._net, self._read(vector), config), config.precision)
        self._go_on(text, None)
        ticket = next(self._tickets)
        self._running[ticket] = text
        return ticket

    def drop(self, ticket: int) -> None:
        """Free its place at once; nothing happens if it has finished or never was."""
        self._running.pop(ticket, None)

    def step(self) -> list[tuple[int, Step]]:
        """One round: one forward pass for all, and the steps that it completed, in order of the tickets.

        The last step of a text holds its `Inversion`; its ticket is gone then. A text whose strategy fails is dropped
        and its error raised; the others lose nothing and go on in the next round.
        """
        for precision in sorted({text.precision for text in self._running.values()}):  # nearly always one
            waiting = [(ticket, text) for ticket, text in self._running.items() if text.precision == precision]
            asks = [(ticket, text, text.ask) for ticket, text in waiting if text.ask is not None]
            if not asks:
                continue
            with inference(self._net, precision):
                answers = answer(self._net, [ask for _, _, ask in asks])
            for (ticket, text, _), found in zip(asks, answers, strict=True):
                try:
                    self._go_on(text, found)
                except BaseException:
                    self.drop(ticket)
                    raise
        return self._fetch()

    def _go_on(self, text: _Running, found: Answer | None) -> None:
        """Let a text work until it asks the next question or is finished."""
        with inference(self._net, text.precision):
            text.ask = None
            item = advance(text.course, found)
            while isinstance(item, Stage):
                text.done.append(item)
                item = advance(text.course, None)
            text.ask = item

    def _fetch(self) -> list[tuple[int, Step]]:
        steps = []
        for ticket, text in list(self._running.items()):
            for stage in text.done:
                steps.append((ticket, self._show(stage.state, stage.candidates[0] if stage.candidates else None)))
            text.done = []
            if text.ask is None:
                self.drop(ticket)
        return steps
