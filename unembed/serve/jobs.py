"""A request on its way through the worker, and the messages that its mailbox gets."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from unembed.decode import DecodeConfig, Inversion, Step
from unembed.decode.pool import Part, best_of
from unembed.serve.limits import Refusal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Queued:
    """The place in the line; 0 means that decoding starts."""

    position: int
    expected_wait: float  # seconds


@dataclass(frozen=True, slots=True)
class Stepped:
    """One denoising step."""

    step: Step
    seconds: float  # since the start of decoding


@dataclass(frozen=True, slots=True)
class Finished:
    """All results of a job."""

    results: list[Inversion]
    waited: float
    seconds: float


Message: TypeAlias = "Queued | Stepped | Finished | Refusal"


@dataclass(eq=False, slots=True)
class Job:
    """One request: vectors to decode, and the mailbox that hears of it. A live one hears of every step."""

    vectors: NDArray[np.float32]  # (n, d)
    config: DecodeConfig
    client: str
    live: bool
    expires: float
    feedback: bool = False  # whether a search follows
    submitted: float = field(default_factory=time.monotonic)
    mailbox: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    position: int = -1
    begun: float = 0.0  # when its first text got a place
    started: int = 0  # vectors whose texts are known so far
    parts: deque[tuple[int, Part]] = field(default_factory=deque)  # texts that have no place yet, and of which vector
    missing: dict[int, int] = field(default_factory=dict)  # how many texts of a vector are not decoded yet
    found: dict[int, list[Inversion]] = field(default_factory=dict)
    gone: bool = False  # its client went away
    over: bool = False  # it has had its last message

    @property
    def begun_all(self) -> bool:
        """Whether every text has or had a place."""
        return self.started == len(self.vectors) and not self.parts

    @property
    def done(self) -> bool:
        """Whether every text is decoded."""
        return self.begun_all and not any(self.missing.values())

    def expect(self, parts: list[Part]) -> None:
        """The texts that the next vector takes: one, or for n-best some lengths and variants."""
        self.parts.extend((self.started, part) for part in parts)
        self.missing[self.started], self.found[self.started] = len(parts), []
        self.started += 1

    def take(self, which: int, found: Inversion) -> None:
        """A text of this vector is decoded."""
        self.found[which].append(found)
        self.missing[which] -= 1
        if not self.missing[which]:
            self.found[which] = [best_of(self.found[which], self.config.n_best)]

    def results(self) -> list[Inversion]:
        """One for each vector, when all are decoded."""
        return [self.found[which][0] for which in range(len(self.vectors))]
