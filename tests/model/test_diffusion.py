"""The diffusion process against mathematics: these tests fail for the reference's masking and weights."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unembed.config import DiffusionConfig
from unembed.model import diffusion
from unembed.model.diffusion import Schedule

LOG_LINEAR, LINEAR, PAPER = Schedule("log_linear", 5.0), Schedule("linear", 5.0), Schedule("paper", 5.0)


@pytest.mark.parametrize("schedule", [LOG_LINEAR, LINEAR, PAPER], ids=lambda s: s.name)
@pytest.mark.parametrize("t", [0.001, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0])
def test_mask_rate_is_one_minus_alpha_over_the_whole_range(schedule: Schedule, t: float) -> None:
    n, length = 4000, 32
    rng = torch.Generator().manual_seed(1)
    masked = diffusion.mask_bernoulli((n, length), schedule.alpha(torch.full((n,), t)), rng)
    expected = t if schedule.name == "linear" else 1 - math.exp(-5 * t)
    sigma = math.sqrt(max(expected * (1 - expected), 1e-9) / (n * length))
    assert abs(masked.float().mean().item() - expected) < 5 * sigma + 1e-6


@pytest.mark.parametrize("schedule", [LOG_LINEAR, LINEAR], ids=lambda s: s.name)
def test_weight_is_the_elbo_weight_by_numeric_differentiation(schedule: Schedule) -> None:
    t = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    h = 1e-6
    slope = (schedule.alpha(t + h) - schedule.alpha(t - h)) / (2 * h)
    assert torch.allclose(schedule.weight(t), -slope / (1 - schedule.alpha(t)), rtol=1e-6)


def test_the_papers_printed_pair_is_not_an_elbo_weight() -> None:
    t = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    assert torch.equal(PAPER.alpha(t), LOG_LINEAR.alpha(t))
    assert torch.equal(PAPER.weight(t), 1 / t)
    assert not torch.allclose(PAPER.weight(t), LOG_LINEAR.weight(t), rtol=0.1)


# A known distribution over texts of three tokens of {0, 1}, far from uniform and not independent.
TEXTS = np.array(list(itertools.product([0, 1], repeat=3)))
PROBABILITY = np.array([0.30, 0.05, 0.02, 0.13, 0.01, 0.24, 0.05, 0.20])
ENTROPY = -(PROBABILITY * np.log(PROBABILITY)).sum()


def exact_log_posterior(texts: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """log p(x_0,i | visible tokens) for the true token, by enumeration: the perfect denoiser. (n, 3)"""
    out = np.zeros(texts.shape)
    for row, (text, hidden) in enumerate(zip(texts.numpy(), masked.numpy(), strict=True)):
        agree = PROBABILITY * (TEXTS[:, ~hidden] == text[~hidden]).all(1)
        for i in range(3):
            out[row, i] = math.log(agree[TEXTS[:, i] == text[i]].sum() / agree.sum())
    return torch.from_numpy(out)


def information_left_at_the_end(schedule: Schedule) -> float:
    """I(x_0; x_1): what is still visible at t = 1 when alpha_1 > 0, which the bound's prior term accounts for."""
    alpha = float(schedule.alpha(torch.tensor(1.0)))
    total = 0.0
    for hidden in itertools.product([True, False], repeat=3):
        visible = ~np.array(hidden)
        chance = np.prod([alpha if v else 1 - alpha for v in visible])
        seen: dict[tuple[int, ...], float] = {}
        for text, p in zip(TEXTS, PROBABILITY, strict=True):
            seen[tuple(text[visible])] = seen.get(tuple(text[visible]), 0.0) + p
        total += chance * -sum(p * math.log(p) for p in seen.values() if p > 0)
    return total


@pytest.mark.parametrize("schedule", [LOG_LINEAR, LINEAR], ids=lambda s: s.name)
def test_with_the_exact_posterior_the_nelbo_is_the_entropy(schedule: Schedule) -> None:
    """Averaged over all texts and all masks exactly, and over low-discrepancy times, eq. 4 gives the entropy."""
    masks = torch.tensor(list(itertools.product([False, True], repeat=3))).repeat(8, 1)  # (64, 3)
    texts = torch.from_numpy(TEXTS).repeat_interleave(8, 0)
    chance = torch.from_numpy(PROBABILITY).repeat_interleave(8)
    log_prob = exact_log_posterior(texts, masks)
    total, n = 0.0, 4000
    for t in diffusion.sample_times(n, torch.Generator().manual_seed(0)).double():
        alpha = schedule.alpha(t)
        of_mask = torch.where(masks, 1 - alpha, alpha).prod(1)
        total += float((chance * of_mask * diffusion.nelbo(schedule, t.expand(64), log_prob, masks)).sum()) / n
    assert abs(total + information_left_at_the_end(schedule) - ENTROPY) < 0.01


def test_count_masking_has_the_same_bound_with_less_noise() -> None:
    rng = torch.Generator().manual_seed(0)
    n = 10_000
    drawn = torch.multinomial(torch.from_numpy(PROBABILITY), n, replacement=True, generator=rng)
    texts = torch.from_numpy(TEXTS)[drawn]
    count = torch.randint(1, 4, (n,), generator=rng)
    masked = diffusion.mask_count(torch.ones(n, 3, dtype=torch.bool), count, rng)
    assert torch.equal(masked.sum(1), count)
    estimates = diffusion.nelbo(LINEAR, count / 3, exact_log_posterior(texts, masked), masked)
    assert abs(estimates.mean().item() - ENTROPY) < 4 * estimates.std().item() / math.sqrt(n)
    bernoulli = diffusion.mask_bernoulli((n, 3), LINEAR.alpha(count / 3), rng)
    noisy = diffusion.nelbo(LINEAR, count / 3, exact_log_posterior(texts, bernoulli), bernoulli)
    assert estimates.std() < noisy.std()


@given(st.integers(1, 200), st.integers(0, 2**31))
def test_times_cover_every_stride_once(n: int, seed: int) -> None:
    t = diffusion.sample_times(n, torch.Generator().manual_seed(seed))
    assert t.min() >= diffusion.MIN_TIME
    assert t.max() <= 1
    unit = (t.double() - diffusion.MIN_TIME) / (1 - diffusion.MIN_TIME)
    gaps = unit.sort().values.diff()
    assert torch.allclose(gaps, torch.full_like(gaps, 1 / n), atol=1e-5)


def test_config_names_every_schedule() -> None:
    for name in ("log_linear", "linear", "paper"):
        assert diffusion.schedule(DiffusionConfig(schedule=name)).name == name  # type: ignore[arg-type]
