"""A batch of texts while they are decoded: what a strategy is given.

Random numbers come from a generator for each text, seeded by its vector, so that a result does not depend on the batch
that it was computed in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from unembed.decode.predict import Answer, Ask, Sampling
from unembed.decode.steer import Steer
from unembed.decode.strategies.base import Prediction


class Texts:
    """Texts of one length, with their conditions and random generators."""

    def __init__(
        self, c: Tensor, length: int, keys: list[bytes], sampling: Sampling, mask_id: int, steer: Steer | None = None
    ) -> None:
        self._c, self._sampling, self._steer = c, sampling, steer
        self._keys = keys
        self.shape = (len(keys), length)
        self.mask_id = mask_id
        self.steps = torch.zeros(len(keys), dtype=torch.long)

    @cached_property
    def _generators(self) -> list[np.random.Generator]:
        return [generator(key) for key in self._keys]  # most decodings draw nothing

    @property
    def passes(self) -> Tensor:
        """Forward passes so far, (n,)."""
        return self.steps * (1 if self._sampling.guidance == 1 else 2)

    def uniform(self) -> Tensor:
        """The next L random numbers of every text, (n, L)."""
        return torch.from_numpy(np.stack([g.random(self.shape[1]) for g in self._generators]))

    def predict(self, tokens: Tensor, at: Tensor, *, entropy: bool = False) -> Generator[Ask, Answer, Prediction]:
        """Choose a token at every position `at` (n, L)."""
        # Drawn for all texts at every step, so that a text's numbers do not depend on who else is unfinished.
        u = self.uniform()[at] if self._sampling.temperature > 0 else torch.zeros(int(at.sum()), dtype=torch.double)
        found = yield from self._ask(tokens, at, u, None, entropy)
        zeros = torch.zeros(self.shape)
        if found is None:
            return Prediction(tokens, zeros, zeros)
        return Prediction(
            tokens.masked_scatter(at, found.tokens),
            zeros.masked_scatter(at, found.log_p.exp()),
            zeros.masked_scatter(at, found.entropy) if entropy else zeros,
        )

    def log_probability(self, tokens: Tensor, at: Tensor) -> Generator[Ask, Answer, Tensor]:
        """Log-probability of the tokens that stand at `at` when exactly those are hidden, (n, L), zero elsewhere."""
        log_p, given = torch.zeros(self.shape), tokens[at]
        found = yield from self._ask(
            tokens.masked_fill(at, self.mask_id), at, torch.zeros(len(given)).double(), given, False
        )
        if found is not None:
            log_p[at] = found.log_p
        return log_p

    def foreseen_cosines(self, tokens: Tensor) -> Tensor:
        """How near finished texts (n, L) come, as far as a surrogate can tell; 0 where they are not steered. (n,)."""
        return torch.zeros(len(tokens)) if self._steer is None else self._steer.cosines(tokens).float().cpu()

    def _ask(
        self, tokens: Tensor, at: Tensor, u: Tensor, given: Tensor | None, entropy: bool
    ) -> Generator[Ask, Answer, Answer | None]:
        """Texts with nothing to predict are left out; with none left there is nothing to ask."""
        rows = at.any(1)
        self.steps += rows
        if not rows.any():
            return None
        if rows.all():  # nothing to leave out, as with a single text
            return (yield Ask(tokens, at, self._c, self._sampling, u, given, entropy, self._steer))
        steer = None if self._steer is None else self._steer.of(rows)
        return (yield Ask(tokens[rows], at[rows], self._c[rows], self._sampling, u, given, entropy, steer))


def key_of(vector: np.ndarray, *numbers: int) -> bytes:
    """What seeds a text's random numbers: its vector and some numbers, never its place in the input."""
    digest = hashlib.blake2b(np.ascontiguousarray(vector, dtype="<f4").tobytes(), digest_size=16)
    digest.update(np.array(numbers, dtype="<u8").tobytes())
    return digest.digest()


def generator(key: bytes) -> np.random.Generator:
    """Random numbers that are the same on every machine."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
