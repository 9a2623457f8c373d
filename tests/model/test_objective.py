"""The noise and the losses that training really uses, against the equations."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from unembed.config import DiffusionConfig, tiny
from unembed.model import batches, diffusion, objective
from unembed.model.denoiser import Denoiser


def make_batch(n: int = 2000, seed: int = 0, longest: int = 16) -> objective.Batch:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(5, 50, rng.integers(3, longest + 1)) for _ in range(n)]
    return batches.collate(rows, rng.normal(size=(n, 8)))


@pytest.mark.parametrize("schedule", ["log_linear", "linear", "paper"])
@pytest.mark.parametrize("t", [0.02, 0.1, 0.5, 0.9, 1.0])
def test_training_masks_one_minus_alpha_at_every_time(schedule: str, t: float) -> None:
    """The reference always masks 10 %: this is the test that would have caught it."""
    batch = make_batch()
    config = DiffusionConfig(schedule=schedule)  # type: ignore[arg-type]
    noise = objective.draw_noise(batch, config, objective.generator(0), t)
    expected = 1 - float(diffusion.schedule(config).alpha(torch.tensor(t)))
    found = float(noise.masked.sum() / batch.valid.sum())
    assert found == pytest.approx(expected, abs=0.012)
    assert not (noise.masked & ~batch.valid).any()
    assert noise.share[0] == pytest.approx(expected)


@pytest.mark.parametrize("masking", ["bernoulli", "count"])
def test_drawn_times_cover_all_noise_levels(masking: str) -> None:
    batch = make_batch()
    config = DiffusionConfig(schedule="linear", masking=masking, condition_dropout=0.25)  # type: ignore[arg-type]
    noise = objective.draw_noise(batch, config, objective.generator(1))
    share = noise.masked.sum(1) / batch.lengths
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = float(((share > low - 0.01) & (share <= low + 0.25)).float().mean())
        assert 0.18 < inside < 0.36, low
    assert float(noise.dropped.float().mean()) == pytest.approx(0.25, abs=0.04)
    if masking == "count":
        assert (noise.masked.sum(1) >= 1).all()
        assert torch.allclose(noise.weight, batch.lengths / noise.masked.sum(1))


@pytest.mark.parametrize("schedule", ["log_linear", "linear", "paper"])
def test_the_training_loss_is_the_nelbo_per_token(schedule: str) -> None:
    torch.manual_seed(0)
    net = Denoiser(replace(tiny().model, vocab_size=50, mask_id=4, vector_dim=8)).eval()
    torch.nn.init.normal_(net.final[1].weight, std=0.1)  # the transformer starts silent: let it speak
    batch = make_batch(40)
    config = DiffusionConfig(schedule=schedule, condition_dropout=0.0)  # type: ignore[arg-type]
    noise = objective.draw_noise(batch, config, objective.generator(0))
    tokens = int(batch.lengths.sum())
    with torch.no_grad():
        found = objective.DenoisingLoss(net)(batch, noise, None, 40, tokens)
        c = net.condition(batch.vectors)
        hidden = net(batch.tokens.masked_fill(noise.masked, 4), noise.share, c, batch.valid)
        log_prob = net.logits(hidden).log_softmax(-1).gather(2, batch.tokens[..., None])[..., 0]
        log_prob = log_prob.masked_fill(~noise.masked, 0.0)
        plan = diffusion.schedule(config)
        rng = objective.generator(0)
        t = diffusion.sample_times(40, rng)
        expected = diffusion.nelbo(plan, t, log_prob, noise.masked).sum() / tokens
        length = torch.nn.functional.cross_entropy(net.length_logits(c), batch.lengths)
    assert float(found) == pytest.approx(float(expected + objective.LENGTH_WEIGHT * length), rel=1e-4)


@pytest.mark.parametrize("reader", [True, False])
def test_the_loss_in_parts_is_the_loss_in_one(reader: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Value and gradients of the sampled softmax, with parts that do not divide the rows."""
    monkeypatch.setattr(objective, "PART_ROWS", 7)
    torch.manual_seed(0)
    net = Denoiser(replace(tiny().model, vocab_size=50, mask_id=4, vector_dim=8, reader=reader))
    torch.nn.init.normal_(net.embed.weight, std=0.5)
    hidden = torch.randn(40, 48 + 8 * reader, requires_grad=True)
    targets, weight = torch.randint(5, 50, (40,)), torch.rand(40) + 0.5
    sampler = objective.CandidateSampler(np.arange(50), 20)
    candidates = sampler.draw(targets, objective.generator(0))

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        net.zero_grad()
        hidden.grad = None
        (3 * loss).backward()
        assert hidden.grad is not None
        return [loss.detach(), hidden.grad, *(p.grad.clone() for p in net.parameters() if p.grad is not None)]

    whole = gradients((weight * objective.cross_entropy(net, hidden, targets, candidates)).sum())
    parts = gradients(objective.sampled_entropy(net, hidden, targets, weight, candidates))
    assert len(whole) == len(parts) == (5 if reader else 4)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(whole, parts, strict=True))


def test_the_root_of_the_weight_is_an_option() -> None:
    batch = make_batch(50)
    elbo = DiffusionConfig(schedule="linear", masking="count")
    full, root = (
        objective.draw_noise(batch, config, objective.generator(1)).weight
        for config in (elbo, replace(elbo, weighting="root"))
    )
    assert torch.allclose(root.square(), full)


def test_hidden_vectors_do_not_reach_the_prediction() -> None:
    torch.manual_seed(0)
    net = Denoiser(replace(tiny().model, vocab_size=50, mask_id=4, vector_dim=8)).eval()
    batch = make_batch(6)
    noise = objective.draw_noise(batch, DiffusionConfig(condition_dropout=1.0), objective.generator(0))
    loss = objective.DenoisingLoss(net)
    other = replace(batch, vectors=torch.randn_like(batch.vectors))
    with torch.no_grad():
        assert loss(batch, noise, None, 6, 60) == loss(other, noise, None, 6, 60)


def test_validation_judges_the_same_masks_every_time() -> None:
    torch.manual_seed(0)
    net = Denoiser(replace(tiny().model, vocab_size=50, mask_id=4, vector_dim=8)).eval()
    batch = make_batch(30)
    one, two = (objective.validation_entropy(net, batch, 0.5, 0, chunk=chunk) for chunk in (7, 30))
    assert one == pytest.approx(two, rel=1e-5)
