"""Sight: lets a writer see a guess that is to be corrected, the guess's vector, and how far that is from the target.

    seen = sight(guess, vectors, words)     keys and values for every block, and what every place is told

It is Vec2Text's idea: p(text | vector, guess, vector of the guess). The words of the guess are places that the writer
may look at from anywhere, in every block; they are not sent through the blocks themselves, so that seeing costs a sixth
of writing. Each knows its neighbours, so that a writer that has just put a word can find what follows it in the guess,
and how its own meaning lies to the vector and to what the guess lacks of it.

Beside that, words of the guess are made likelier or less likely at each place straight away, as a copying machine
would (`copy`): does the word before them stand just before this place, was it said already, is it about this far into
the text? What those facts are worth is learned, and differs with the place and with the word of the guess.

And it is known now how wrong the surrogate is about the guess: nearly as wrong it will be about a text like it, and
what is still unsaid at a place is reckoned up to there (`SHIFT`) instead of up to the vector.

What changes condition and words begins at zero; a writer without a guess is not touched by any of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.config import ModelConfig

# Size of what a word of the guess and a place are compared by.
KEYS = 64
# What is asked of a word of the guess and a place (see `likeness`), and what the answers are worth before anything is
# learned, in nats. A number by itself would take thousands of steps of Adam's to move: hence the gain.
FIRST_WORTH = (0.5, 1.5, 1.0, 0.3, 0.7, 0.5, -1.0)
FACTS, GAIN = len(FIRST_WORTH), 16.0
# Share of the surrogate's error about a guess that it makes about the true text too, about (docs/LOG.md, seventeenth
# session: cosine .875 with what it says of the true text, without any shift .822).
SHIFT = 0.7
# Hundreds of inputs that each take a step of Adam at once would move the condition far.
CALM = 0.1


@dataclass(slots=True)
class Guess:
    """Texts to be corrected, one for each vector; one that is valid nowhere is none."""

    tokens: Tensor  # (n, m)
    valid: Tensor  # (n, m)
    vectors: Tensor  # (n, d) what the encoder says of them

    def rows(self, index: Tensor | slice) -> Guess:
        """Some of them, without the columns that none of those needs."""
        valid = self.valid[index]
        longest = max(1, int(valid.sum(1).max())) if len(valid) else 1
        return Guess(self.tokens[index][:, :longest], valid[:, :longest], self.vectors[index])

    def to(self, device: torch.device) -> Guess:
        """The same on a device."""
        return Guess(self.tokens.to(device), self.valid.to(device), self.vectors.to(device))


def guess_of(texts: list[list[int]], vectors: Tensor) -> Guess:
    """Of texts of any length, an empty one being none."""
    longest = max(1, *(len(text) for text in texts)) if texts else 1
    tokens = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts]).view(len(texts), longest)
    lengths = torch.tensor([len(text) for text in texts])
    return Guess(tokens, torch.arange(longest) < lengths[:, None], vectors)


class Copied(NamedTuple):
    """Words that may be copied: those of the guess and then, as one more word, its end."""

    words: Tensor  # (n, m + 1)
    valid: Tensor  # (n, m + 1)
    rank: Tensor  # (n, m + 1) how often the same word stands before it in the guess
    worth: Tensor  # (n, m + 1, FACTS) what the facts are worth, as far as the word of the guess decides
    keys: Tensor  # (n, m + 1, k)

    def rows(self, index: Tensor) -> Copied:
        """Those of some texts."""
        return Copied(*(part[index] for part in self))


class Seen(NamedTuple):
    """What is seen of guesses."""

    aims: Tensor  # (n, d)
    past: list[tuple[Tensor, ...]]
    """For every block keys and values (n, heads, m, d) and which places are none (n, m)."""
    c: Tensor  # (n, width) added to the condition
    placed: Tensor  # (n, width) added to every place
    spoken: Tensor  # (n, width) added to what is said at every place
    copied: Copied


class Sight(nn.Module):
    """The part of a writer that looks at a guess."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width, dim = config.width, config.vector_dim
        self.end_id, self.heads = config.vocab_size, config.heads
        self.before = nn.Linear(width, width, bias=False)  # the word before a word of the guess
        self.after = nn.Linear(width, width, bias=False)  # ... and behind it
        self.mark = nn.Parameter(torch.zeros(width))
        self.worth = nn.Linear(2 * dim, width, bias=False)  # its meaning, times the target and times the gap
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.shown = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(config.layers))
        self.heed = nn.Sequential(nn.Linear(2 * dim, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.heed_shortcut = nn.Linear(2 * dim, width, bias=False)
        self.last = nn.Parameter(torch.zeros(width))  # the end of the guess
        self.fact_weight = nn.Parameter(torch.tensor(FIRST_WORTH) / GAIN)
        self.fact_word, self.fact_place = nn.Linear(width, FACTS), nn.Linear(width, FACTS)
        self.copy_word, self.copy_place = nn.Linear(width, KEYS), nn.Linear(width, KEYS)
        self.placed = nn.Linear(dim, width, bias=False)
        self.spoken = nn.Linear(dim, width, bias=False)
        nn.init.eye_(self.before.weight)
        silent = (self.after, self.worth, self.heed[2], self.heed_shortcut, self.placed, self.spoken)
        for layer in (*silent, self.fact_word, self.fact_place, self.copy_place):
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)

    @torch.no_grad()
    def start_from(self, blocks: nn.ModuleList, norm: nn.Module, some: slice = slice(None)) -> None:
        """Look at the words of a guess as the blocks, or some of them, look at any place."""
        if isinstance(norm, nn.LayerNorm):
            self.norm.load_state_dict(norm.state_dict())
        for mine, block in zip(self.shown[some], blocks, strict=True):
            width = mine.get_parameter("weight").shape[1]
            mine.get_parameter("weight").copy_(block.get_parameter("qkv.weight")[width:])
            mine.get_parameter("bias").copy_(block.get_parameter("qkv.bias")[width:])

    @torch.no_grad()
    def insert(self, place: int, block: nn.Module) -> None:
        """Show the guess to one more block, which began as this one."""
        new = nn.Linear(self.mark.shape[0], 2 * self.mark.shape[0])
        self.shown.insert(place, new)
        self.start_from(nn.ModuleList([block]), nn.Identity(), slice(place, place + 1))

    def forward(self, guess: Guess, vectors: Tensor, words: Tensor, meanings: Tensor, position: Tensor) -> Seen:
        """`vectors` (n, d) are the targets; `words` (n, m, width) and `meanings` (n, m, d) those of the guess."""
        aims, there = F.normalize(vectors, dim=1), F.normalize(guess.vectors, dim=1)
        some = guess.valid.any(1, keepdim=True)  # (n, 1)
        scale = math.sqrt(vectors.shape[1])
        gap = (aims - there) * some * scale  # (n, d)
        words = words * guess.valid[..., None]
        lies = torch.cat([meanings * (aims * scale)[:, None], meanings * gap[:, None]], 2)
        x = words + self.before(F.pad(words, (0, 0, 1, 0))[:, :-1]) + self.after(F.pad(words, (0, 0, 0, 1))[:, 1:])
        x = self.norm(x + self.mark + position[1 : 1 + words.shape[1]] + self.worth(lies))
        past: list[tuple[Tensor, ...]] = []
        for layer in self.shown:
            keys, values = layer(x).view(*x.shape[:2], 2, self.heads, -1).permute(2, 0, 3, 1, 4).contiguous()
            past.append((keys, values, ~guess.valid))
        both = torch.cat([there * some * scale, gap], 1)
        heeded = CALM * (self.heed(both) + self.heed_shortcut(both)) * some
        foreseen = F.normalize((meanings * guess.valid[..., None]).sum(1), dim=1)
        shifted = aims - SHIFT * (there - foreseen) * some
        return Seen(shifted, past, heeded, self.placed(gap), self.spoken(gap), self._copied(guess, x))

    def _copied(self, guess: Guess, x: Tensor) -> Copied:
        m = guess.tokens.shape[1]
        lengths = guess.valid.sum(1, keepdim=True)  # (n, 1)
        places = torch.arange(m + 1, device=x.device)
        words = F.pad(guess.tokens, (0, 1)).masked_fill(places == lengths, self.end_id)
        valid = (places <= lengths) & (lengths > 0)
        same = (words[:, :, None] == words[:, None]) & valid[:, None]  # (n, m + 1, m + 1)
        rank = same.tril(-1).sum(2)
        ends = (places == lengths)[..., None]
        states = torch.where(ends, self.last, F.pad(x, (0, 0, 0, 1)))
        return Copied(words, valid, rank, self.fact_word(states), self.copy_word(states))

    def copy(self, copied: Copied, tokens: Tensor, hidden: Tensor, first: int = 0) -> Tensor:
        """What is added to the logits of the words that may be copied: (n, T, m + 1).

        `hidden` (n, T, width) are the places from `first` on, `tokens` (n, first + T - 1) all words before the last of
        them.
        """
        facts = likeness(copied, tokens, first, hidden.shape[1])
        here = GAIN * self.fact_weight + self.fact_place(hidden)
        worth = here[:, :, None] + copied.worth[:, None]  # (n, T, m + 1, FACTS)
        alike = self.copy_place(hidden) @ copied.keys.transpose(1, 2) / math.sqrt(KEYS)
        added: Tensor = ((facts * worth).sum(3) + alike).float() * copied.valid[:, None]
        return added


def likeness(copied: Copied, tokens: Tensor, first: int, count: int) -> Tensor:
    """Facts about `count` places from `first` on of texts (n, L) and words of a guess: (n, count, m + 1, FACTS).

    That it is there at all; that the word before it is the word before the place; that so are the two before it; that
    the word before that is the word before the place (one was left out) or the one before that (one was changed); how
    near it is in number; that it was said as often already as the guess has said it by then.
    """
    n, m = copied.words.shape
    places = torch.arange(first, first + count, device=tokens.device)
    said = F.pad(tokens, (2, 1), value=-1)  # the start of a text is a word, too
    one, two = said[:, places + 1, None], said[:, places, None]  # (n, T, 1): the word before a place and that before it
    shown = F.pad(copied.words, (2, 0), value=-1)
    before, earlier = shown[:, None, 1 : m + 1], shown[:, None, :m]  # (n, 1, m)
    follows = one == before
    number = torch.arange(m, device=tokens.device)
    near = 1 / (1 + (places[:, None] - number).abs().float())
    uses = (tokens[:, None, :, None] == copied.words[:, None, None]) & (
        torch.arange(tokens.shape[1], device=tokens.device) < places[:, None]
    )[None, :, :, None]  # (n, T, L, m)
    used = uses.sum(2) > copied.rank[:, None]
    facts = (
        torch.ones_like(follows), follows, follows & (two == earlier), one == earlier,
        (two == earlier) & ~follows, near.expand(n, -1, -1), used,
    )  # fmt: skip
    return torch.stack([fact.float() for fact in facts], 3)
