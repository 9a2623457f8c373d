"""One forward pass for whoever has a question: from hidden states to chosen tokens.

A strategy does not call the network. It hands out an `Ask` and is sent the `Answer` (see `texts.py`), so that the
driver decides which questions share a pass: those of one batch (`engine.py`), or those of texts that have nothing to
do with each other (`pool.py`).

The vocabulary is half of a pass, so logits are computed only at the positions asked for, and most of the last block
too. What is computed once for each text or place is padded to a multiple of `ROWS`, and very few positions to
`POSITIONS`, because a matrix product over fewer rows adds in another order and its last bits differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from unembed.model.denoiser import Denoiser

# Measured with MKL: from 12 rows on, and at 4 and 8, a row's result does not depend on how many others there are.
ROWS = 4
POSITIONS = 12
# Logits of 256 positions over 30,522 tokens are 31 MB: large enough for the product, small enough for the cache.
LOGIT_ROWS = 256


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

    def column(value: Callable[[Ask], float]) -> Tensor:
        """A setting of every ask, for each of its positions, (m,)."""
        values = torch.tensor([float(value(ask)) for ask in asks], device=device)
        return values.repeat_interleave(torch.tensor(counts, device=device))

    texts = at.nonzero()[:, 0]  # (m,) which text a position belongs to
    guidance = column(lambda ask: ask.sampling.guidance)
    twins = torch.unique(texts[guidance != 1])  # texts that are also predicted without their vector
    hidden, free = _hidden(net, tokens, at, torch.cat([ask.c for ask in asks]), valid, twins)

    temperature, top_p = column(lambda ask: ask.sampling.temperature), column(lambda ask: ask.sampling.top_p)
    penalty = column(lambda ask: ask.sampling.repeat_penalty)
    judged, entropies = column(lambda ask: ask.given is not None) > 0, column(lambda ask: ask.entropy) > 0
    given = torch.cat([torch.zeros_like(ask.u).long() if ask.given is None else ask.given for ask in asks]).to(device)
    u = torch.cat([ask.u for ask in asks])
    found, seen = [], 0
    for first in range(0, len(hidden), LOGIT_ROWS):
        part = slice(first, first + LOGIT_ROWS)
        logits = _head(net, hidden[part])
        guided = guidance[part] != 1
        if guided.any():
            without = _head(net, free[seen : seen + int(guided.sum())])
            seen += len(without)
            _guide(logits, without, guidance[part], guided)
        if penalty[part].any():
            words = tokens[texts[part]]  # (m, L) the text around each position
            logits.scatter_add_(1, words, -penalty[part, None].expand(words.shape))
        top, likeliest = logits.max(1)
        chosen = _choose(logits, likeliest, temperature[part], top_p[part], u[part])
        chosen = torch.where(judged[part], given[part], chosen)
        log_z = (logits - top[:, None]).exp_().sum(1).log() + top  # logsumexp, with the maximum that is known already
        log_p = (logits.gather(1, chosen[:, None])[:, 0] - log_z).clamp(max=0.0)
        entropy = torch.zeros_like(log_p)
        if entropies[part].any():
            entropy[entropies[part]] = _entropy(logits[entropies[part]], log_z[entropies[part]])
        found.append((chosen, log_p, entropy))
    columns = [torch.split(torch.cat(column).cpu(), counts) for column in zip(*found, strict=True)]
    return [Answer(*parts) for parts in zip(*columns, strict=True)]


def pad_rows(x: Tensor) -> Tensor:
    """Repeat the last row until the number of rows is a multiple of ROWS."""
    return _repeat_last(x, len(x) + -len(x) % ROWS)


def _repeat_last(x: Tensor, rows: int) -> Tensor:
    """Repeat the last row until there are so many."""
    missing = rows - len(x)
    return torch.cat([x, x[-1:].expand(missing, *x.shape[1:])]) if missing > 0 else x


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
    tokens = _repeat_last(tokens, -(-POSITIONS // positions))
    masked = tokens == net.config.mask_id
    if valid is None:
        t = masked.sum(1) / tokens.shape[1]
    else:
        valid = _repeat_last(valid, len(tokens))
        t = (masked & valid).sum(1) / valid.sum(1)
    c = pad_rows(_repeat_last(c, len(tokens)))
    hidden: Tensor = net(tokens, pad_rows(t), c, valid, pad_rows(places))
    return hidden[:asked], hidden[asked : len(places)]


def _head(net: Denoiser, hidden: Tensor) -> Tensor:
    return net.logits(pad_rows(hidden))[: len(hidden)].float()


def _guide(logits: Tensor, without: Tensor, scale: Tensor, guided: Tensor) -> None:
    """Classifier-free guidance, in place: without + scale * (with - without) where `guided`."""
    logits[guided] = torch.where(
        without.isneginf(),  # forbidden in both; -inf - -inf is nan
        without,
        without + scale[guided, None] * (logits[guided] - without),
    )


def _choose(logits: Tensor, chosen: Tensor, temperature: Tensor, top_p: Tensor, u: Tensor) -> Tensor:
    """The most probable token, `chosen`, or the one that the random number falls on, (m, vocab) and (m,) -> (m,)."""
    for rows, narrow in (((temperature > 0) & (top_p == 1), False), ((temperature > 0) & (top_p < 1), True)):
        if rows.any():
            p = (logits[rows] / temperature[rows, None]).softmax(1)
            drawn = u[rows.to(u.device)]
            chosen[rows] = _in_nucleus(p, top_p[rows], drawn) if narrow else _at_quantile(p, drawn)
    return chosen


def _in_nucleus(p: Tensor, top_p: Tensor, u: Tensor) -> Tensor:
    """Draw from the most probable tokens that hold the share `top_p`, (m, V), (m,), (m,) -> (m,)."""
    p, order = p.sort(dim=1, descending=True, stable=True)
    p = p.masked_fill(p.cumsum(1) - p >= top_p[:, None], 0.0)  # the first token always stays
    return order.gather(1, _at_quantile(p, u)[:, None])[:, 0]


def _at_quantile(p: Tensor, u: Tensor) -> Tensor:
    """The first index where the cumulated probability exceeds u; never one of probability 0, (m, V), (m,) -> (m,)."""
    device = p.device
    cumulated = (p.cpu() if device.type == "mps" else p).double().cumsum(1)  # Apple GPUs have no float64
    reached = u[:, None].to(cumulated.device).clamp(max=1 - 1e-9) * cumulated[:, -1:]
    found = torch.searchsorted(cumulated, reached, right=True)[:, 0]
    return found.clamp(max=p.shape[1] - 1).to(device)  # past the end only where p is NaN


def _entropy(logits: Tensor, log_z: Tensor) -> Tensor:
    """Entropy in nats; forbidden tokens (-inf) count nothing, (m, V), (m,) -> (m,)."""
    log_p = logits - log_z[:, None]
    return -(log_p.exp() * log_p.clamp(min=-1e4)).sum(1).clamp(max=0)
