"""Encoder feedback behind a decoding: a search in a thread of its own, one at a time, and few that wait.

A search asks the encoder many times, so there is none with an encoder on the network.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from unembed.decode import DecodeConfig, Inversion
from unembed.decode.feedback import FeedbackConfig
from unembed.errors import EncoderError
from unembed.serve.embedding import REMOTE, Embedding
from unembed.serve.limits import Limits, Refusal, internal, stopping, too_long, too_many
from unembed.serve.worker import blame, use_threads

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unembed.inverter import Inverter

Letter: TypeAlias = "Inversion | Refusal | None"
"""A better text than the last; what went wrong; or the end."""
Tell: TypeAlias = Callable[[Letter], None]
Look: TypeAlias = Callable[..., None]
"""Raises when the search shall end."""


class Searches:
    """Searches for texts that come closer to their vectors than the decoded ones."""

    def __init__(self, inverter: Inverter, embedding: Embedding, limits: Limits) -> None:
        self._inverter, self._embedding, self._limits = inverter, embedding, limits
        self._thread = ThreadPoolExecutor(1, "unembed-search")
        self._shares: Counter[str] = Counter()
        self._working = False
        self._stopping = threading.Event()

    @property
    def possible(self) -> bool:
        """Whether there is an encoder that may be asked often."""
        return self._embedding.encoder is not None and not self._embedding.encoder.name.startswith(REMOTE)

    @property
    def idle(self) -> bool:
        """Whether nobody searches."""
        return not self._shares.total() and not self._working

    def stop(self) -> None:
        """End what runs at its next question; what waits starts, and hears of it at once."""
        self._stopping.set()
        self._thread.shutdown(wait=False)

    def reserve(self, client: str) -> None:
        """Take a place, or say why there is none; `release` gives it back."""
        if not self.possible:
            raise Refusal(422, "no_feedback", "this server has no encoder to ask on the way: send feedback false")
        if self._shares[client] >= self._limits.searches_share:
            raise too_many(f"{self._shares[client]} searches of yours wait or run", 10)
        if self._shares.total() >= self._limits.searches:
            raise Refusal(503, "queue_full", f"{self._limits.searches} searches wait or run: try again later", 10)
        self._shares[client] += 1

    def release(self, client: str) -> None:
        """Give a place back."""
        self._shares[client] -= 1
        if not self._shares[client]:
            del self._shares[client]

    async def improve(
        self, vector: NDArray[np.float32], config: DecodeConfig, expires: float
    ) -> AsyncIterator[Inversion | Refusal]:
        """Better and better texts for a vector (d,); stops when nobody listens any more, or with a refusal."""
        loop, mailbox, gone = asyncio.get_running_loop(), asyncio.Queue[Letter](), threading.Event()

        def tell(letter: Letter) -> None:
            try:
                loop.call_soon_threadsafe(mailbox.put_nowait, letter)
            except RuntimeError:  # the loop is closed: nobody listens
                gone.set()

        def look(*_: object) -> None:
            if self._stopping.is_set():
                raise stopping()
            if gone.is_set() or time.monotonic() > expires:
                raise too_long()

        def work() -> None:
            self._working = True
            try:
                self._work(vector, config, tell, look)
            finally:
                self._working = False

        try:
            self._thread.submit(work)
        except RuntimeError:  # after `stop`
            yield stopping()
            return
        try:
            while (letter := await asyncio.wait_for(mailbox.get(), expires - time.monotonic())) is not None:
                yield letter
        except TimeoutError:  # it may still wait for others
            yield too_long()
        finally:
            gone.set()

    def _work(self, vector: NDArray[np.float32], config: DecodeConfig, tell: Tell, look: Look) -> None:
        use_threads(1)  # the decoder needs the others
        encoder = self._embedding.encoder
        assert encoder is not None
        best: Inversion | None = None
        feedback = FeedbackConfig(budget=self._limits.search_budget, seed=config.seed)
        try:
            look()
            for _, found in self._inverter.search(
                vector[None],
                encoder,
                replace(config, n_best=1),
                feedback=feedback,
                progress=look,
                improved=lambda _, better: tell(better),
            ):
                best = found
                tell(best)
        except Refusal as refusal:
            tell(refusal)
        except EncoderError:
            if best is None or best.cosine is None:  # else the best so far is the answer
                tell(Refusal(503, "encoder_failed", "the encoder did not answer: try again later", 10))
        except Exception as error:
            tell(blame(error))
        except BaseException:
            tell(internal())
            raise
        tell(None)
