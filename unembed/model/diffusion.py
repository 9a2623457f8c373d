"""The masked diffusion process: what the paper's section 3.2 says, and nothing else.

A schedule is the survival probability alpha_t (eq. 2) with the weight that its ELBO gives to the cross-entropy
at masked positions (eq. 4): w(t) = -alpha'_t / (1 - alpha_t). Each schedule has its own weight:

- `log_linear`: alpha_t = exp(-lambda t)  ->  w(t) = lambda / (exp(lambda t) - 1)
- `linear`:     alpha_t = 1 - t           ->  w(t) = 1 / t
- `paper`:      alpha_t = exp(-lambda t) with w(t) = 1 / t, as printed. The two do not belong together: this is a
  reweighted loss, not a bound on the likelihood. It is here so that the printed method can be run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unembed.config import DiffusionConfig

# Below this time almost nothing is masked and the weight explodes; the mass that is cut off is of the same size.
MIN_TIME = 1e-3


@dataclass(frozen=True, slots=True)
class Schedule:
    """alpha_t and the loss weight w(t), both for t in (0, 1]."""

    name: str
    rate: float

    def alpha(self, t: Tensor) -> Tensor:
        """Probability that a token is still visible at time t (eq. 2)."""
        return 1 - t if self.name == "linear" else torch.exp(-self.rate * t)

    def weight(self, t: Tensor) -> Tensor:
        """Weight of the cross-entropy of a masked token at time t (eq. 4)."""
        return self.rate / torch.expm1(self.rate * t) if self.name == "log_linear" else 1 / t


def schedule(config: DiffusionConfig) -> Schedule:
    """The schedule that a configuration names."""
    return Schedule(config.schedule, config.rate)


def sample_times(n: int, generator: torch.Generator) -> Tensor:
    """Low-discrepancy times: one uniform offset, n equal strides, so that every batch covers (0, 1]. (n,)."""
    offset = torch.rand((), generator=generator)
    strides = (torch.arange(n) + offset) / n
    shuffled = strides[torch.randperm(n, generator=generator)]
    return MIN_TIME + (1 - MIN_TIME) * shuffled


def mask_bernoulli(shape: tuple[int, int], alpha: Tensor, generator: torch.Generator) -> Tensor:
    """Forward process q(x_t | x_0): each position is masked on its own with probability 1 - alpha. (n, L) bool."""
    return torch.rand(shape, generator=generator) >= alpha[:, None]


def mask_count(valid: Tensor, masked: Tensor, generator: torch.Generator) -> Tensor:
    """Mask exactly `masked[i]` of the valid positions of row i, chosen uniformly. (n, L) bool.

    With the count uniform in 1..L and weight L / count this is the same ELBO as `linear` (it averages over the same
    subsets), without the noise of the Bernoulli count and without texts that have nothing to learn from.
    """
    draw = torch.rand(valid.shape, generator=generator).masked_fill(~valid, 2.0)  # what is not valid ranks last
    return draw.argsort(1).argsort(1) < masked[:, None]


def nelbo(schedule_: Schedule, t: Tensor, log_prob: Tensor, masked: Tensor) -> Tensor:
    """One-sample estimate of eq. 4 for each text: w(t) * sum over masked positions of -log p(x_0). (n,).

    `log_prob` (n, L) is the log-probability of the true token; visible positions do not count.
    """
    return schedule_.weight(t) * -(log_prob * masked).sum(1)
