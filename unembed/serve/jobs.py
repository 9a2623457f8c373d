"""A request on its way through the worker, and the messages that its mailbox gets."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from unembed.decode import DecodeConfig, Inversion, Step
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
    submitted: float = field(default_factory=time.monotonic)
    mailbox: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    position: int = -1
    begun: float = 0.0  # when its first text got a place
    started: int = 0  # texts that got a place so far
    results: dict[int, Inversion] = field(default_factory=dict)
    gone: bool = False  # its client went away
    over: bool = False  # it has had its last message

    @property
    def in_slices(self) -> bool:
        """The pool gives one text for a vector; for more the batch decoder is called, a vector at a time."""
        return self.config.n_best > 1
