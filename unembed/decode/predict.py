"""From the network's hidden states to chosen tokens: guidance, temperature, top-p, and where logits are needed.

Two things decide the cost. The vocabulary is a third of a pass, so logits are computed only at the positions
asked for; and texts with nothing to predict are left out of the pass.

Two things keep a result independent of the batch it was computed in. Random numbers come from a generator for
each text, seeded by its vector; and batches are padded to a multiple of `ROWS`, because a matrix product over
fewer rows adds in another order and its last bits differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from unembed.decode.strategies.base import Prediction

if TYPE_CHECKING:
    from unembed.model.denoiser import Denoiser

# Measured with MKL: from 12 rows on, and at 4 and 8, a row's result does not depend on how many others there are.
ROWS = 4
# Logits of 256 positions over 30,522 tokens are 31 MB: large enough for the product, small enough for the cache.
LOGIT_ROWS = 256


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from its distribution."""

    temperature: float
    top_p: float
    guidance: float
    repeat_penalty: float = 0.0


class Predictor:
    """A batch of texts of one length, with their conditions and random generators."""

    def __init__(self, net: Denoiser, c: Tensor, length: int, keys: list[bytes], sampling: Sampling) -> None:
        self._net, self._c, self._sampling = net, c, sampling
        self._generators = [generator(key) for key in keys]
        self.shape = (len(keys), length)
        self.mask_id = net.config.mask_id
        self.steps = torch.zeros(len(keys), dtype=torch.long)

    @property
    def passes(self) -> Tensor:
        """Forward passes so far, (n,)."""
        return self.steps * (1 if self._sampling.guidance == 1 else 2)

    def uniform(self) -> Tensor:
        """The next L random numbers of every text, on the CPU, (n, L)."""
        return torch.from_numpy(np.stack([g.random(self.shape[1]) for g in self._generators]))

    def predict(self, tokens: Tensor, at: Tensor, *, entropy: bool = False) -> Prediction:
        """Choose a token at every position `at` (n, L)."""
        # Drawn for all texts at every step, so that a text's numbers do not depend on who else is unfinished.
        u = self.uniform()[at].to(self._c.device) if self._sampling.temperature > 0 else torch.zeros(0)
        ids, confidence, entropies = tokens.clone(), torch.zeros(at.shape), torch.zeros(at.shape)
        self.steps += at.any(1)
        chosen, p, h = [], [], []
        for first, logits in self._logits(tokens, at):
            picked = self._choose(logits, u[first : first + len(logits)])
            log_z = logits.logsumexp(1)
            chosen.append(picked)
            p.append((logits.gather(1, picked[:, None])[:, 0] - log_z).exp().clamp(max=1.0))
            h.append(_entropy(logits, log_z) if entropy else torch.zeros(len(logits)))
        if chosen:
            ids[at], confidence[at], entropies[at] = torch.cat(chosen).cpu(), torch.cat(p).cpu(), torch.cat(h).cpu()
        return Prediction(ids, confidence, entropies)

    def log_probability(self, tokens: Tensor, at: Tensor) -> Tensor:
        """Log-probability of the tokens that stand at `at` when exactly those are hidden, (n, L), zero elsewhere."""
        result = torch.zeros(at.shape)
        self.steps += at.any(1)
        truth = tokens[at].to(self._c.device)
        found = [
            (logits.gather(1, truth[first : first + len(logits), None])[:, 0] - logits.logsumexp(1))
            for first, logits in self._logits(tokens.masked_fill(at, self.mask_id), at)
        ]
        if found:
            result[at] = torch.cat(found).cpu()
        return result

    def _logits(self, tokens: Tensor, at: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Logits at the positions `at`, in slices: (first, (m, vocab))."""
        rows = at.any(1).nonzero()[:, 0]
        if not len(rows):
            return
        device, guidance = self._c.device, self._sampling.guidance
        tokens, at = tokens[rows].to(device), at[rows].to(device)
        hidden = self._hidden(tokens, self._c[rows], at)
        said = tokens[at.nonzero()[:, 0]]  # (m, L) for each position asked for, the text it stands in
        free = self._hidden(tokens, None, at) if guidance != 1 else None
        for first in range(0, len(hidden), LOGIT_ROWS):
            logits = self._head(hidden[first : first + LOGIT_ROWS])
            if free is not None:
                without = self._head(free[first : first + LOGIT_ROWS])
                guided = without + guidance * (logits - without)
                logits = guided.masked_fill(logits.isneginf(), -torch.inf)  # -inf - -inf is nan
            if self._sampling.repeat_penalty:
                words = said[first : first + len(logits)]
                taken = torch.full_like(words, -self._sampling.repeat_penalty, dtype=logits.dtype)
                logits = logits.scatter_add(1, words, taken)
            yield first, logits

    def _head(self, hidden: Tensor) -> Tensor:
        return self._net.logits(pad_rows(hidden))[: len(hidden)].float()

    def _hidden(self, tokens: Tensor, c: Tensor | None, at: Tensor) -> Tensor:
        """Hidden states at the positions asked for, (m, width)."""
        n = len(tokens)
        tokens = pad_rows(tokens)
        t = (tokens == self.mask_id).float().mean(1)
        condition = self._net.condition(None, len(tokens)) if c is None else pad_rows(c)
        hidden: Tensor = self._net(tokens, t, condition)[:n]
        return hidden[at]

    def _choose(self, logits: Tensor, u: Tensor) -> Tensor:
        """The most probable token, or the one that the random number u (m,) falls on, (m, vocab) -> (m,)."""
        if self._sampling.temperature == 0:
            return logits.argmax(1)
        p = (logits / self._sampling.temperature).softmax(1)
        if self._sampling.top_p == 1:
            return _at_quantile(p, u)
        p, order = p.sort(dim=1, descending=True, stable=True)
        p = p.masked_fill(p.cumsum(1) - p >= self._sampling.top_p, 0.0)  # the first token always stays
        return order.gather(1, _at_quantile(p, u)[:, None])[:, 0]


def pad_rows(x: Tensor) -> Tensor:
    """Repeat the last row until the number of rows is a multiple of ROWS."""
    missing = -len(x) % ROWS
    return torch.cat([x, x[-1:].expand(missing, *x.shape[1:])]) if missing else x


def key_of(vector: np.ndarray, *numbers: int) -> bytes:
    """What seeds a text's random numbers: its vector and some numbers, never its place in the input."""
    digest = hashlib.blake2b(np.ascontiguousarray(vector, dtype="<f4").tobytes(), digest_size=16)
    digest.update(np.array(numbers, dtype="<u8").tobytes())
    return digest.digest()


def generator(key: bytes) -> np.random.Generator:
    """Random numbers that are the same on every machine."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def _at_quantile(p: Tensor, u: Tensor) -> Tensor:
    """The first index where the cumulated probability exceeds u; never one of probability 0, (m, V), (m,) -> (m,)."""
    cumulated = p.double().cumsum(1)
    total = cumulated[:, -1:]
    return torch.searchsorted(cumulated, u[:, None].clamp(max=1 - 1e-9) * total, right=True)[:, 0]


def _entropy(logits: Tensor, log_z: Tensor) -> Tensor:
    """Entropy in nats; forbidden tokens (-inf) count nothing, (m, V), (m,) -> (m,)."""
    log_p = logits - log_z[:, None]
    return -(log_p.exp() * log_p.clamp(min=-1e4)).sum(1).clamp(max=0)
