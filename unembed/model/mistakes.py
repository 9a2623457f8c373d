"""Wrong texts for the corrector to learn from: the inverter's own mistakes, made from true texts.

Some of a text is masked, often all of it, and the inverter fills it in two passes. Where all is masked, the length may
be wrong too, as it may be when a text is recovered; where some words stay, they may change places, double or go, since
a search gets the words before their order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unembed.model.denoiser import Denoiser
from unembed.model.objective import Batch

FROM_NOTHING = 0.45
"""Share of the texts that are written from nothing but masks."""
LEAST_MASKED = 0.15
REORDERED = 0.3
"""Share of the other texts whose words change places; as many get one more word or one less."""
TEMPERATURES = (0.1, 0.7)
PASSES = 2
TOP = 32  # tokens that are drawn from at a position
REPEAT_PENALTY = 2.5  # as decoding has it
WORDS = 64
"""Words of each text, by the bag of words, that the masks of all texts of a batch are filled with."""


@dataclass(slots=True)
class Dice:
    """All that is random about the mistakes of a batch: the same whichever process makes them."""

    kind: Tensor  # (n, 4)
    order: Tensor  # (n, L): which positions are masked first
    draws: Tensor  # (n, PASSES, longest)

    def rows(self, index: Tensor) -> Dice:
        """Those of some texts."""
        return Dice(self.kind[index], self.order[index], self.draws[index])


def throw(batch: Batch, longest: int, rng: torch.Generator) -> Dice:
    """The dice of a batch."""
    n, length = batch.tokens.shape
    return Dice(
        torch.rand(n, 4, generator=rng),
        torch.rand(n, length, generator=rng),
        torch.rand(n, PASSES, longest, generator=rng),
    )


@torch.inference_mode()
def make(net: Denoiser, batch: Batch, dice: Dice) -> list[list[int]]:
    """A wrong text for each true one."""
    c = net.condition(batch.vectors)
    words = net.logits(net.bag_hidden(c) if net.config.bag_of_words else c)
    candidates = torch.unique(words.topk(min(WORDS, words.shape[1]), 1).indices)
    candidates = candidates[~net.forbidden[candidates]]
    lengths = net.length_logits(c).softmax(1).cumsum(1)  # (n, max + 1)
    rows = [_blank(net, batch, dice, k, lengths[k]) for k in range(len(batch.tokens))]
    low, high = TEMPERATURES
    temperature = low + (high - low) * dice.kind[:, 3:].to(c.device)
    for number in range(PASSES):
        _fill(net, rows, c, candidates, temperature, dice.draws[:, number], last=number + 1 == PASSES)
    return rows


def _blank(net: Denoiser, batch: Batch, dice: Dice, k: int, lengths: Tensor) -> list[int]:
    """The text as it is before it is filled."""
    mask, n = net.config.mask_id, int(batch.lengths[k])
    kind, share, change, _ = dice.kind[k].tolist()
    if kind < FROM_NOTHING:
        # Every other one at a length drawn from what the inverter believes.
        drawn = int(torch.searchsorted(lengths, torch.tensor(share, device=lengths.device)))
        return [mask] * (n if change < 0.5 else min(max(1, drawn), net.config.max_tokens))
    count = max(1, round((LEAST_MASKED + (1 - LEAST_MASKED) * share) * n))
    order = dice.order[k, :n].argsort().tolist()
    tokens = batch.tokens[k, :n].tolist()
    for place in order[:count]:
        tokens[place] = mask
    a, b = order[0], order[-1]
    if change < REORDERED:
        token = tokens.pop(a)
        tokens.insert(b, token)
        tokens[order[n // 2]], tokens[b] = tokens[b], tokens[order[n // 2]]
    elif change < REORDERED * 1.5 and n > 2:
        del tokens[b]
    elif change < REORDERED * 2 and n < net.config.max_tokens:
        tokens.insert(a, mask)
    return tokens


def _fill(
    net: Denoiser, rows: list[list[int]], c: Tensor, candidates: Tensor, temperature: Tensor, u: Tensor, last: bool
) -> None:
    """Fill the surer half of the masks, or all of them, in place."""
    device, mask = c.device, net.config.mask_id
    lengths = torch.tensor([len(row) for row in rows])
    longest = int(lengths.max())
    tokens = torch.tensor([[*row, *[mask] * (longest - len(row))] for row in rows])
    valid = torch.arange(longest) < lengths[:, None]
    masked = (tokens == mask) & valid
    if not masked.any():
        return
    places = masked.nonzero()
    share = masked.sum(1) / lengths
    hidden = net(tokens.to(device), share.to(device), c, valid.to(device), masked.flatten().nonzero()[:, 0].to(device))
    logits = net.logits(hidden, candidates).float()
    column = torch.full((net.config.vocab_size,), len(candidates), device=device)  # the last one is thrown away
    column[candidates] = torch.arange(len(candidates), device=device)
    said = torch.zeros(len(rows), len(candidates) + 1, device=device)
    said.scatter_(1, column[tokens.to(device)], REPEAT_PENALTY)
    logits -= said[places[:, 0].to(device), :-1]
    likeliest, ids = logits.topk(min(TOP, len(candidates)), 1)
    p = (likeliest / temperature[places[:, 0].to(device)]).softmax(1).cumsum(1)
    drawn = torch.searchsorted(p, u[places[:, 0], places[:, 1]].to(device)[:, None] * p[:, -1:])
    drawn = drawn.clamp(max=p.shape[1] - 1)
    sure = (likeliest.gather(1, drawn)[:, 0] - logits.logsumexp(1)).cpu()
    chosen = candidates[ids.gather(1, drawn)[:, 0]].tolist()
    surest = torch.full(tokens.shape, -torch.inf)
    surest[places[:, 0], places[:, 1]] = sure
    counts = masked.sum(1) if last else (masked.sum(1) + 1) // 2
    kept = surest.argsort(1, descending=True).argsort(1) < counts[:, None]
    for (row, place), token in zip(places.tolist(), chosen, strict=True):
        if kept[row, place]:
            rows[row][place] = token
