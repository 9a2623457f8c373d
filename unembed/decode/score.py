"""How good a recovered text is, seen by the network alone: what chooses among lengths and variants."""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from unembed.decode.config import DecodeConfig
from unembed.decode.predict import Answer, Ask
from unembed.decode.strategies.base import State
from unembed.decode.texts import Texts

# 5 to 20 choose about equally well among lengths (docs/LOG.md, tenth session).
COSINE_WEIGHT = 10.0


def score(texts: Texts, state: State, length_log_p: Tensor, config: DecodeConfig) -> Generator[Ask, Answer, Tensor]:
    """Mean log-probability of the tokens, plus those of the length and the foreseen cosine with their weights, (n,)."""
    if config.score == "revealed":
        log_p = state.confidence.clamp(min=1e-9).log()
    else:
        log_p = yield from pseudo_log_likelihood(texts, state.tokens, config.score_passes)
    return log_p.mean(1) + config.length_weight * length_log_p + COSINE_WEIGHT * texts.foreseen_cosines(state.tokens)


def pseudo_log_likelihood(texts: Texts, tokens: Tensor, passes: int) -> Generator[Ask, Answer, Tensor]:
    """Log-probability of every token given the others, each pass hiding every `passes`-th position, (n, L).

    With as many passes as tokens each is judged alone (the pseudo-log-likelihood proper).
    """
    length = tokens.shape[1]
    parts = min(passes, length)
    total = torch.zeros(tokens.shape)
    for part in range(parts):
        at = (torch.arange(length) % parts == part).expand_as(tokens)
        total += yield from texts.log_probability(tokens, at)
    return total
