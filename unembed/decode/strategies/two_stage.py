"""A hypothesis left to right, then Euler steps that start from it (paper, section 3.4)."""

from __future__ import annotations

import math

import torch

from unembed.decode.config import DecodeConfig
from unembed.decode.strategies.base import Batch, Canvas, Steps, lowest
from unembed.decode.strategies.euler import euler_step
from unembed.decode.strategies.sequential import left_to_right


def decode(batch: Batch, config: DecodeConfig) -> Steps:
    """Two thirds of the steps write the text; the last third masks its least confident part and decodes it anew."""
    canvas = Canvas(batch)
    refining = config.steps // 3
    writing = config.steps - refining
    step = yield from left_to_right(batch, canvas, writing)
    if not refining:
        return
    n, length = batch.shape
    count = torch.full((n,), math.ceil(config.refine_share * length))
    canvas.hide(lowest(canvas.confidence, ~canvas.masked, count))
    for steps_left in range(refining, 0, -1):
        if canvas.finished:
            return
        step += 1
        yield from euler_step(batch, canvas, steps_left)
        yield canvas.state(step)
