"""Euler steps, each followed by masking the least confident tokens again (paper, section 3.4)."""

from __future__ import annotations

from torch import Tensor

from unembed.decode.config import DecodeConfig
from unembed.decode.strategies.base import Batch, Canvas, Steps, lowest
from unembed.decode.strategies.euler import euler_step


def decode(batch: Batch, config: DecodeConfig) -> Steps:
    """Reveal as Euler does and take back the doubtful; the last step takes nothing back."""
    canvas = Canvas(batch)
    for step in range(1, config.steps + 1):
        if canvas.finished:  # only when nothing was taken back
            return
        steps_left = config.steps - step + 1
        yield from euler_step(batch, canvas, steps_left)
        if steps_left > 1:
            canvas.hide(doubtful(canvas, config))
        yield canvas.state(step)


def doubtful(canvas: Canvas, config: DecodeConfig) -> Tensor:
    """The visible tokens below the threshold, or the least confident share of them (at least one), (n, L)."""
    visible = ~canvas.masked
    if config.remask_threshold is not None:
        return visible & (canvas.confidence < config.remask_threshold)
    count = (visible.sum(1) * config.remask_share).ceil().long()
    return lowest(canvas.confidence, visible, count)
