"""Euler steps of the reverse process from t = 1 to t = 0, all positions in parallel (paper, section 3.4).

Between t and s < t the reverse process reveals each masked token with probability (t - s) / t. With `steps`
uniform steps that is 1 / (steps left), and 1 at the last: no mask can remain.
"""

from __future__ import annotations

from unembed.decode.config import DecodeConfig
from unembed.decode.strategies.base import Batch, Canvas, Steps


def decode(batch: Batch, config: DecodeConfig) -> Steps:
    """Reveal a random part at each step; which part depends on the vector, and on the seed when drawing."""
    canvas = Canvas(batch)
    for step in range(1, config.steps + 1):
        if canvas.finished:
            return
        yield from euler_step(batch, canvas, config.steps - step + 1)
        yield canvas.state(step)


def euler_step(batch: Batch, canvas: Canvas, steps_left: int) -> Steps:
    """Reveal each masked position with probability 1 / steps_left."""
    at = canvas.masked & (batch.uniform() < 1 / steps_left)
    canvas.reveal(at, (yield from batch.predict(canvas.tokens, at)))
