"""How to search with the encoder, as one frozen dataclass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from unembed.decode.config import MIN_TEMPERATURE, _one_of, _whole, _within

Gradients = Literal["auto", "off", "swaps", "guidance", "all"]
FORESEEN = ("drafts", "variants", "depth")
UseOfCorrector = Literal["auto", "off", "only"]


@dataclass(frozen=True, slots=True)
class FeedbackConfig:
    """Settings of a search; two runs with equal settings and vectors give equal texts."""

    budget: int = 320
    """Different texts that the encoder may be asked about for one vector, plus backward passes."""
    gradients: Gradients = "auto"
    """`off`: black box; `swaps`, `guidance`: one use of them, `all`: both; `auto`: `swaps`, if there are any."""
    corrector: UseOfCorrector = "auto"
    """`auto`: a writer that has learned it is shown what it goes on with, and corrects that; `off`: it is not; `only`:
    each proposal is a correction of a whole text, the loop of Vec2Text (`population` is its beam)."""
    starts: int = 4
    """Texts that are decoded without feedback for the first population: the writer's best, or the denoiser's at so many
    lengths."""
    writer: bool = True
    """Whether the inverter's writer, if it has one, goes on with texts from some place on, and judges them."""
    population: int = 4
    """Hypotheses that live on after a round."""
    proposals: int = 6
    """Texts that are proposed in a round, for each vector."""
    temperature: float = 0.35
    """At which tokens are drawn for masked positions."""
    overshoot: float = 1.5
    """Masks are filled as if the vector lay so much further away from the parent's than it does, in distances."""
    likelihood_weight: float = 0.01
    """Weight of the mean log-probability of the tokens beside the cosine, when it is decided what lives on."""
    foresight: bool = True
    """Whether the inverter's surrogate, if it has one, chooses which of many changes the encoder is asked about."""
    drafts: int = 2
    """With foresight: changes that are drawn for each one that is asked about."""
    variants: int = 4
    """With foresight: ways in which the masks of each change are filled."""
    depth: int = 2
    """With foresight: changes that may follow each other before the encoder is asked."""
    steering: float = 15.0
    """With foresight: how strongly words are preferred for masks that are foreseen to bring the text nearer."""
    swap_scale: float = 60.0
    """What a gain in cosine, as the gradient predicts it, adds to a token's logit in swap proposals."""
    guide_scale: float = 100.0
    """The same inside the denoising."""
    guide_steps: int = 12
    """Steps of a guided denoising, each with one gradient."""
    batch: int = 64
    """Vectors that are searched together; memory grows with it."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("budget", "starts", "population", "proposals", "guide_steps", "batch", *FORESEEN):
            _whole(name, getattr(self, name), 1)
        _whole("seed", self.seed, 0)
        _within("temperature", self.temperature, MIN_TEMPERATURE, math.inf)
        for name in ("overshoot", "likelihood_weight", "steering", "swap_scale", "guide_scale"):
            _within(name, getattr(self, name), 0, math.inf)
        _one_of("gradients", self.gradients, ("auto", "off", "swaps", "guidance", "all"))
        _one_of("corrector", self.corrector, ("auto", "off", "only"))
