"""What a strategy is given and what it yields."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import torch
from torch import Tensor

from unembed.decode.config import DecodeConfig

if TYPE_CHECKING:
    from unembed.decode.predict import Answer, Ask


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the network says about the positions asked for; other entries mean nothing."""

    tokens: Tensor  # (n, L) the chosen token: the most probable, or drawn
    confidence: Tensor  # (n, L) its probability
    entropy: Tensor  # (n, L) of the distribution, in nats; zero unless asked for


@dataclass(frozen=True, slots=True)
class State:
    """A batch of texts after one step."""

    tokens: Tensor  # (n, L) with the mask id where nothing stands yet
    confidence: Tensor  # (n, L) probability of each token when it was chosen, 0 where masked
    step: int
    passes: Tensor  # (n,) forward passes so far


Steps: TypeAlias = "Generator[Ask | State, Answer, None]"
"""What a strategy is: it yields a state after each step, and through `batch.predict` what it asks of the network."""


class Batch(Protocol):
    """Texts of one length that are decoded together; `Texts` of `texts.py` is the one in use."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, L)."""

    @property
    def mask_id(self) -> int:
        """The token that stands for "not known yet"."""

    @property
    def passes(self) -> Tensor:
        """Forward passes so far, (n,)."""

    def predict(self, tokens: Tensor, at: Tensor, *, entropy: bool = False) -> Generator[Ask, Answer, Prediction]:
        """Predict the positions `at` (n, L) of `tokens` (n, L); rows without one cost nothing.

        To be called as `prediction = yield from batch.predict(...)`: whoever runs the strategy makes the forward pass.
        """

    def uniform(self) -> Tensor:
        """Random numbers in [0, 1) that depend on each row's vector and the seed alone, (n, L)."""


class Strategy(Protocol):
    """Yields a state after every step; the last has no masks."""

    def __call__(self, batch: Batch, config: DecodeConfig) -> Steps:
        """Decode the batch from the fully masked start."""


class Canvas:
    """The texts while they are being decoded."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.tokens = torch.full(batch.shape, batch.mask_id)
        self.confidence = torch.zeros(batch.shape)

    @property
    def masked(self) -> Tensor:
        """Where nothing stands yet, (n, L)."""
        return self.tokens == self.batch.mask_id

    @property
    def finished(self) -> bool:
        """No mask is left in the whole batch."""
        return not bool(self.masked.any())

    def reveal(self, at: Tensor, prediction: Prediction) -> None:
        """Write the predicted tokens at these positions."""
        self.tokens = torch.where(at, prediction.tokens, self.tokens)
        self.confidence = torch.where(at, prediction.confidence, self.confidence)

    def hide(self, at: Tensor) -> None:
        """Mask these positions again."""
        self.tokens = self.tokens.masked_fill(at, self.batch.mask_id)
        self.confidence = self.confidence.masked_fill(at, 0.0)

    def state(self, step: int) -> State:
        """A picture of now; later steps do not change it."""
        return State(self.tokens, self.confidence, step, self.batch.passes.clone())


def quota(masked: Tensor, steps_left: int) -> Tensor:
    """How many positions each text must reveal now so that the last step leaves no mask, (n, L) -> (n,)."""
    count = masked.sum(1)
    return (count + steps_left - 1) // steps_left


def highest(values: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The `count` (n,) highest `values` (n, L) of each row among the positions allowed; ties go to the left, (n, L)."""
    order = values.masked_fill(~among, -torch.inf).argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))
    return (rank < count[:, None]) & among


def lowest(values: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The `count` lowest values of each row among the positions allowed; ties go to the left, (n, L)."""
    return highest(-values, among, count)


def surest_claims(prediction: Prediction, among: Tensor) -> Tensor:
    """Where a token is predicted more surely than anywhere else in its text; ties go to the left, (n, L)."""
    sure = prediction.confidence.masked_fill(~among, -1.0)
    same = (prediction.tokens[:, :, None] == prediction.tokens[:, None]) & among[:, None]  # (n, L, L)
    best = torch.where(same, sure[:, None], -1.0).argmax(2)  # the first of equals
    return (best == torch.arange(sure.shape[1])) & among
