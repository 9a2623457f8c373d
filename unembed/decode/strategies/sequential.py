"""Left to right. With as many steps as tokens this is the paper's sequential greedy decoding (section 3.4)."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from unembed.decode.config import DecodeConfig
from unembed.decode.strategies.base import Batch, Canvas, State, Steps, quota

if TYPE_CHECKING:
    from unembed.decode.predict import Answer, Ask


def decode(batch: Batch, config: DecodeConfig) -> Steps:
    """Reveal the leftmost masked positions; the network's t is the share that remains masked."""
    yield from left_to_right(batch, Canvas(batch), config.steps)


def left_to_right(batch: Batch, canvas: Canvas, steps: int) -> Generator[Ask | State, Answer, int]:
    """Fill the canvas in at most `steps` steps, in fewer when one token a step is enough; returns how many it took."""
    for step in range(1, steps + 1):
        if canvas.finished:
            return step - 1
        masked = canvas.masked
        at = masked & (masked.cumsum(1) <= quota(masked, steps - step + 1)[:, None])
        canvas.reveal(at, (yield from batch.predict(canvas.tokens, at)))
        yield canvas.state(step)
    return steps
