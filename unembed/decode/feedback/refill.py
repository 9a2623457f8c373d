"""Masks filled by the denoiser, for texts of any length and of any vector in shared passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unembed.decode.head import PLACES, pad_rows, top_words
from unembed.decode.steer import Steer, steered

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from unembed.decode.feedback.whitebox import Slopes
    from unembed.model.denoiser import Denoiser

BATCH = 64
# Tokens that are drawn from at a position: the likeliest ones.
TOP = 64


@dataclass(slots=True)
class Blank:
    """A text with masks, and how they are to be filled."""

    tokens: list[int]
    sure: list[float]
    """Probability of each token when it was chosen; those of filled masks are written here."""
    c: Tensor  # (width,) the condition
    u: Tensor  # (passes, L) random numbers
    temperature: float
    push: Tensor | None = None
    """(L, d): what it gives multiplied with the words is added to the logits."""
    guide: float = 0.0
    """Above 0: in every pass the gradient of the cosine with `target` is added, so many times."""
    target: Tensor = field(default_factory=lambda: torch.empty(0))  # (dim,)
    offset: Tensor | None = None
    """(dim,): by how much the surrogate is wrong near this text; its words are then steered to the target."""
    aim: NDArray[np.float32] | None = None
    """(dim,): the vector that the writer wrote it for, or the text that it was changed from."""
    gradients: int = 0
    """Backward passes it took."""


class Filler:
    """Fills blanks in place."""

    def __init__(
        self,
        net: Denoiser,
        repeat_penalty: float,
        slopes: Slopes | None = None,
        words: Tensor | None = None,
        steering: float = 0.0,
    ) -> None:
        """`words` (vocab, d) is what each word adds to the vector of its text, for blanks that are steered."""
        self._net, self._penalty, self._slopes = net, repeat_penalty, slopes
        self._words, self._steering = words, steering

    def fill(self, blanks: Sequence[Blank], passes: int) -> None:
        """Fill every mask; in each pass the surest share of those that are left."""
        for number in range(passes):
            masked = [blank for blank in blanks if self._net.config.mask_id in blank.tokens]
            masked.sort(key=lambda blank: len(blank.tokens))  # so that little is padded
            for first in range(0, len(masked), BATCH):
                self._pass(masked[first : first + BATCH], number, passes - number)

    def _pass(self, batch: list[Blank], number: int, left: int) -> None:
        unique, twin = _twins(batch)
        tokens, at, hidden = self._hidden(unique)  # (n, L), (m, 2), (m, width)
        push = self._push(unique, tokens, at, hidden)  # (m, d)
        parts = []
        for first in range(0, len(at), PLACES):
            part = slice(first, first + PLACES)
            logits = self._logits(hidden[part], tokens[at[part, 0]])
            if push is not None and self._slopes is not None:
                logits += push[part] @ self._slopes.words.T
            parts.append((*top_words(logits, logits.shape[1], TOP), logits.logsumexp(1)))
        values, words, spread = (torch.cat(column) for column in zip(*parts, strict=True))
        weighed = self._steered(unique, tokens, at, values, words)
        places: list[list[int]] = [[] for _ in unique]  # of each text, as rows of `at`
        for k, row in enumerate(at[:, 0].tolist()):
            places[row].append(k)
        drawn = torch.tensor([k for row in twin for k in places[row]])
        u = torch.cat([blank.u[number, at[places[row], 1]] for blank, row in zip(batch, twin, strict=True)])
        counts = torch.tensor([len(places[row]) for row in twin])
        temperature = torch.tensor([blank.temperature for blank in batch]).repeat_interleave(counts)
        found = _draw(weighed[drawn], values[drawn], words[drawn], spread[drawn], temperature, u)
        chosen, log_p = (column.tolist() for column in found)
        first = 0
        for blank, row in zip(batch, twin, strict=True):
            mine = range(first, first + len(places[row]))
            first = mine.stop
            # Rounded, so that of equally sure ones the first is taken, whatever the last bits say.
            for k in sorted(mine, key=lambda k: -round(log_p[k], 4))[: -(-len(mine) // left)]:
                place = int(at[drawn[k], 1])
                blank.tokens[place], blank.sure[place] = chosen[k], math.exp(log_p[k])

    def _hidden(self, batch: list[Blank]) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, padded by masks; the masked places as (text, position); the hidden states there."""
        mask, device = self._net.config.mask_id, self._net.bias.device
        lengths = torch.tensor([len(blank.tokens) for blank in batch])
        longest = int(lengths.max())
        tokens = torch.tensor([[*blank.tokens, *[mask] * (longest - len(blank.tokens))] for blank in batch])
        valid = torch.arange(longest) < lengths[:, None]
        masked = (tokens == mask) & valid
        places = masked.flatten().nonzero()[:, 0]
        t, c = masked.sum(1) / lengths, torch.stack([blank.c for blank in batch])
        given = (tokens.to(device), pad_rows(t).to(device), pad_rows(c).to(device))
        where = (None if bool(valid.all()) else valid.to(device), pad_rows(places).to(device))
        hidden = self._net(*given, *where)
        return tokens, masked.nonzero(), hidden[: len(places)]

    def _logits(self, hidden: Tensor, around: Tensor) -> Tensor:
        """Logits (m, vocab) on the CPU; what stands in the text (m, L) already is made less likely."""
        logits = self._net.logits(pad_rows(hidden))[: len(hidden)].float().cpu()
        return logits.scatter_add_(1, around, torch.full(around.shape, -self._penalty))

    def _steered(self, batch: list[Blank], tokens: Tensor, at: Tensor, values: Tensor, words: Tensor) -> Tensor:
        """The logits (m, TOP) with what the surrogate foresees of the words, where it is known how wrong it is."""
        offsets = [blank.offset for blank in batch if blank.offset is not None]
        if self._words is None or len(offsets) < len(batch):
            return values
        steer = Steer(self._words, torch.stack([blank.target for blank in batch]), self._steering, torch.stack(offsets))
        padding = tokens.shape[1] - torch.tensor([len(blank.tokens) for blank in batch])
        return steered(steer, tokens, self._net.config.mask_id, at[:, 0], values, words, padding)

    def _push(self, batch: list[Blank], tokens: Tensor, at: Tensor, hidden: Tensor) -> Tensor | None:
        """What the gradients say about each masked place, (m, d); None where nobody asked them."""
        if self._slopes is None or not any(blank.guide or blank.push is not None for blank in batch):
            return None
        push = torch.zeros(len(at), self._slopes.words.shape[1])
        for k, (row, place) in enumerate(at.tolist()):
            given = batch[row].push
            if given is not None:
                push[k] = given[place]
        guided = [row for row, blank in enumerate(batch) if blank.guide]
        if guided:
            soft = self._slopes.words[tokens]  # (n, L, d)
            wanted = torch.isin(at[:, 0], torch.tensor(guided)).nonzero()[:, 0]
            for some in torch.split(wanted, PLACES):
                p = self._logits(hidden[some], tokens[at[some, 0]]).float().softmax(1)
                soft[at[some, 0], at[some, 1]] = (p @ self._slopes.words).float()
            texts = [soft[row, : len(batch[row].tokens)] for row in guided]
            slopes = self._slopes.at_words(texts, torch.stack([batch[row].target for row in guided]))
            by_row = dict(zip(guided, slopes, strict=True))
            for row in guided:
                batch[row].gradients += 1
            for k in wanted.tolist():
                row, place = at[k].tolist()
                push[k] += batch[row].guide * by_row[row][place]
        return push


def _twins(batch: list[Blank]) -> tuple[list[Blank], list[int]]:
    """The different texts of a batch, and which of them each blank is: copies share a condition and need one pass."""
    numbers: dict[tuple[int, ...], int] = {}
    unique: list[Blank] = []
    twin: list[int] = []
    for blank in batch:
        key = (id(blank.c), *blank.tokens)
        if blank.guide or key not in numbers:
            numbers[key] = len(unique)
            unique.append(blank)
        twin.append(numbers[key])
    return unique, twin


def _draw(
    weighed: Tensor, values: Tensor, words: Tensor, spread: Tensor, temperature: Tensor, u: Tensor
) -> tuple[Tensor, Tensor]:
    """The token that the random number falls on, among the likeliest (m, TOP); its log-probability. -> (m,), (m,).

    It is drawn by `weighed`; what it is worth as language is told by `values`, the denoiser's own logits. `spread` (m,)
    is the logarithm of what the whole vocabulary adds up to.
    """
    order = weighed.argsort(dim=1, descending=True, stable=True)  # the likeliest first
    weighed, values, words = (column.gather(1, order) for column in (weighed, values, words))
    p = (weighed / temperature[:, None]).softmax(1).double().cumsum(1)
    place = torch.searchsorted(p, u[:, None].double() * p[:, -1:], right=True).clamp(max=p.shape[1] - 1)
    log_p = (values.gather(1, place)[:, 0] - spread).clamp(max=0.0)
    return words.gather(1, place)[:, 0], log_p
