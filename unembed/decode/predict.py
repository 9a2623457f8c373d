"""One forward pass for whoever has a question, from texts to hidden states; `head.py` makes tokens of those.

A strategy does not call the network. It hands out an `Ask` and is sent the `Answer` (see `texts.py`), so that the
driver decides which questions share a pass: those of one batch (`engine.py`), or those of texts that have nothing to
do with each other (`pool.py`).

The vocabulary is half of a pass, so logits are computed only at the positions asked for, and most of the last block
too. What is computed once for each text or place is padded to a multiple of `ROWS`, and very few positions to
`POSITIONS`, because a matrix product over fewer rows adds in another order and its last bits differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from unembed.decode.head import Shortlist, Wishes, pad_rows, read, repeat_last
from unembed.decode.steer import Steer, steered

if TYPE_CHECKING:
    from unembed.model.denoiser import Denoiser

POSITIONS = 12


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from its distribution."""

    temperature: float
    top_p: float
    guidance: float
    repeat_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class Ask:
    """Positions of some texts of one length that the network shall predict; every text has at least one."""

    tokens: Tensor  # (n, L)
    at: Tensor  # (n, L) bool: m positions in all
    c: Tensor  # (n, width) conditions
    sampling: Sampling
    u: Tensor  # (m,) random numbers that decide the draws, on the CPU; of no use at temperature 0
    given: Tensor | None = None  # (m,) judge these tokens instead of choosing some
    entropy: bool = False
    steer: Steer | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """For each of the m positions, on the CPU."""

    tokens: Tensor  # (m,) the chosen token, or the given one
    log_p: Tensor  # (m,) its log-probability
    entropy: Tensor  # (m,) of the distribution, in nats; zero unless asked for


def answer(net: Denoiser, asks: Sequence[Ask]) -> list[Answer]:
    """Answer all of them in one forward pass; texts of different lengths are padded to the longest."""
    device = net.bias.device
    tokens, at, valid = _joined(asks, net.config.mask_id)
    tokens, at, valid = tokens.to(device), at.to(device), None if valid is None else valid.to(device)
    counts = [len(ask.u) for ask in asks]
    wishes = _wishes(asks, counts, device)
    texts = at.nonzero()[:, 0]  # (m,) which text a position belongs to
    twins = torch.unique(texts[wishes.guidance != 1])  # texts that are also predicted without their vector
    hidden, free = _hidden(net, tokens, at, torch.cat([ask.c for ask in asks]), valid, twins)

    def weigh(logits: Tensor, words: Tensor) -> Tensor:
        return _steered(asks, counts, net.config.mask_id, logits, words)

    found = read(net, hidden, free, wishes, tokens[texts], weigh, _shortlists(asks))
    columns = [torch.split(column.cpu(), counts) for column in found]
    return [Answer(*parts) for parts in zip(*columns, strict=True)]


def _wishes(asks: Sequence[Ask], counts: list[int], device: torch.device) -> Wishes:
    """What every ask wants, for each of its positions."""
    settings = [
        (s.guidance, s.temperature, s.top_p, s.repeat_penalty, float(ask.entropy), float(_steers(ask)))
        for ask, s in zip(asks, (ask.sampling for ask in asks), strict=True)
    ]
    table = torch.tensor(settings, device=device).repeat_interleave(torch.tensor(counts, device=device), 0)
    guidance, temperature, top_p, penalty, entropy, steers = table.unbind(1)
    given = [torch.full_like(ask.u, -1, dtype=torch.long) if ask.given is None else ask.given for ask in asks]
    u = torch.cat([ask.u for ask in asks])
    return Wishes(guidance, temperature, top_p, penalty, entropy > 0, steers > 0, torch.cat(given).to(device), u)


def _steers(ask: Ask) -> bool:
    """Tokens are to be chosen, and it is known what they add to the vector."""
    return ask.steer is not None and ask.given is None


def _shortlists(asks: Sequence[Ask]) -> list[tuple[Shortlist, int]] | None:
    """Those of the texts that are steered, and how many places each has; None where one of them has none."""
    found: list[tuple[Shortlist, int]] = []
    for ask in asks:
        if ask.steer is None or not _steers(ask):
            continue
        if ask.steer.shortlists is None:
            return None
        found += zip(ask.steer.shortlists, ask.at.sum(1).tolist(), strict=True)
    return found or None


def _steered(asks: Sequence[Ask], counts: list[int], mask_id: int, logits: Tensor, words: Tensor) -> Tensor:
    """The logits (s, K) of the likeliest words of all places that are steered, each ask's weighed by its own steer."""
    found, first = [], 0
    for ask, count in zip(asks, counts, strict=True):
        if ask.steer is not None and _steers(ask):
            some = slice(first, first + count)
            first = some.stop
            tokens, texts = ask.tokens.to(words.device), ask.at.nonzero()[:, 0].to(words.device)
            found.append(steered(ask.steer, tokens, mask_id, texts, logits[some], words[some]))
    return torch.cat(found)


def _joined(asks: Sequence[Ask], mask_id: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tokens, positions asked for, and what belongs to each text (None if all are of one length), (n, L)."""
    lengths = [ask.tokens.shape[1] for ask in asks]
    longest = max(lengths)
    tokens = torch.cat([F.pad(ask.tokens, (0, longest - ask.tokens.shape[1]), value=mask_id) for ask in asks])
    at = torch.cat([F.pad(ask.at, (0, longest - ask.at.shape[1])) for ask in asks])
    if min(lengths) == longest:
        return tokens, at, None
    own = torch.cat([torch.full((len(ask.at), 1), ask.at.shape[1], device=at.device) for ask in asks])
    return tokens, at, torch.arange(longest, device=at.device) < own


def _hidden(
    net: Denoiser, tokens: Tensor, at: Tensor, c: Tensor, valid: Tensor | None, twins: Tensor
) -> tuple[Tensor, Tensor]:
    """Hidden states at the positions asked for, (m, width); and those of `twins` without their vector."""
    asked = int(at.sum())
    if len(twins):
        tokens, at = torch.cat([tokens, tokens[twins]]), torch.cat([at, at[twins]])
        valid = None if valid is None else torch.cat([valid, valid[twins]])
        c = torch.cat([c, net.condition(None, len(twins))])
    places = at.flatten().nonzero()[:, 0]
    positions = tokens.shape[1] + net.config.prefix_tokens
    tokens = repeat_last(tokens, -(-POSITIONS // positions))
    masked = tokens == net.config.mask_id
    if valid is None:
        t = masked.sum(1) / tokens.shape[1]
    else:
        valid = repeat_last(valid, len(tokens))
        t = (masked & valid).sum(1) / valid.sum(1)
    c = pad_rows(repeat_last(c, len(tokens)))
    hidden: Tensor = net(tokens, pad_rows(t), c, valid, pad_rows(places))
    return hidden[:asked], hidden[asked : len(places)]
