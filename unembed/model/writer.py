"""The writer: the denoiser's layers turned into a net that writes from left to right, conditioned on the vector.

    told, heard, seen = writer.listen(vectors)      (n, d) -> what every place is told, what is heard of words (n, h)
    written = writer(tokens, told, seen)            (n, L) -> (n, L + 1, width)    place i knows the words before it
    writer.logits(written, heard)           (n, L + 1, width), (n, h) -> (n, L + 1, vocab + 1)    the last word: the end
    writer.copies(told, tokens, written)    what a guess adds to these

A denoiser learns to fill any places of a text from any others. That is what lets it reveal many words at once, and it
is dear: of 2^L questions that a text holds, a pass asks one. Where the order is fixed, each place a mask and everything
before it visible, a causal net answers all L questions of a text in one pass, so it learns the order of words from far
fewer texts; and it says itself where a text ends. It costs the denoiser's freedom: words come one after the other.

Its layers begin as copies of the denoiser's. Words, conditioner, bag of words and reader stay the inverter's own: they
are shared, never trained here and not in its file. At every place it is told what the words before have said of the
vector and what is still unsaid, as a surrogate of the encoder sees it. With a `Sight` it can also be shown a guess and
the guess's vector, and then it writes what the text is rather than that: a corrector.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.config import ModelConfig
from unembed.errors import ConfigError
from unembed.model import fused
from unembed.model.denoiser import Block, Denoiser, softmax, time_features
from unembed.model.memory import NOT_THERE, Memory, Past
from unembed.model.sight import Copied, Guess, Seen, Sight
from unembed.model.surrogate import Surrogate

# Texts whose logits are computed together in training: times 24 places and 6,000 candidates, 14 MB.
PART_TEXTS = 24


class Told(NamedTuple):
    """What all places of a text are told of its vector and, if one is shown, of the guess."""

    aims: Tensor  # (n, d) what is to be said, as a surrogate of the encoder would see it
    c: Tensor  # (n, width)
    modulations: Tensor  # (n, blocks, 6 width)
    placed: Tensor | None = None  # (n, width) added to every place
    spoken: Tensor | None = None  # ... and to what is said there
    copied: Copied | None = None  # words of the guess that may be copied

    def rows(self, index: Tensor) -> Told:
        """Those of some texts."""
        if self.copied is None or self.placed is None or self.spoken is None:
            return Told(self.aims[index], self.c[index], self.modulations[index])
        plain = Told(self.aims[index], self.c[index], self.modulations[index])
        return plain._replace(placed=self.placed[index], spoken=self.spoken[index], copied=self.copied.rows(index))


class CausalBlock(Block):
    """A block of the denoiser in which no place sees those behind it; time is always the same, so it is left out."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(replace(config, conv=False))
        del self.from_time

    @torch.no_grad()
    def start_from(self, block: Block) -> None:
        """Begin as this block half-way through a denoising."""
        told = block.from_time(time_features(torch.full((1,), 0.5, device=block.out.weight.device)))[0]
        tensors = {k: v for k, v in block.state_dict().items() if not k.startswith(("from_time.", "near"))}
        tensors["from_vector.bias"] = tensors["from_vector.bias"] + told
        self.load_state_dict(tensors)

    @torch.no_grad()
    def start_behind(self, block: CausalBlock) -> None:
        """Begin by (nearly) handing on what this block says, ready to look for what it looks for."""
        for mine, other in ((self.qkv, block.qkv), (self.up, block.up)):
            mine.load_state_dict(other.state_dict())
        for layer in (self.out, self.down, self.from_vector):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, modulation: Tensor, past: Past | None = None) -> tuple[Tensor, Past | None]:  # type: ignore[override]
        """New places (n, T, width) after those of `past`, and keys and values of them all (none while it learns)."""
        modulation = modulation[:, None]
        q, k, v = self._heads(self._linear(self._before_mixing(x, modulation), self.qkv))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        elif not self.training:
            k, v = k.contiguous(), v.contiguous()
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (n, heads, T, past + T)
        if q.shape[2] > 1:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device)
            scores = scores.masked_fill(later.triu(1 + k.shape[2] - q.shape[2]), NOT_THERE)
        if past is not None and len(past) > 2:  # a guess may be shorter than others
            none = F.pad(past[2], (0, k.shape[2] - past[2].shape[1]))
            scores = scores.masked_fill(none[:, None, None], NOT_THERE)
        mixed = (softmax(scores) @ v).transpose(1, 2).reshape(x.shape)
        # Nothing is kept where nothing is written: a graph of gradients would hang on it.
        kept = None if self.training else (k, v) if past is None else (k, v, *past[2:])
        return self._after_mixing(x, mixed, modulation), kept

    def step(self, x: Tensor, modulation: Tensor, memory: Memory, number: int) -> Tensor:
        """One new place of every beam, (beams, 1, width), by the block of this number."""
        modulation = modulation[:, None]
        q, k, v = self._heads(self._linear(self._before_mixing(x, modulation), self.qkv))
        return self._after_mixing(x, memory.attend(number, q, k, v), modulation)


class Writer(nn.Module):
    """p(next word | words before it, vector), and p(the text ends here)."""

    def __init__(self, base: Denoiser, surrogate: Surrogate, sees: bool = False, blocks: int = 0) -> None:
        """`sees`: it can be shown a guess; `blocks`: as many as the denoiser has where nothing is said."""
        super().__init__()
        self.config = config = base.config
        width, dim = config.width, config.vector_dim
        self._shared = [base]  # in a list: not a part of this module
        meanings = surrogate.word_vectors().detach().float()
        # A text of ten words of average weight comes to about unit variance.
        meanings = meanings / meanings.square().mean().sqrt() / 10**0.5
        self.register_buffer("meanings", meanings, persistent=False)
        self.meanings: Tensor
        self.position = nn.Parameter(base.position.detach().clone())
        self.embed_norm = copy.deepcopy(base.embed_norm)
        self.start = nn.Parameter(torch.zeros(width))  # what stands before the first word
        self.before = nn.Linear(width, width, bias=False)  # the word before a place
        nn.init.eye_(self.before.weight)
        self.account = nn.Linear(2 * dim, width, bias=False)  # what was said and what is unsaid, into a place
        self.account_spoken = nn.Linear(2 * dim, width, bias=False)  # ... and out of it
        for layer in (self.account, self.account_spoken):
            nn.init.zeros_(layer.weight)
        if config.prefix_tokens:
            self.prefix = nn.Parameter((base.prefix + base.position[:1]).detach().clone())
            self.prefix_vector = copy.deepcopy(base.prefix_vector)
        self.blocks = nn.ModuleList(CausalBlock(config) for _ in base.blocks)
        for mine, block in zip(self.blocks, base.blocks, strict=True):
            cast(CausalBlock, mine).start_from(cast(Block, block))
        self.final = copy.deepcopy(base.final)
        self.end = nn.Parameter(torch.zeros(width))
        self.end_bias = nn.Parameter(torch.zeros(()))
        self.sight = Sight(config) if sees else None
        if self.sight is not None:
            self.sight.start_from(self.blocks, self.embed_norm)
        self.grow(max(0, blocks - len(self.blocks)))
        self.requires_grad_(True)

    def grow(self, count: int) -> None:
        """Put so many new blocks between those that are there. What is written hardly changes by it."""
        old = len(self.blocks)
        behind = {(number + 1) * old // count - 1 for number in range(min(count, old))} if count else set()
        if len(behind) < count:
            raise ConfigError(f"a writer of {old} blocks can grow by {old} at once, not by {count}: grow it again")
        for place in sorted(behind, reverse=True):
            before = cast(CausalBlock, self.blocks[place])
            block = CausalBlock(self.config)
            block.start_behind(before)
            self.blocks.insert(place + 1, block)
            if self.sight is not None:
                self.sight.insert(place + 1, before)

    @property
    def base(self) -> Denoiser:
        """The inverter's denoiser, whose words are shared."""
        return self._shared[0]

    @torch.no_grad()
    def hear(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Of vectors (n, d): the condition (n, width), and what bag of words and reader say of the text (n, h)."""
        c = self.base.condition(vectors)
        return c[:, : self.config.width], self.base.bag_hidden(c)

    def listen(self, vectors: Tensor, guess: Guess | None = None) -> tuple[Told, Tensor, list[Past] | None]:
        """What every place is told, what is heard of the text's words (n, h), and the guess as the blocks see it."""
        c, heard = self.hear(vectors)
        if guess is None or self.sight is None:
            return Told(vectors, c, self._modulations(c)), heard, None
        words = self.base.embed(guess.tokens).detach()
        seen: Seen = self.sight(guess, vectors, words, self.meanings[guess.tokens], self.position)
        c = c + seen.c
        return Told(seen.aims, c, self._modulations(c), seen.placed, seen.spoken, seen.copied), heard, seen.past

    def _modulations(self, c: Tensor) -> Tensor:
        """What the vector says to every block, the same at all places."""
        return torch.stack([cast(CausalBlock, block).from_vector(c) for block in self.blocks], 1)

    def forward(self, tokens: Tensor, told: Told, seen: list[Past] | None = None) -> Tensor:
        """Every place of texts (n, L) and the one behind their last word: (n, L + 1, width)."""
        return self._read(tokens, told, seen)[0]

    def begin(self, tokens: Tensor, told: Told, seen: list[Past] | None = None) -> tuple[Tensor, Memory]:
        """The same of the beginnings of texts, all of one length, and what is remembered of them to go on."""
        hidden, kept = self._read(tokens, told, seen)
        return hidden, Memory(kept)

    def _read(self, tokens: Tensor, told: Told, seen: list[Past] | None) -> tuple[Tensor, list[Past]]:
        said = F.pad(self.meanings[tokens].cumsum(1), (0, 0, 1, 0))  # (n, L + 1, d), without the word of the place
        x = torch.cat([self.start.expand(len(tokens), 1, -1), self.before(self.base.embed(tokens).detach())], 1)
        account = self.reckon(said, told.aims)
        x, kept = self.through(self.place(x, account, 0), told, seen)
        return self.speak(x[:, self.config.prefix_tokens :], account, told), kept

    def reckon(self, said: Tensor, aims: Tensor) -> Tensor:
        """What the words so far (n, T, d) have said, and the part of the aims (n, d) that points elsewhere."""
        aims = F.normalize(aims, dim=1)[:, None]
        there = F.normalize(said, dim=2)
        unsaid = aims - (aims * there).sum(2, keepdim=True) * there
        return torch.cat([said, unsaid * self.config.vector_dim**0.5], 2)

    def place(self, x: Tensor, account: Tensor, first: int) -> Tensor:
        """Places from `first` on, from the words before them (n, T, width), as the first block takes them."""
        mask = self.base.embed.weight[self.config.mask_id].detach()
        placed: Tensor = x + mask + self.position[first + 1 : first + 1 + x.shape[1]] + self.account(account)
        return placed

    def through(self, x: Tensor, told: Told, past: list[Past] | None) -> tuple[Tensor, list[Past]]:
        """The first places (n, T, width), the prefix before them, through all blocks."""
        if told.placed is not None:
            x = x + told.placed[:, None]
        if self.config.prefix_tokens:
            carried = self.prefix_vector(told.c).view(-1, self.config.prefix_tokens, self.config.width)
            x = torch.cat([self.prefix + carried, x], 1)
        x, kept = self.embed_norm(x), []
        for number, (block, modulation) in enumerate(zip(self.blocks, told.modulations.unbind(1), strict=True)):
            x, known = block(x, modulation, None if past is None else past[number])
            kept.append(known)
        return x, kept

    def speak(self, x: Tensor, account: Tensor, told: Told) -> Tensor:
        """What the last block leaves, ready for the words."""
        hidden: Tensor = self.final(x) + self.account_spoken(account)
        return hidden if told.spoken is None else hidden + told.spoken[:, None]

    def next_place(self, x: Tensor, said: Tensor, told: Told, place: int, memory: Memory) -> Tensor:
        """Hidden states of one more place of all beams, (texts, live, width), from the words before it (of that shape).

        `said` (texts, live, d) is what those have said; `told` is what every beam is told.
        """
        texts, live, width = x.shape
        account = self.reckon(said.view(texts * live, 1, -1), told.aims)
        x = self.place(x.reshape(texts * live, 1, -1), account, place)
        if told.placed is not None:
            x = x + told.placed[:, None]
        x = self.embed_norm(x)
        memory.begin_place()
        for number, (block, modulation) in enumerate(zip(self.blocks, told.modulations.unbind(1), strict=True)):
            x = cast(CausalBlock, block).step(x, modulation, memory, number)
        return self.speak(x, account, told).view(texts, live, width)

    def logits(self, hidden: Tensor, heard: Tensor, words: slice | Tensor = slice(None)) -> Tensor:
        """Scores (n, T, words + 1) of hidden states (n, T, width) and what was heard (n, h); the last is the end."""
        spoken = F.linear(hidden, self.base.embed.weight[words])
        scores = spoken + self.base.logits(heard, words)[:, None]
        return torch.cat([scores, (hidden @ self.end + self.end_bias)[..., None].to(scores.dtype)], -1)

    def copies(self, told: Told, tokens: Tensor, hidden: Tensor, first: int = 0) -> tuple[Tensor, Tensor] | None:
        """Words of the guess and its end (n, k), and what each adds to its logits at the places (n, T, k) of `hidden`.

        These are the places from `first` on; `tokens` are all words before the last of them.
        """
        if told.copied is None or self.sight is None:
            return None
        return told.copied.words, self.sight.copy(told.copied, tokens, hidden, first)


def targets_of(tokens: Tensor, lengths: Tensor, end: int, longest: int) -> tuple[Tensor, Tensor]:
    """The word of every place (n, L + 1), `end` behind the last, and which places count.

    A text of the longest kind was cut or just fits: nothing is learned about its end.
    """
    places = torch.arange(tokens.shape[1] + 1, device=tokens.device)
    targets = F.pad(tokens, (0, 1)).masked_fill(places >= lengths[:, None], end)
    return targets, (places < lengths[:, None]) | ((places == lengths[:, None]) & (lengths < longest)[:, None])


class WriterEntropy(torch.autograd.Function):
    """Sum of -log p over the places that count, a few texts at a time; gradients are made in the same go.

    The words stay as they are, so only hidden states, the end and what a guess adds have a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, end: Tensor, end_bias: Tensor, heard: Tensor, table: Tensor, bias: Tensor,
        targets: Tensor, counts: Tensor, added: Tensor, added_to: Tensor, compiled: bool,
    ) -> Tensor:  # fmt: skip
        """Inputs (n, T, width), (width,), (), (n, h), (k, h), (k,), (n, T) of 0 to k, (n, T); the sum.

        `added` (n, T, m) is added to the logits of the words `added_to` (n, m) of 0 to k; there may be none of them.
        """
        parts: list[Callable[..., Any]] = [fused.join_logits, fused.log_sums, fused.softmax_slopes]
        join, sums, slopes = (fused.compiled(part) if compiled else part for part in parts)
        total = torch.zeros((), device=hidden.device)
        words = torch.cat([table[:, : hidden.shape[2]], end[None].to(table.dtype)])  # (k + 1, width)
        to_hidden, to_added = torch.empty_like(hidden), torch.empty_like(added)
        to_end, to_end_bias = torch.zeros_like(end), torch.zeros_like(end_bias)
        with torch.autocast(hidden.device.type, enabled=False):
            for first in range(0, len(hidden), PART_TEXTS):
                some = slice(first, first + PART_TEXTS)
                h, counted = hidden[some], counts[some, :, None].float()
                text = F.linear(heard[some], table).float().add_(bias)  # (t, k) the same at all places
                text = torch.cat([text, end_bias.expand(len(text), 1)], 1)
                logits = join(F.linear(h, words), text[:, None])
                where = added_to[some, None].expand(-1, logits.shape[1], -1)
                if where.shape[2]:
                    logits.scatter_add_(2, where, added[some])
                lse = sums(logits)
                target = targets[some, :, None]
                at_target = logits.gather(2, target)
                total += ((lse - at_target) * counted).sum()
                # Rounded, the gradient of what a guess adds teaches far less (tests/model/test_writer.py).
                slope = slopes(logits, lse, counted, torch.float32 if where.shape[2] else h.dtype)
                slope.scatter_(2, target, (((at_target - lse).exp() - 1) * counted).to(slope.dtype))
                if where.shape[2]:
                    to_added[some] = slope.gather(2, where)
                slope_end = slope[..., -1:].float()
                to_end += (slope_end * h.float()).sum((0, 1))
                to_end_bias += slope_end.sum()
                to_hidden[some] = F.linear(slope.to(h.dtype), words.T)
        ctx.save_for_backward(to_hidden, to_end, to_end_bias, to_added)
        return total

    @staticmethod
    def backward(ctx: Any, *slope: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of hidden states, of the end and of what was added."""
        to_hidden, to_end, to_end_bias, to_added = ctx.saved_tensors
        made = (to_hidden * slope[0], to_end * slope[0], to_end_bias * slope[0])
        return (*made, None, None, None, None, None, to_added * slope[0], None, None)
