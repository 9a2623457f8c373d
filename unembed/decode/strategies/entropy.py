"""As many tokens at each step as an entropy bound allows: easy texts take few steps, hard ones many.

Tokens revealed together are drawn as if independent. The error of that is at most the sum of their entropies
without the largest, so positions are taken in order of entropy while that sum stays within the bound.
"""

from __future__ import annotations

import torch

from unembed.decode.config import DecodeConfig
from unembed.decode.strategies.base import Batch, Canvas, Steps, lowest, quota


def decode(batch: Batch, config: DecodeConfig) -> Steps:
    """Reveal within the bound, but never so few that `steps` would not suffice."""
    canvas = Canvas(batch)
    for step in range(1, config.steps + 1):
        if canvas.finished:
            return
        masked = canvas.masked
        prediction = yield from batch.predict(canvas.tokens, masked, entropy=True)
        ordered = prediction.entropy.masked_fill(~masked, torch.inf).sort(1).values
        before = ordered.cumsum(1) - ordered  # the sum without the largest; inf - inf = nan compares as False
        allowed = (before <= config.entropy_bound).sum(1)
        count = torch.maximum(allowed, quota(masked, config.steps - step + 1))
        canvas.reveal(lowest(prediction.entropy, masked, count), prediction)
        yield canvas.state(step)
