"""How good a recovered text is, seen by the network alone: what chooses among lengths and variants."""

from __future__ import annotations

import torch
from torch import Tensor

from unembed.decode.config import DecodeConfig
from unembed.decode.predict import Predictor
from unembed.decode.strategies.base import State


def score(batch: Predictor, state: State, length_log_p: Tensor, config: DecodeConfig) -> Tensor:
    """Mean log-probability of the tokens plus the weighted log-probability of the length, (n,)."""
    if config.score == "revealed":
        log_p = state.confidence.clamp(min=1e-9).log()
    else:
        log_p = pseudo_log_likelihood(batch, state.tokens, config.score_passes)
    return log_p.mean(1) + config.length_weight * length_log_p


def pseudo_log_likelihood(batch: Predictor, tokens: Tensor, passes: int) -> Tensor:
    """Log-probability of every token given the others, each pass hiding every `passes`-th position, (n, L).

    With as many passes as tokens each is judged alone (the pseudo-log-likelihood proper).
    """
    length = tokens.shape[1]
    parts = min(passes, length)
    total = torch.zeros(tokens.shape)
    for part in range(parts):
        at = (torch.arange(length) % parts == part).expand_as(tokens)
        total += batch.log_probability(tokens, at)
    return total
