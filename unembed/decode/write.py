"""Beams of the writer: for each vector the likeliest texts, word by word from left to right.

The words of a text come from a shortlist, those that its bag of words finds likeliest; keys and values of what stands
are kept, so that a word costs one place of the net and not a whole pass. Every beam may end at every place, and goes on
all the same; what has ended is judged by

    log p(its words and its end) / words^POWER + FORESIGHT x foreseen cosine + LENGTH x log p(length)

The cosine is the surrogate's: a beam that leaves something unsaid is often likelier than the true text. The best of
what has ended are judged once more where there is an echo: it hears the order of the words, too.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unembed.decode.plan import Candidate, Course, Stage, median
from unembed.decode.strategies.base import State
from unembed.model.writer import Told
from unembed.precision import product_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.decode.config import DecodeConfig
    from unembed.model.echo import Echo
    from unembed.model.sight import Guess
    from unembed.model.writer import Writer

# Words that may stand in a text.
SHORTLIST = 1024
# Chosen on validation texts (docs/LOG.md, sixteenth session).
POWER, FORESIGHT, LENGTH = 0.8, 15.0, 0.1
# A text is given up when it is so many words longer than expected, and than the best one that has ended.
PATIENCE = 2
# An echo judges half as many texts as there are beams; its cosine takes the place of the surrogate's.
HEARD, ECHO = 2, 30.0
HEARD_AT_ONCE = 32
# Of so many times as many beams those go on that are likeliest, STEER x foreseen cosine so far included.
MORE, STEER = 4, 5.0

Standing: TypeAlias = tuple[Tensor, Tensor]
"""Of every text the likeliest beam so far, (texts, words), and the log-probability of each word."""


@dataclass(slots=True)
class _Ended:
    """The best texts that have ended, `keep` for each vector."""

    score: Tensor  # (n, keep)
    length: Tensor  # (n, keep)
    tokens: Tensor  # (n, keep, longest)
    log_p: Tensor  # (n, keep, longest)

    @classmethod
    def none(cls, n: int, keep: int, longest: int, device: torch.device) -> _Ended:
        """Nothing has ended yet."""
        log_p = torch.zeros(n, keep, longest, device=device)
        tokens, nothing = log_p.long(), log_p[..., 0] - torch.inf
        return cls(nothing, tokens[..., 0].clone(), tokens, log_p)

    def add(self, rows: Tensor, score: Tensor, tokens: Tensor, log_p: Tensor) -> None:
        """Texts of one length (rows, beams, words), with their scores (rows, beams)."""
        room = self.tokens.shape[2] - tokens.shape[2]
        keep = self.score.shape[1]
        both = torch.cat([self.score[rows], score], 1)
        self.score[rows], order = both.topk(keep, dim=1)
        length = torch.cat([self.length[rows], torch.full_like(score, tokens.shape[2], dtype=torch.long)], 1)
        self.length[rows] = length.gather(1, order)
        order = order[..., None].expand(-1, -1, self.tokens.shape[2])
        self.tokens[rows] = torch.cat([self.tokens[rows], F.pad(tokens, (0, room))], 1).gather(1, order)
        self.log_p[rows] = torch.cat([self.log_p[rows], F.pad(log_p, (0, room))], 1).gather(1, order)

    def hear(self, echo: Echo, meanings: Tensor, aims: Tensor) -> None:
        """Put the cosine that an echo foresees in the place of the surrogate's."""
        rows, places = (self.score > -torch.inf).nonzero(as_tuple=True)
        rows, places = (at[self.length[rows, places].argsort(stable=True)] for at in (rows, places))
        for first in range(0, len(rows), HEARD_AT_ONCE):
            some = slice(first, first + HEARD_AT_ONCE)
            row, place = rows[some], places[some]
            length = self.length[row, place]
            tokens = self.tokens[row, place, : int(length.max())]
            there = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
            said = (meanings[tokens] * there[..., None]).sum(1)
            before = _cosines(said[:, None], aims[row])[:, 0]
            now = (echo(tokens, there) * aims[row]).sum(1)
            self.score[row, place] += (ECHO * now - FORESIGHT * before).to(self.score.dtype)
        self.score, order = self.score.sort(dim=1, descending=True, stable=True)
        self.length = self.length.gather(1, order)
        order = order[..., None].expand_as(self.tokens)
        self.tokens, self.log_p = self.tokens.gather(1, order), self.log_p.gather(1, order)

    def candidates(self) -> list[list[Candidate]]:
        """For each vector its texts, the best first."""
        columns = (self.score.tolist(), self.length.tolist(), self.tokens.tolist(), self.log_p.exp().tolist())
        return [
            [
                Candidate(tuple(t[:k]), tuple(p[:k]), s, k, k)
                for s, k, t, p in zip(*one, strict=True)
                if s > -math.inf  # fewer have ended than were to be kept
            ]
            for one in zip(*columns, strict=True)
        ]


class Shortlists:
    """The words that may stand in each text, those that its bag of words finds likeliest, and how likely they are."""

    def __init__(self, writer: Writer, heard: Tensor, first: Tensor | None = None) -> None:
        """`heard` (n, h) as the writer heard the vectors; `first` (n, k): words that head the lists, come what may.

        Where one of these comes again its later places are never chosen.
        """
        scores = writer.base.logits(heard).float()  # (n, vocab)
        if first is None:
            self._kept, self._words = scores.topk(min(SHORTLIST, writer.config.vocab_size - 1), dim=1)
        else:
            likely = scores.scatter(1, first, -torch.inf).topk(min(SHORTLIST, writer.config.vocab_size - 1), dim=1)
            self._words = torch.cat([first, likely.indices], 1)
            again = (first[:, :, None] == first[:, None]).tril(-1).any(2)
            self._kept = torch.cat([scores.gather(1, first).masked_fill(again, -torch.inf), likely.values], 1)
        # Under autocast it would else be converted at every place; once for all texts is less than once for each.
        words = writer.base.embed.weight
        self._table = words.to(product_dtype(words))[self._words]  # (n, S, width)
        self._writer, self.size = writer, self._words.shape[1]

    def log_p(self, hidden: Tensor, rows: Tensor, copied: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Of the words and, last, of the end, at places (texts, places, width): (texts, places, S + 1).

        `copied`: places of the lists (texts, k) and what a guess adds to them (texts, places, k).
        """
        # One text after the other: the words of all that are left would first have to be copied together.
        each = [F.linear(one, self._table[row]) for one, row in zip(hidden, rows.tolist(), strict=True)]
        scores = torch.stack(each).float() + self._kept[rows, None]
        last = (hidden.float() @ self._writer.end + self._writer.end_bias)[..., None]
        scores = torch.cat([scores, last], 2)
        if copied is not None:
            scores.scatter_add_(2, copied[0][:, None].expand_as(copied[1]), copied[1])
        return scores.log_softmax(2)

    def places_of(self, ids: Tensor) -> Tensor:
        """Where these words (n, k) of each text's own stand in its list; the last place, the end's, if nowhere."""
        there = self._words[:, :, None] == ids[:, None]  # (n, S, k)
        return torch.where(there.any(1), there.int().argmax(1), self.size)

    def ids(self, rows: Tensor, places: Tensor) -> Tensor:
        """The words at these places of the lists, (texts, k); -1 is the end."""
        return F.pad(self._words[rows], (0, 1), value=-1).gather(1, places)


def beam_search(
    writer: Writer,
    vectors: Tensor,
    width: int,
    keep: int,
    echo: Echo | None = None,
    guess: Guess | None = None,
    stems: Tensor | None = None,
) -> Generator[Standing, None, list[list[Candidate]]]:
    """After each word what stands of the texts at work; at the end, for each vector (n, d), `keep` texts.

    With a `guess` these are corrections of it; with `stems` (n, L) they begin with those words, up to the first -1.
    """
    n, longest, device = len(vectors), writer.config.max_tokens, vectors.device
    given, heard, seen = writer.listen(vectors, guess)
    told, lists = given, Shortlists(writer, heard, _to_head(guess, stems))  # `told`: of every beam
    copied_at = None if given.copied is None else lists.places_of(given.copied.words)
    stem_at = None if stems is None else lists.places_of(stems)
    begun = torch.zeros(n, dtype=torch.long, device=device) if stems is None else (stems >= 0).sum(1)
    plain = given.c if guess is None else writer.hear(vectors)[0]
    lengths = writer.base.length_logits(plain).float().log_softmax(1)  # (n, longest + 1)
    expected = torch.maximum(median(lengths)[:, 0], begun)
    aims = F.normalize(given.aims.float(), dim=1)
    ended = _Ended.none(n, keep if echo is None else max(keep, -(-width // HEARD)), longest, device)

    rows, live = torch.arange(n, device=device), 1  # texts at work; all beams of a text begin as one
    first = int(begun.min()) if n else 0  # words that stand in all texts are read in one pass
    stem = torch.zeros(n, 0, dtype=torch.long, device=device) if stems is None else stems[:, :first]
    hidden, memory = writer.begin(stem, told, seen)
    tokens, log_ps = stem[:, None], torch.zeros(n, 1, first, device=device)
    if first and stem_at is not None:
        copied = _copies(writer, told, tokens, hidden[:, :-1], copied_at, rows, 0)
        log_ps[:, 0] = lists.log_p(hidden[:, :-1], rows, copied).gather(2, stem_at[:, :first, None])[..., 0]
    totals, said = log_ps.sum(2), writer.meanings[stem].sum(1, keepdim=True)
    hidden = hidden[:, -1:]
    for length in range(first, longest + 1):
        if length < longest:
            log_p = lists.log_p(hidden, rows, _copies(writer, told, tokens, hidden, copied_at, rows, length))
            if stem_at is not None and length < stem_at.shape[1]:
                log_p = _only(log_p, stem_at[rows, length], length < begun[rows])
        if length:
            # A text of the longest kind just ends: the writer has not learned of its end.
            total = totals + log_p[..., -1] if length < longest else totals
            near = _cosines(said, aims[rows])
            score = total / length**POWER + FORESIGHT * near + LENGTH * lengths[rows, length, None]
            ended.add(rows, score, tokens, log_ps)
        if length == longest:
            break
        further = (totals[..., None] + log_p[..., :-1]).flatten(1)
        best, places = further.topk(min(MORE * width, further.shape[1]), dim=1)
        there = said[torch.arange(len(rows), device=device)[:, None], places // lists.size]
        there = there + writer.meanings[lists.ids(rows, places % lists.size)]
        order = (best + STEER * _cosines(there, aims[rows])).topk(min(width, further.shape[1]), dim=1).indices
        best, places = best.gather(1, order), places.gather(1, order)  # (texts, width)
        best_yet = torch.maximum(ended.length[rows, 0], expected[rows])
        at = (length - best_yet < PATIENCE).nonzero()[:, 0]
        if not len(at):
            break
        beam, word = places[at] // lists.size, places[at] % lists.size
        fewer = len(at) < len(rows)
        if fewer or beam.shape[1] != live:
            spread = rows[at].repeat_interleave(beam.shape[1])
            told = given.rows(spread)
        rows, from_ = rows[at], (at[:, None], beam)
        ids = lists.ids(rows, word)
        tokens = torch.cat([tokens[from_], ids[..., None]], 2)
        log_ps = torch.cat([log_ps[from_], log_p[at[:, None], beam, word][..., None]], 2)
        totals, said = best[at], said[from_] + writer.meanings[ids]
        memory.choose(at if fewer else None, beam)
        live = ids.shape[1]
        yield tokens[:, 0], log_ps[:, 0]
        if length + 1 < longest:  # of the place behind the longest text nothing is asked
            hidden = writer.next_place(writer.before(writer.base.embed(ids)), said, told, length + 1, memory)
    if echo is not None:
        ended.hear(echo, writer.meanings, aims)
    return [found[:keep] for found in ended.candidates()]


def _to_head(guess: Guess | None, stems: Tensor | None) -> Tensor | None:
    """Words that shortlists must hold."""
    words = [] if guess is None else [guess.tokens]
    if stems is not None:
        words.append(stems.clamp(min=0))
    return torch.cat(words, 1) if words else None


def _only(log_p: Tensor, words: Tensor, where: Tensor) -> Tensor:
    """No word but one of each text's, and no end, where texts (texts, beams, S + 1) have words given."""
    others = torch.arange(log_p.shape[2], device=log_p.device) != words[:, None]
    return log_p.masked_fill((others & where[:, None])[:, None], -torch.inf)


def _copies(
    writer: Writer, told: Told, tokens: Tensor, hidden: Tensor, at: Tensor | None, rows: Tensor, first: int
) -> tuple[Tensor, Tensor] | None:
    """What a guess adds at places of all beams, or at several places of one, as `Shortlists.log_p` takes it.

    `hidden` (texts, beams, width) are the place `first` of all beams, or those from there on where there is one only.
    """
    if at is None:
        return None
    texts, live, length = tokens.shape
    by_beam = hidden.reshape(texts * live, -1, hidden.shape[-1])
    found = writer.copies(told, tokens.reshape(texts * live, length), by_beam, first)
    return None if found is None else (at[rows], found[1].view(texts, hidden.shape[1], -1))


def _cosines(said: Tensor, aims: Tensor) -> Tensor:
    """Of what beams have said (texts, beams, d) with where they are to arrive (texts, d)."""
    cosines: Tensor = (said @ aims[..., None])[..., 0] / said.norm(dim=2).clamp(min=1e-6)
    return cosines


def write(
    writer: Writer,
    vectors: Tensor,
    width: int,
    keep: int = 1,
    echo: Echo | None = None,
    guess: Guess | None = None,
    stems: Tensor | None = None,
) -> list[list[Candidate]]:
    """For each vector (n, d) its `keep` best texts; the rest as in `beam_search`."""
    search = beam_search(writer, vectors, width, max(keep, 1), echo, guess, stems)
    while True:
        try:
            next(search)
        except StopIteration as end:
            found: list[list[Candidate]] = end.value
            return found


def written(writer: Writer, vectors: NDArray[np.float32], config: DecodeConfig, echo: Echo | None = None) -> Course:
    """Every state of one vector (1, d): words that stand, then masks to the expected length; at the end the texts."""
    vector = torch.from_numpy(np.ascontiguousarray(vectors)).to(writer.position.device)
    c, _ = writer.hear(vector)
    expected = int(median(writer.base.length_logits(c).float().log_softmax(1)))
    mask = writer.config.mask_id
    search = beam_search(writer, vector, config.beams, config.n_best, echo if config.echo else None)
    step = 0
    while True:
        try:
            tokens, log_p = next(search)
        except StopIteration as end:
            candidates: list[Candidate] = end.value[0]
            break
        step += 1
        masks = max(expected - step, 1)  # it goes on until it says that it ends
        state = F.pad(tokens.cpu(), (0, masks), value=mask), F.pad(log_p.exp().cpu(), (0, masks))
        yield Stage(State(*state, step, torch.tensor([step])), None)
    best, step = candidates[0], step + 1  # the best of all that have ended
    last = State(torch.tensor([best.tokens]), torch.tensor([best.confidence]), step, torch.tensor([step]))
    yield Stage(last, candidates)
