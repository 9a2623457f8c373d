"""One correction of every guess: what a corrector is worth by itself, without any search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from unembed.decode.engine import inference
from unembed.decode.feedback.refill import Blank, Filler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.model.artifact import Artifact

PASSES = 4


def correct(
    model: Artifact,
    targets: NDArray[np.float32],
    guesses: Sequence[Sequence[int]],
    seen: NDArray[np.float32],
    repeat_penalty: float,
) -> list[list[int]]:
    """The likeliest tokens, at the guess's length, given guesses and their vectors (n, d)."""
    if model.corrector is None:
        raise ValueError("the inverter has no corrector")
    net = model.net
    with inference(net, "fp32"):
        both = (torch.from_numpy(some.astype(np.float32)).to(net.bias.device) for some in (targets, seen))
        c = model.corrector.condition(*both)
        blanks = [
            Blank([net.config.mask_id] * len(guess), [0.0] * len(guess), one, torch.zeros(PASSES, len(guess)), 1.0,
                  guess=list(guess))
            for guess, one in zip(guesses, c, strict=True)
        ]  # fmt: skip
        Filler(net, repeat_penalty, corrector=model.corrector).fill(blanks, PASSES)
    return [blank.tokens for blank in blanks]
