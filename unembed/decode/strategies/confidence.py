"""The most certain tokens first, an equal number at each step."""

from __future__ import annotations

from unembed.decode.config import DecodeConfig
from unembed.decode.strategies.base import Batch, Canvas, Steps, highest, quota, surest_claims


def decode(batch: Batch, config: DecodeConfig) -> Steps:
    """Predict all masked positions, keep the k most confident, mask the rest again."""
    canvas = Canvas(batch)
    for step in range(1, config.steps + 1):
        if canvas.finished:
            return
        masked = canvas.masked
        prediction = yield from batch.predict(canvas.tokens, masked)
        rank = prediction.confidence
        if config.distinct:
            # Two positions that want the same word at once mostly mean one word whose place is not known yet.
            rank = rank + surest_claims(prediction, masked)
        canvas.reveal(highest(rank, masked, quota(masked, config.steps - step + 1)), prediction)
        yield canvas.state(step)
