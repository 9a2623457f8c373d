"""The encoder in a thread of its own: loaded when it is there, never asked by decoding.

Texts of clients are embedded one at a time, so that a vector does not depend on who else asks. Recovered texts that
wait to be checked share a call: of their vectors only a rounded cosine goes out.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch

from unembed.data import encoders
from unembed.errors import UnembedError
from unembed.model.artifact import Artifact, check_encoder
from unembed.serve.limits import Limits, Refusal, too_many
from unembed.serve.worker import place_of, use_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.data.encoders import Encoder

log = logging.getLogger(__name__)

REMOTE = "openai:"  # an encoder that sends texts elsewhere is used only when it is named


class Embedding:
    """Texts to vectors. Without the encoder's package everything else of the server works."""

    def __init__(self, spec: str, artifact: Artifact, limits: Limits, idle: Callable[[], bool] | None = None) -> None:
        """`spec` names an encoder; `auto` is the inverter's own, `none` leaves it out; `idle`: nobody decodes now."""
        self._idle, self._threads = idle, torch.get_num_threads()
        self.encoder: Encoder | None = None
        self.problem = ""
        self.loaded = threading.Event()
        self._spec, self._artifact, self._limits = spec, artifact, limits
        self._asked = 0
        self._shares: Counter[str] = Counter()
        self._checks: deque[tuple[str, Future[NDArray[np.float32]]]] = deque()  # recovered texts that wait
        self._thread = ThreadPoolExecutor(1, "unembed-encoder")

    @property
    def name(self) -> str | None:
        """The encoder's spec, None when there is none."""
        return self.encoder.name if self.encoder else None

    def start(self) -> None:
        """Load it, in its thread."""
        self._thread.submit(self._load)

    def stop(self) -> None:
        """Forget what waits."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def encode(self, text: str, client: str = "") -> NDArray[np.float32]:
        """The vector (d,) of a text; without a client it is the server's own question and counts for nobody."""
        if not self.loaded.is_set():
            raise Refusal(503, "not_ready", "the encoder is still loading: try again in a few seconds", 2)
        if self.encoder is None:
            raise Refusal(503, "no_encoder", f"texts cannot be embedded here: {self.problem}")
        if self._asked >= self._limits.encodings:
            raise Refusal(503, "queue_full", f"{self._asked} texts wait for the encoder: try again later", 1)
        if client and self._shares[client] >= self._limits.encodings_share:
            raise too_many(f"{self._limits.encodings_share} texts of yours wait for the encoder")
        self._asked += 1
        self._shares[client] += 1
        try:
            return await asyncio.wrap_future(self._thread.submit(self._encode, text) if client else self._check(text))
        except UnembedError as error:
            log.error("the encoder failed: %s", place_of(error))
            raise Refusal(503, "encoder_failed", "the encoder did not answer: try again later", 10) from None
        finally:
            self._asked -= 1
            self._shares[client] -= 1
            if not self._shares[client]:
                del self._shares[client]

    def _encode(self, text: str) -> NDArray[np.float32]:
        assert self.encoder is not None
        vector: NDArray[np.float32] = self.encoder.encode([text])[0]
        return vector

    def _check(self, text: str) -> Future[NDArray[np.float32]]:
        found: Future[NDArray[np.float32]] = Future()
        self._checks.append((text, found))
        self._thread.submit(self._encode_checks)
        return found

    def _encode_checks(self) -> None:
        """All that wait, in one call; nothing when an earlier one has taken them along."""
        taken = [self._checks.popleft() for _ in range(len(self._checks))]
        waiting = [(text, found) for text, found in taken if found.set_running_or_notify_cancel()]
        if not waiting:
            return
        assert self.encoder is not None
        # Texts that finish together often leave the decoder without work, and its core too.
        use_threads(self._threads if len(waiting) > 1 and self._idle is not None and self._idle() else 1)
        try:
            vectors = list(self.encoder.encode([text for text, _ in waiting]))
        except Exception:  # one of them may have caused it: each is asked alone
            for text, found in waiting:
                try:
                    found.set_result(self._encode(text))
                except Exception as error:
                    found.set_exception(error)
            return
        finally:
            use_threads(1)
        for (_, found), vector in zip(waiting, vectors, strict=True):
            found.set_result(vector)

    def _load(self) -> None:
        use_threads(1)  # a short text gains nothing from a second core, and the decoder would lose it
        try:
            self.encoder = self._open()
        except UnembedError as error:
            self.problem = str(error)
        except Exception as error:  # a third party's encoder may fail in any way; decoding does not need it
            self.problem = f"the encoder does not load ({type(error).__name__}): see the server's log"
            log.error("the encoder does not load: %s", place_of(error))
        self.loaded.set()

    def _open(self) -> Encoder | None:
        spec = self._artifact.encoder.spec if self._spec == "auto" else self._spec
        if spec == "none":
            self.problem = "the server was started without an encoder (--encoder none)"
            return None
        if self._spec == "auto" and spec.startswith(REMOTE):
            self.problem = f"the encoder {spec} is on the network: start the server with --encoder {spec} to use it"
            return None
        encoder = encoders.load(spec)
        check_encoder(self._artifact, dim=encoder.dim, spec=encoder.name, fingerprint=encoder.fingerprint)
        return encoder
