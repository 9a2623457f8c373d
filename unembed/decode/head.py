"""The vocabulary: from hidden states to chosen tokens and their probabilities.

It is read some thousand words at a time. What the product has written is then still in the cache when the maximum and
the sum over it are taken, and the whole distribution exists only for the places that draw from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from unembed.model.denoiser import Denoiser

# Measured with MKL: from 12 rows on, and at 4 and 8, a row's result does not depend on how many others there are.
ROWS = 4
# Words and places read together: 3 MB of logits. On a GPU, whose memory is its cache, all words at once.
WORDS = 3072
PLACES = 256
# Of a place that is steered so many words, the likeliest, are weighed anew; others are not taken.
KEPT = 64
FOLDS = 16  # see `top_words`
LOWEST = -1e30  # instead of the -inf of a part in which every word is forbidden: -inf - -inf is nan


class Shortlist:
    """The words that may be chosen in one text, with their rows of the vocabulary: gathered once, read at each step."""

    def __init__(self, net: Denoiser, words: Tensor) -> None:
        """`words` (K,), rising."""
        self.words = words
        self._table, self._bias = net.word_table(words)
        if torch.is_autocast_enabled(words.device.type):
            kind = torch.get_autocast_dtype(words.device.type)
            self._table, self._bias = self._table.to(kind), self._bias.to(kind)

    def logits(self, hidden: Tensor) -> Tensor:
        """(m, hidden size) -> (m, K)."""
        return F.linear(pad_rows(hidden), self._table, self._bias)[: len(hidden)].float()


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is wanted at each of m places, all (m,)."""

    guidance: Tensor
    temperature: Tensor
    top_p: Tensor
    penalty: Tensor  # taken from the logit of a word for each time that it stands in the text
    entropy: Tensor  # bool
    steered: Tensor  # bool
    given: Tensor  # judge this token instead of choosing one; -1: choose
    u: Tensor  # random numbers that decide the draws, on the CPU

    def part(self, places: slice | Tensor) -> Wishes:
        """Of some of the places."""
        return Wishes(*(_at(getattr(self, field.name), places) for field in fields(self)))


Weigh: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""The logits (s, K) of the likeliest words of all steered places, and these words (s, K): the logits weighed anew."""


def read(
    net: Denoiser,
    hidden: Tensor,
    free: Tensor,
    wishes: Wishes,
    around: Tensor,
    weigh: Weigh | None = None,
    shortlists: Sequence[tuple[Shortlist, int]] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The token at every place, its log-probability and the entropy (zero unless wanted), all (m,).

    `hidden` (m, width); `free` the same without the vector, for those under guidance only; `around` (m, L) the text
    that each place stands in; `weigh` is needed where some places are steered, and `shortlists`, of each steered text
    and with the number of its places, spare most of their vocabulary.
    """
    twin = (wishes.guidance != 1).cumsum(0) - 1  # the row of `free` that belongs to a place under guidance

    def logits_at(places: Tensor) -> _Logits:
        part = wishes.part(places)
        without = free[twin[places[part.guidance != 1]]]
        return _Logits(net, hidden[places], without, part, around[places])

    tokens, log_p, entropy = (torch.zeros_like(column) for column in (wishes.given, wishes.penalty, wishes.penalty))
    steered = wishes.steered.nonzero()[:, 0]
    for places in torch.split((~wishes.steered).nonzero()[:, 0], PLACES):
        if len(places):
            tokens[places], log_p[places], entropy[places] = _read(logits_at(places), wishes.part(places))
    if weigh is not None and len(steered):
        if shortlists is None:
            found = [_likeliest(logits_at(places)) for places in torch.split(steered, PLACES)]
        else:
            listed = hidden[steered], wishes.penalty[steered], around[steered]
            found = _likeliest_listed(*listed, shortlists, net.config.mask_id)
        logits, words = (torch.cat(column) for column in zip(*found, strict=True))
        chosen = _choose(weigh(logits, words), words, wishes.part(steered))
        tokens[steered], log_p[steered], entropy[steered] = chosen
    return tokens, log_p, entropy


def _choose(logits: Tensor, words: Tensor, wishes: Wishes) -> tuple[Tensor, Tensor, Tensor]:
    """A word of each steered place out of those that were weighed, its log-probability among them, their entropy."""
    place = _draw(logits, logits.argmax(1), wishes.temperature, wishes.top_p, wishes.u)[:, None]
    log_z = logits.logsumexp(1)
    log_p = (logits.gather(1, place)[:, 0] - log_z).clamp(max=0.0)
    return words.gather(1, place)[:, 0], log_p, _entropy(logits, log_z) * wishes.entropy


def _at(column: Tensor, places: slice | Tensor) -> Tensor:
    return column[places.to(column.device) if isinstance(places, Tensor) else places]


def pad_rows(x: Tensor) -> Tensor:
    """Repeat the last row until the number of rows is a multiple of ROWS."""
    return repeat_last(x, len(x) + -len(x) % ROWS)


def repeat_last(x: Tensor, rows: int) -> Tensor:
    """Repeat the last row until there are so many."""
    missing = rows - len(x)
    return torch.cat([x, x[-1:].expand(missing, *x.shape[1:])]) if missing > 0 else x


def _read(parts: _Logits, wishes: Wishes) -> tuple[Tensor, Tensor, Tensor]:
    """Token, log-probability and entropy of each place."""
    judging = bool((wishes.given >= 0).any())
    whole = ((wishes.temperature > 0) | wishes.entropy).nonzero()[:, 0]  # places that need the whole distribution
    table = parts.table(len(whole), parts.vocabulary)
    tokens, value = torch.zeros_like(wishes.given), torch.full_like(wishes.penalty, -torch.inf)
    judged = value.clone()
    tops, sums = [], []
    for words, logits in parts:
        if len(whole):
            table[:, words] = logits[whole]
        if judging:
            here = ((wishes.given >= words.start) & (wishes.given < words.stop)).nonzero()[:, 0]
            judged[here] = logits[here, wishes.given[here] - words.start]
        top = logits.amax(1)
        better = (top > value).nonzero()[:, 0]  # the index is sought only there: that is six times slower than amax
        tokens[better] = logits[better].argmax(1) + words.start
        value = torch.maximum(value, top)
        top = top.clamp(min=LOWEST)
        tops.append(top)
        sums.append(logits.sub_(top[:, None]).exp_().sum(1))
    shares = torch.stack(sums) * (torch.stack(tops) - value).exp()
    log_z = shares.sum(0).log() + value
    entropy = torch.zeros_like(value)
    if len(whole):
        drawn = _draw(table, tokens[whole], wishes.temperature[whole], wishes.top_p[whole], wishes.u[whole.cpu()])
        tokens[whole], value[whole] = drawn, table.gather(1, drawn[:, None])[:, 0]
        entropy[whole] = _entropy(table, log_z[whole]) * wishes.entropy[whole]
    tokens = torch.where(wishes.given >= 0, wishes.given, tokens)
    value = torch.where(wishes.given >= 0, judged, value)
    return tokens, (value - log_z).clamp(max=0.0), entropy


def _likeliest(parts: _Logits) -> tuple[Tensor, Tensor]:
    """The logits of the KEPT likeliest words of each place, and these words, both (m, KEPT), the likeliest first."""
    table = parts.table(len(parts), parts.vocabulary + -parts.vocabulary % FOLDS)  # wide enough: a copy takes time
    for words, logits in parts:
        table[:, words] = logits
    table[:, parts.vocabulary :] = -torch.inf
    return top_words(table, parts.vocabulary, KEPT)


def _likeliest_listed(
    hidden: Tensor, penalty: Tensor, around: Tensor, shortlists: Sequence[tuple[Shortlist, int]], mask_id: int
) -> list[tuple[Tensor, Tensor]]:
    """`_likeliest` of each text by itself, out of its own shortlist."""
    found, first = [], 0
    for shortlist, count in shortlists:
        rows = slice(first, first + count)
        logits, words = shortlist.logits(hidden[rows]), shortlist.words
        said = around[first][around[first] != mask_id]
        place = torch.searchsorted(words, said).clamp(max=len(words) - 1)
        place = place[words[place] == said]  # a word that is not on the list need not be penalised
        logits.index_add_(1, place, -penalty[rows, None].expand(count, len(place)))
        first = rows.stop
        values, places = logits.topk(min(KEPT, len(words)), dim=1)
        found.append((values, words[places]))
    return found


def top_words(table: Tensor, vocabulary: int, kept: int) -> tuple[Tensor, Tensor]:
    """The largest logits of each row and their words, both (m, kept), the largest first; what `topk` gives.

    `table` (m, vocabulary), or wider and -inf there. The likeliest words stand in at most `kept` columns of it when it
    is folded like a letter, and no other column has a larger maximum than theirs: only those columns are searched, a
    tenth of the work.
    """
    if table.shape[1] % FOLDS:
        table = F.pad(table, (0, -table.shape[1] % FOLDS), value=-torch.inf)
    kept, columns = min(kept, vocabulary), table.shape[1] // FOLDS
    tops = table.view(len(table), FOLDS, columns).amax(1).topk(min(kept, columns), dim=1).indices
    under = tops[:, None] + columns * torch.arange(FOLDS, device=table.device)[:, None]  # (m, FOLDS, columns)
    places = under.flatten(1)
    found = table.gather(1, places).topk(kept, dim=1)
    return found.values, places.gather(1, found.indices).clamp(max=vocabulary - 1)  # beyond: as forbidden as some word


class _Logits:
    """The logits of m places, guided and penalised: one part of the vocabulary after the other."""

    def __init__(self, net: Denoiser, hidden: Tensor, free: Tensor, wishes: Wishes, around: Tensor) -> None:
        self.vocabulary = net.config.vocab_size
        self._size = WORDS if hidden.is_cpu else self.vocabulary
        self._scores, self._without = _Scores(net, hidden), _Scores(net, free) if len(free) else None
        self._guidance = wishes.guidance
        self._penalty = _Penalty(around, wishes.penalty, net.config.mask_id, self.vocabulary, self._size)

    def __len__(self) -> int:
        return len(self._guidance)

    def table(self, rows: int, columns: int) -> Tensor:
        """Room for the logits of so many places."""
        return self._guidance.new_empty(rows, columns)

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """Which words, and their logits (m, words), which may be overwritten."""
        guided = (self._guidance != 1).nonzero()[:, 0]
        for k, first in enumerate(range(0, self.vocabulary, self._size)):
            words = slice(first, min(first + self._size, self.vocabulary))
            logits = self._scores.of(words)
            if self._without is not None:
                _guide(logits, self._without.of(words), self._guidance, guided)
            self._penalty.apply(logits, k)
            yield words, logits


class _Scores:
    """Logits of m places; what the reader says of a text is computed once for all places of that text."""

    def __init__(self, net: Denoiser, hidden: Tensor) -> None:
        width = net.config.width
        self._net, self._count, self._hidden = net, len(hidden), pad_rows(hidden[:, :width])
        read = hidden[:, width:]
        first = torch.ones(len(read), dtype=torch.bool, device=read.device)
        first[1:] = (read[1:] != read[:-1]).any(1)
        self._text, self._read = first.cumsum(0) - 1, pad_rows(read[first])

    def of(self, words: slice) -> Tensor:
        """Of a part of the vocabulary, (m, words)."""
        logits = self._net.place_logits(self._hidden, words)[: self._count].float()
        if self._net.config.reader:
            logits += self._net.text_logits(self._read, words).float().index_select(0, self._text)
        return logits


class _Penalty:
    """Takes something from the logit of every word for each time that it stands in the text already."""

    def __init__(self, around: Tensor, penalty: Tensor, mask_id: int, vocabulary: int, size: int) -> None:
        row, place = ((around != mask_id) & (penalty != 0)[:, None]).nonzero().unbind(1)
        words, order = around[row, place].sort()
        self._row, self._column = row[order], words % size
        self._loss = -penalty[self._row]
        edges = torch.arange(0, vocabulary + size, size, device=words.device)
        self._edges: list[int] = torch.searchsorted(words, edges).tolist()

    def apply(self, logits: Tensor, k: int) -> None:
        """To the k-th part of the vocabulary, in place."""
        these = slice(self._edges[k], self._edges[k + 1])
        if these.start < these.stop:
            logits.index_put_((self._row[these], self._column[these]), self._loss[these], accumulate=True)


def _guide(logits: Tensor, without: Tensor, scale: Tensor, guided: Tensor) -> None:
    """Classifier-free guidance, in place: without + scale * (with - without) in the rows `guided`."""
    logits[guided] = torch.where(
        without.isneginf(),  # forbidden in both; -inf - -inf is nan
        without,
        without + scale[guided, None] * (logits[guided] - without),
    )


def _draw(logits: Tensor, chosen: Tensor, temperature: Tensor, top_p: Tensor, u: Tensor) -> Tensor:
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
