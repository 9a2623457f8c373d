"""Wrong texts for a writer to learn corrections from: its own mistakes.

Some texts are written for their vector as they would be in earnest, word by word, at a temperature. In others the true
word is put at a share of the places, as a search that has come nearer would have it, and of those some get words in
other places, a word too many or one too few.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from unembed.model.objective import Batch
from unembed.model.writer import Writer

FROM_NOTHING = 0.6
"""Share of the guesses in which no true word is put."""
TEMPERATURES = (0.05, 0.8)
EDITED = 0.5
"""Share of the other guesses whose words are moved, doubled or left out."""
WORDS = 64
"""Words of each text, by the bag of words, that the guesses of all texts of a batch are made of."""


@dataclass(slots=True)
class Dice:
    """All that is random about the guesses of a batch: the same whichever process makes them."""

    kind: Tensor  # (n, 5): is there a guess, from nothing, with which share of true words, how warm, how edited
    places: Tensor  # (n, 4): where
    true: Tensor  # (n, longest): whether the true word is put
    draws: Tensor  # (n, longest)

    def rows(self, index: Tensor) -> Dice:
        """Those of some texts."""
        return Dice(self.kind[index], self.places[index], self.true[index], self.draws[index])


def throw(n: int, longest: int, rng: torch.Generator) -> Dice:
    """The dice of n texts."""
    shapes = ((n, 5), (n, 4), (n, longest), (n, longest))
    return Dice(*(torch.rand(shape, generator=rng) for shape in shapes))


@torch.inference_mode()
def make(writer: Writer, batch: Batch, dice: Dice, words: Tensor | None = None) -> list[list[int]]:
    """A wrong text for each true one, made of these words, or of those of all its vectors."""
    rows = _written(writer, batch, dice, words_of(writer, batch.vectors) if words is None else words)
    for k, row in enumerate(rows):
        if dice.kind[k, 1] >= FROM_NOTHING:
            _edit(row, float(dice.kind[k, 4]), dice.places[k].tolist(), writer.config.max_tokens)
    return rows


@torch.inference_mode()
def words_of(writer: Writer, vectors: Tensor) -> Tensor:
    """The words that texts with these vectors (n, d) may be made of."""
    words = writer.base.logits(writer.hear(vectors)[1])
    candidates: Tensor = torch.unique(words.topk(min(WORDS, words.shape[1]), 1).indices)
    return candidates[~writer.base.forbidden[candidates]]


def _written(writer: Writer, batch: Batch, dice: Dice, candidates: Tensor) -> list[list[int]]:
    device, end, longest = batch.tokens.device, writer.config.vocab_size, writer.config.max_tokens
    given, heard, _ = writer.listen(batch.vectors)
    table, kept = writer.base.embed.weight[candidates], writer.base.logits(heard, candidates).float()
    ids = torch.cat([candidates, torch.tensor([end], device=device)])
    nothing = (dice.kind[:, 1] < FROM_NOTHING).to(device)
    put = (dice.true.to(device) < dice.kind[:, 2:3].to(device)) & ~nothing[:, None]
    low, high = TEMPERATURES
    warmth = (low + (high - low) * dice.kind[:, 3:4]).to(device)

    rows: list[list[int]] = [[] for _ in batch.tokens]
    at = torch.arange(len(rows), device=device)  # texts that go on
    told = given
    hidden, memory = writer.begin(batch.tokens[:, :0], told)
    said = torch.zeros_like(batch.vectors)[:, None]
    for place in range(longest):
        scores = F.linear(hidden[:, 0], table).float() + kept[at]
        logits = torch.cat([scores, (hidden.float() @ writer.end + writer.end_bias)], 1)
        # A text with true words in it ends where the true one does.
        logits[:, -1].masked_fill_((place == 0) | ~nothing[at], -torch.inf)
        p = (logits / warmth[at]).softmax(1).cumsum(1)
        drawn = torch.searchsorted(p, dice.draws[at.cpu(), place, None].to(device) * p[:, -1:])[:, 0]
        word = ids[drawn.clamp(max=len(ids) - 1)]
        if place < batch.tokens.shape[1]:
            word = torch.where(put[at, place], batch.tokens[at, place], word)
        word = torch.where(~nothing[at] & (place >= batch.lengths[at]), end, word)
        on = (word != end).nonzero()[:, 0]
        if not len(on):
            break
        ended, at, word = len(on) < len(at), at[on], word[on, None]
        for row, one in zip(at.tolist(), word[:, 0].tolist(), strict=True):
            rows[row].append(one)
        if ended:
            told, said = given.rows(at), said[on]
            memory.choose(on, torch.zeros(len(on), 1, dtype=torch.long, device=device))
        said = said + writer.meanings[word]
        if place + 1 < longest:
            hidden = writer.next_place(writer.before(writer.base.embed(word)), said, told, place + 1, memory)
    return rows


def _edit(row: list[int], kind: float, places: list[float], longest: int) -> None:
    """Move a span, change two words, double a word or leave one out; or nothing."""
    n = len(row)
    if kind >= EDITED or n < 3:
        return
    a, b = int(places[0] * n), int(places[1] * n)
    share = kind / EDITED
    if share < 0.35:
        span = row[a : a + 1 + int(places[2] * 4)]
        del row[a : a + len(span)]
        place = int(places[3] * (len(row) + 1))
        row[place:place] = span
    elif share < 0.6:
        row[a], row[b] = row[b], row[a]
    elif share < 0.8 and n < longest:
        row.insert(b, row[a])
    else:
        del row[a]
