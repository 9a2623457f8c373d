"""What a writer does in a search: it goes on with a text from any place, and judges how well a text reads.

The denoiser changes words where they stand. The writer keeps the beginning of a text and writes the rest anew: shown
the parent and its vector, as a correction of it, or, if it has not learned to see, as if the vector lay beyond the
target as seen from the parent. What the parent lacks is said then, in good order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from unembed.decode.write import Shortlists
from unembed.model.sight import guess_of
from unembed.model.writer import past_of
from unembed.precision import product_dtype

if TYPE_CHECKING:
    from unembed.decode.feedback.refill import Blank
    from unembed.model.writer import Writer

# Texts that are written or judged together.
WRITTEN, JUDGED = 192, 64


def go_on(writer: Writer, blanks: Sequence[Blank]) -> None:
    """Write the rest of every blank, whose tokens are a beginning and whose `aim` is the vector to write for."""
    ordered = sorted(blanks, key=lambda blank: len(blank.tokens))
    for first in range(0, len(ordered), WRITTEN):
        _go_on(writer, ordered[first : first + WRITTEN])


def _go_on(writer: Writer, blanks: list[Blank]) -> None:
    device, longest = writer.position.device, writer.config.max_tokens
    unique, twin = _twins(blanks)
    vectors = torch.stack([blank.aim for blank in unique if blank.aim is not None]).to(device)
    guess = None
    if unique[0].there is not None:
        there = torch.stack([blank.there for blank in unique if blank.there is not None])
        guess = guess_of([list(blank.guess) for blank in unique], there).to(device)
    told, heard, past = writer.listen(vectors, guess)
    # All words of the vocabulary: a text with one that was left out could never be found.
    kept = writer.base.logits(heard).float()  # (unique, vocab)
    words, end = writer.base.embed.weight, writer.config.vocab_size
    words = words.to(product_dtype(words))
    shared = min(len(blank.tokens) for blank in blanks)
    beginnings = torch.tensor([blank.tokens[:shared] for blank in unique], device=device).long()
    hidden, said, past = writer.begin(beginnings, told, past)

    owner = torch.tensor(twin, device=device)
    hidden, said, past = hidden[owner], said[owner], past_of(past, owner)
    temperature = torch.tensor([blank.temperature for blank in blanks], device=device)[:, None]
    u = torch.stack([blank.u[0] for blank in blanks]).to(device)
    given = [list(blank.tokens) for blank in blanks]
    rows = torch.arange(len(blanks), device=device)
    standing = F.pad(beginnings[owner], (0, longest - shared))  # the words of the texts at work
    for place in range(shared, longest):
        scores = F.linear(hidden[:, 0], words).float() + kept[owner[rows]]
        logits = torch.cat([scores, hidden.float() @ writer.end + writer.end_bias], 1)
        if copied := writer.copies(told.rows(owner[rows]), standing[:, :place], hidden, place):
            logits.scatter_add_(1, copied[0], copied[1][:, 0])
        log_p = logits.log_softmax(1)
        if place == 0:
            log_p[:, end] = -torch.inf  # not yet
        p = (log_p / temperature[rows]).softmax(1).cumsum(1)
        drawn = torch.searchsorted(p, u[rows, place, None].float() * p[:, -1:]).clamp(max=end)
        chances, chosen = log_p.gather(1, drawn).exp()[:, 0].tolist(), drawn[:, 0].tolist()
        keep, put = [], []
        for k, row in enumerate(rows.tolist()):
            if place < len(given[row]):
                word = given[row][place]
            elif (word := chosen[k]) < end:
                blanks[row].tokens.append(word)
                blanks[row].sure.append(chances[k])
            else:
                continue
            keep.append(k)
            put.append(word)
        if not keep or place + 1 == longest:
            return
        at, ids = torch.tensor(keep, device=device), torch.tensor(put, device=device)[:, None]
        rows, said, past = rows[at], said[at] + writer.meanings[ids], past_of(past, at)
        standing = standing[at].index_copy(1, torch.tensor([place], device=device), ids)
        x = writer.before(writer.base.embed(ids))
        hidden, past = writer.next_place(x, said, told.rows(owner[rows]), place + 1, past)


def _twins(blanks: list[Blank]) -> tuple[list[Blank], list[int]]:
    """Blanks that differ in more than what is drawn, and which of them each is."""
    numbers: dict[tuple[object, ...], int] = {}
    unique: list[Blank] = []
    twin: list[int] = []
    for blank in blanks:
        aim = b"" if blank.aim is None else blank.aim.cpu().numpy().tobytes()
        key = (aim, blank.guess, *blank.tokens)
        if key not in numbers:
            numbers[key] = len(unique)
            unique.append(blank)
        twin.append(numbers[key])
    return unique, twin


def judge(writer: Writer, vectors: Tensor, texts: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
    """Of every text, the probability that the writer gives each of its words for the vector (n, d)."""
    found: list[tuple[float, ...]] = [()] * len(texts)
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))
    for first in range(0, len(order), JUDGED):
        some = order[first : first + JUDGED]
        longest = len(texts[some[-1]])
        tokens = torch.tensor([[*texts[k], *[0] * (longest - len(texts[k]))] for k in some], device=vectors.device)
        given = vectors[some]
        told, heard, _ = writer.listen(given)
        lists = Shortlists(writer, heard, tokens)
        p = lists.log_p(writer(tokens, told)[:, :-1], torch.arange(len(some), device=vectors.device)).exp()
        for row, k in enumerate(some):
            length = len(texts[k])
            found[k] = tuple(p[row, torch.arange(length), torch.arange(length)].tolist())
    return found
