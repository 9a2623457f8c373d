"""What the trainer minimises: noise drawn for a batch, and the losses of the two training phases.

All noise comes from a generator keyed by (seed, step) and is drawn for the whole global batch, so a run gives the
same loss whether it is one process or several, resumed or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.config import DiffusionConfig
from unembed.model import diffusion
from unembed.model.denoiser import Denoiser
from unembed.precision import product_dtype

# Weight of the length loss beside the denoising loss (per token); large enough to learn, too small to disturb.
LENGTH_WEIGHT = 0.05
# Rows of logits that are computed together: times 10,000 candidates, 20 MB.
PART_ROWS = 512


def generator(*key: int) -> torch.Generator:
    """A random generator that depends on the key alone (seed, step, ...)."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1))


@dataclass(slots=True)
class Batch:
    """A padded batch; `lengths` says where each text ends."""

    tokens: Tensor  # (n, L)
    lengths: Tensor  # (n,)
    vectors: Tensor  # (n, d)

    @property
    def valid(self) -> Tensor:
        """True where there is text. (n, L)."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device) < self.lengths[:, None]

    def to(self, device: torch.device) -> Batch:
        """The same batch on a device."""
        return Batch(self.tokens.to(device), self.lengths.to(device), self.vectors.to(device))

    def rows(self, index: Tensor | slice) -> Batch:
        """Some of the rows, without the columns that none of them needs."""
        lengths = self.lengths[index]
        longest = int(lengths.max()) if len(lengths) else 0
        return Batch(self.tokens[index][:, :longest], lengths, self.vectors[index])


@dataclass(slots=True)
class Noise:
    """What was drawn for a batch."""

    share: Tensor  # (n,) expected share of masked tokens, 1 - alpha_t: the time as the denoiser is told it
    weight: Tensor  # (n,) loss weight
    masked: Tensor  # (n, L)
    dropped: Tensor  # (n,) the vector is hidden

    def rows(self, index: Tensor | slice, length: int) -> Noise:
        """The noise of some rows, cut to `length` columns."""
        return Noise(self.share[index], self.weight[index], self.masked[index][:, :length], self.dropped[index])

    def to(self, device: torch.device) -> Noise:
        """The same noise on a device."""
        return Noise(self.share.to(device), self.weight.to(device), self.masked.to(device), self.dropped.to(device))


def draw_noise(batch: Batch, config: DiffusionConfig, rng: torch.Generator, t: float | None = None) -> Noise:
    """Forward process for a batch: times (or the fixed one given), loss weights, masks, hidden vectors."""
    n, length = batch.tokens.shape
    schedule = diffusion.schedule(config)
    times = diffusion.sample_times(n, rng) if t is None else torch.full((n,), t)
    if config.masking == "count":
        count = torch.ceil(times * batch.lengths).clamp(min=1)
        masked = diffusion.mask_count(batch.valid, count, rng)
        times = count / batch.lengths
    else:
        masked = diffusion.mask_bernoulli((n, length), schedule.alpha(times), rng) & batch.valid
    share = 1 - schedule.alpha(times)
    dropped = torch.rand(n, generator=rng) < (config.condition_dropout if t is None else 0.0)
    weight = schedule.weight(times)
    return Noise(share, weight.sqrt() if config.weighting == "root" else weight, masked, dropped)


@dataclass(slots=True)
class Candidates:
    """The part of the vocabulary that a sampled softmax normalises over."""

    ids: Tensor  # (k,) sorted
    correction: Tensor  # (k,) log inclusion probability of drawn tokens, 0 for the batch's own targets

    def to(self, device: torch.device) -> Candidates:
        """The same candidates on a device."""
        return Candidates(self.ids.to(device), self.correction.to(device))


class CandidateSampler:
    """Draws negatives from the square root of the unigram distribution.

    A drawn token stands for all tokens that were as likely to be drawn, so its logit is corrected by minus the log of
    its inclusion probability. The batch's own targets are there with certainty and get no correction.
    """

    def __init__(self, counts: np.ndarray, draws: int) -> None:
        weight = torch.from_numpy(np.sqrt(counts.astype(np.float64) + 1.0)).float()
        draws = min(draws, len(counts))
        # Poisson sampling: each token is in with probability min(1, s * weight), s so that `draws` come on average.
        low, high = 0.0, 1e9
        for _ in range(100):
            middle = (low + high) / 2
            expected = (weight * middle).clamp(max=1.0).sum()
            low, high = (middle, high) if expected < draws else (low, middle)
        self.inclusion = (weight * high).clamp(max=1.0)

    def draw(self, targets: Tensor, rng: torch.Generator) -> Candidates:
        """Candidates for a global batch: its targets and the drawn negatives."""
        own = torch.zeros(len(self.inclusion), dtype=torch.bool)
        own[targets] = True
        drawn = torch.rand(len(self.inclusion), generator=rng) < self.inclusion
        ids = (own | drawn).nonzero().flatten()
        correction = torch.where(own[ids], 0.0, torch.log(self.inclusion[ids]))
        return Candidates(ids, correction)


class DenoisingLoss(nn.Module):
    """The NELBO per token of the masked positions (eq. 4), plus the length loss. A module, so that DDP can wrap it."""

    def __init__(self, net: Denoiser) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Batch, noise: Noise, candidates: Candidates | None, texts: int, tokens: int) -> Tensor:
        """Sum over this micro-batch, divided by the texts and tokens of the whole step (so that parts add up)."""
        net = self.net
        c = hide(net, net.condition(batch.vectors), noise.dropped)
        visible = batch.tokens.masked_fill(noise.masked, net.config.mask_id)
        valid = None if bool(batch.valid.all()) and not net.training else batch.valid  # one path for all shapes
        hidden = net(visible, noise.share, c, valid)[noise.masked]  # (masked, width)
        targets = batch.tokens[noise.masked]
        weight = noise.weight[:, None].expand_as(noise.masked)[noise.masked]
        if candidates is None:
            denoise = (weight * cross_entropy(net, hidden, targets, None)).sum() / tokens
        else:
            denoise = sampled_entropy(net, hidden, targets, weight, candidates) / tokens
        length = F.cross_entropy(net.length_logits(c).float(), batch.lengths, reduction="sum") / texts
        return denoise + LENGTH_WEIGHT * length


class BagLoss(nn.Module):
    """Pretraining of conditioner, bag of words and length: every token of the text from the vector alone."""

    def __init__(self, net: Denoiser) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Batch, dropped: Tensor, texts: int, tokens: int) -> Tensor:
        """Cross-entropy per token, full softmax (one row for each text), plus the length loss."""
        net = self.net
        c = hide(net, net.condition(batch.vectors), dropped)
        log_probs = net.logits(net.bag_hidden(c)).float().log_softmax(-1)  # (n, vocab)
        words = -log_probs.gather(1, batch.tokens)[batch.valid].sum() / tokens
        length = F.cross_entropy(net.length_logits(c).float(), batch.lengths, reduction="sum") / texts
        return words + length


def hide(net: Denoiser, c: Tensor, dropped: Tensor) -> Tensor:
    """Replace the condition of some rows by that of "no vector"."""
    return torch.where(dropped[:, None], net.condition(None, len(c)), c)


def cross_entropy(net: Denoiser, hidden: Tensor, targets: Tensor, candidates: Candidates | None) -> Tensor:
    """-log p of the targets, over the whole vocabulary or over the candidates. (m,)."""
    if candidates is None:
        return F.cross_entropy(net.logits(hidden).float(), targets, reduction="none")
    logits = net.logits(hidden, candidates.ids).float() - candidates.correction
    return F.cross_entropy(logits, torch.searchsorted(candidates.ids, targets), reduction="none")


def sampled_entropy(net: Denoiser, hidden: Tensor, targets: Tensor, weight: Tensor, candidates: Candidates) -> Tensor:
    """Weighted sum of -log p of the targets over the candidates: `cross_entropy` in parts that fit into the cache."""
    words, bias = net.word_table(candidates.ids)
    bias = bias - candidates.correction
    kind = product_dtype(hidden)
    places = torch.searchsorted(candidates.ids, targets)
    total: Tensor = PartwiseEntropy.apply(hidden.to(kind), words.to(kind), bias.float(), places, weight)  # type: ignore[no-untyped-call]
    return total


class PartwiseEntropy(torch.autograd.Function):
    """sum_i weight_i * cross_entropy(hidden_i @ words.T + bias, places_i), some rows at a time.

    The gradients are made in the same go, while the logits of a part are still in the cache; the whole matrix of
    logits (rows, candidates) never exists.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, words: Tensor, bias: Tensor, places: Tensor, weight: Tensor) -> Tensor:
        """Inputs (m, d), (k, d), (k,), (m,), (m,); the sum."""
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        to_hidden = torch.empty_like(hidden)
        to_words = torch.zeros(words.shape, dtype=torch.float32, device=words.device)
        to_bias = torch.zeros_like(bias)
        with torch.autocast(hidden.device.type, enabled=False):
            for first in range(0, len(hidden), PART_ROWS):
                rows = slice(first, first + PART_ROWS)
                h, place, w = hidden[rows], places[rows, None], weight[rows, None]
                logits = torch.mm(h, words.T).float().add_(bias)
                lse = logits.logsumexp(1, keepdim=True)
                total += (w * (lse - logits.gather(1, place))).sum()
                slope = logits.sub_(lse).exp_().scatter_add_(1, place, torch.full_like(w, -1.0)).mul_(w)
                to_bias += slope.sum(0)
                slope = slope.to(hidden.dtype)
                torch.mm(slope, words, out=to_hidden[rows])
                to_words += slope.T @ h
        ctx.save_for_backward(to_hidden, to_words.to(words.dtype), to_bias)
        return total

    @staticmethod
    def backward(ctx: Any, *slope: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs; places and weights have none."""
        to_hidden, to_words, to_bias = ctx.saved_tensors
        return to_hidden * slope[0], to_words * slope[0], to_bias * slope[0], None, None


@torch.inference_mode()
def validation_entropy(net: Denoiser, batch: Batch, share: float, seed: int, chunk: int = 64) -> float:
    """Cross-entropy per masked token with the full softmax, with fixed masks on that share of each text."""
    rng = generator(seed, int(share * 1000))
    noise = draw_noise(batch, DiffusionConfig(schedule="linear", masking="count"), rng, share)
    total, count = 0.0, 0
    order = batch.lengths.argsort(stable=True)
    for start in range(0, len(order), chunk):
        part = batch.rows(order[start : start + chunk]).to(net.bias.device)
        drawn = noise.rows(order[start : start + chunk], part.tokens.shape[1]).to(net.bias.device)
        visible = part.tokens.masked_fill(drawn.masked, net.config.mask_id)
        hidden = net(visible, drawn.share, net.condition(part.vectors), part.valid)[drawn.masked]
        total += float(cross_entropy(net, hidden, part.tokens[drawn.masked], None).sum())
        count += len(hidden)
    return total / count
