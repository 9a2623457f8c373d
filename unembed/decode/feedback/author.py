"""What a writer does in a search: it goes on with a text from any place, and judges how well a text reads.

The denoiser changes words where they stand. The writer keeps the beginning of a text and writes the rest anew, as if
the vector lay beyond the target as seen from the parent: what the parent lacks is said then, in good order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unembed.decode.write import Shortlists, place_once

if TYPE_CHECKING:
    from unembed.decode.feedback.refill import Blank
    from unembed.model.writer import Writer

# Texts that are written or judged together.
BATCH = 64


def go_on(writer: Writer, blanks: Sequence[Blank]) -> None:
    """Write the rest of every blank, whose tokens are a beginning and whose `aim` is the vector to write for."""
    ordered = sorted(blanks, key=lambda blank: len(blank.tokens))
    for first in range(0, len(ordered), BATCH):
        _go_on(writer, ordered[first : first + BATCH])


def _go_on(writer: Writer, blanks: list[Blank]) -> None:
    vectors = torch.stack([blank.aim for blank in blanks if blank.aim is not None]).to(writer.position.device)
    c, heard = writer.hear(vectors)
    lists, modulations = Shortlists(writer, heard), writer.modulations(c)
    temperature = torch.tensor([blank.temperature for blank in blanks], device=vectors.device)[:, None]
    u = torch.stack([blank.u[0] for blank in blanks]).to(vectors.device)
    given = [list(blank.tokens) for blank in blanks]
    rows = torch.arange(len(blanks), device=vectors.device)
    x, past, said = writer.start.expand(len(blanks), 1, -1), None, torch.zeros_like(vectors)[:, None]
    for place in range(writer.config.max_tokens):
        hidden, past = place_once(writer, x, said, vectors[rows], (c[rows], modulations[rows]), place, past)
        log_p = lists.log_p(hidden, rows)[:, 0]  # (rows, S + 1)
        if place == 0:
            log_p = torch.cat([log_p[:, :-1], torch.full_like(log_p[:, -1:], -torch.inf)], 1)  # not yet
        p = (log_p / temperature[rows]).softmax(1).cumsum(1)
        drawn = torch.searchsorted(p, u[rows, place, None] * p[:, -1:]).clamp(max=log_p.shape[1] - 1)
        chances = log_p.gather(1, drawn).exp()[:, 0].tolist()
        words = lists.ids(rows, drawn)[:, 0].tolist()  # -1: the end
        keep, chosen = [], []
        for k, row in enumerate(rows.tolist()):
            blank = blanks[row]
            if place < len(given[row]):
                word = given[row][place]
            elif (word := words[k]) >= 0:
                blank.tokens.append(word)
                blank.sure.append(chances[k])
            else:
                continue
            keep.append(k)
            chosen.append(word)
        if not keep:
            return
        at, ids = torch.tensor(keep, device=vectors.device), torch.tensor(chosen, device=vectors.device)[:, None]
        rows, said = rows[at], said[at] + writer.meanings[ids]
        past = [(k.index_select(1, at), v.index_select(1, at)) for k, v in past]
        x = writer.before(writer.base.embed(ids))


def judge(writer: Writer, vectors: Tensor, texts: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
    """Of every text, the probability that the writer gives each of its words for the vector (n, d)."""
    found: list[tuple[float, ...]] = [()] * len(texts)
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))
    for first in range(0, len(order), BATCH):
        some = order[first : first + BATCH]
        longest = len(texts[some[-1]])
        tokens = torch.tensor([[*texts[k], *[0] * (longest - len(texts[k]))] for k in some], device=vectors.device)
        given = vectors[some]
        c, heard = writer.hear(given)
        lists = Shortlists(writer, heard, tokens)
        p = lists.log_p(writer(tokens, given, c)[:, :-1], torch.arange(len(some), device=vectors.device)).exp()
        for row, k in enumerate(some):
            length = len(texts[k])
            found[k] = tuple(p[row, torch.arange(length), torch.arange(length)].tolist())
    return found
