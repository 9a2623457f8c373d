"""The denoiser: a transformer that predicts every masked token at once, conditioned on the vector by AdaLN.

    c = net.condition(vectors)          (n, d)              -> (n, width)      eq. 5
    h = net(tokens, t, c)               (n, L), (n,), (n, width) -> (n, L, width)
    h = net(tokens, t, c, at=places)    only at these m places   -> (m, width)
    logits = net.logits(h)              (..., width)        -> (..., vocab)    eq. 3

`t` is told as the share of masked tokens, 1 - alpha_t, which at decoding time is simply counted.

With `ModelConfig()` this is the paper's network (pre-norm AdaLN-Zero with gates, eq. 6-10). The options that
`cpu()` adds are marked where they enter.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.config import ModelConfig

TIME_FEATURES = 64


class Denoiser(nn.Module):
    """p(x_0 | x_t, t, e) for every position of a text of known length."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.embed = nn.Embedding(config.vocab_size, width)  # tied: input and output
        nn.init.normal_(self.embed.weight, std=0.02 if config.norm == "pre" else 0.05)
        self.embed.weight.requires_grad_(not config.freeze_embeddings)
        # Text position i has entry i + 1; entry 0 and entry L + 1 frame the text and go to the prefix tokens.
        self.position = nn.Parameter(torch.randn(config.max_tokens + 2, width) * 0.02)
        self.project = nn.Sequential(nn.Linear(config.vector_dim, width), nn.GELU(), nn.Linear(width, width))
        if config.shortcuts:
            self.project_shortcut = nn.Linear(config.vector_dim, width)
        self.no_vector = nn.Parameter(torch.zeros(width))  # the condition of "no vector", for guidance
        self.embed_norm = nn.LayerNorm(width, eps=1e-6) if config.norm == "post" else nn.Identity()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        speak = nn.Linear(width, width)
        self.final = nn.Sequential(nn.LayerNorm(width), speak)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.length = nn.Sequential(nn.Linear(width, width // 2), nn.GELU(), nn.Linear(width // 2, config.max_tokens))
        if config.prefix_tokens:
            self.prefix = nn.Parameter(torch.randn(config.prefix_tokens, width) * 0.02)
            self.prefix_vector = nn.Linear(width, config.prefix_tokens * width)
        if config.bag_of_words:
            # The transformer starts silent: until it has learned something, the bag of words speaks.
            nn.init.zeros_(speak.weight)
            self.bag = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            if config.shortcuts:
                self.bag_shortcut = nn.Linear(width, width)
                nn.init.zeros_(self.bag_shortcut.weight)
        if config.account:
            self.said = nn.Linear(width, width, bias=False)
            nn.init.zeros_(self.said.weight)
        for mlp in (self.project, self.bag if config.bag_of_words else ()):
            for layer in mlp:
                if isinstance(layer, nn.Linear):  # keep unit variance through the MLP: the vector must be heard
                    nn.init.kaiming_normal_(layer.weight)
                    nn.init.zeros_(layer.bias)
        if config.bag_of_words:
            with torch.no_grad():
                self.bag[-1].get_parameter("weight").mul_(0.1)  # begin near the unigram, not with loud noise
        if config.shortcuts:
            # The condition begins as the vector itself: the words of a text are nearly a linear function of it.
            nn.init.orthogonal_(self.project_shortcut.weight)
            nn.init.zeros_(self.project_shortcut.bias)
            with torch.no_grad():
                self.project[-1].get_parameter("weight").mul_(0.1)
        # Tokens that no text may contain; set by `forbid`, saved with the weights.
        self.register_buffer("forbidden", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.forbidden: Tensor
        self.forbidden[config.mask_id] = True

    def forbid(self, token_ids: list[int]) -> None:
        """Never predict these tokens ([MASK], [PAD], unknown, ...)."""
        self.forbidden[token_ids] = True

    def condition(self, vectors: Tensor | None, n: int = 1) -> Tensor:
        """Project vectors (n, d) to c (n, width) (eq. 5); None gives the condition of "no vector"."""
        if vectors is None:
            return self.no_vector.expand(n, -1)
        # Unit vectors have tiny entries (about 1/sqrt(d)); give the projection inputs of unit variance.
        given = vectors * (math.sqrt(self.config.vector_dim) / self.config.vector_norm)
        c: Tensor = self.project(given)
        return c + self.project_shortcut(given) if self.config.shortcuts else c

    def length_logits(self, c: Tensor) -> Tensor:
        """Logits of the number of tokens (n, max_tokens + 1); a text has at least one."""
        return F.pad(self.length(c), (1, 0), value=-torch.inf)

    def forward(
        self,
        tokens: Tensor,
        t: Tensor,
        c: Tensor,
        valid: Tensor | None = None,
        at: Tensor | None = None,
        beside: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the text positions, ready for `logits`: (n, L, width).

        With `at` (m,), places in texts, counted through the batch (text * L + position), only there: (m, width).
        `t` and `c` may have more rows than there are texts; what is computed of those is thrown away. `beside` (n, L,
        width) is added to the embedded tokens: what the corrector knows of a guess.
        """
        n, length = tokens.shape
        embedded = self.embed(tokens)  # (n, L, width)
        if self.config.account:
            visible = tokens != self.config.mask_id
            if valid is not None:
                visible = visible & valid
            spoken = (embedded * visible[..., None]).sum(1) / math.sqrt(self.config.max_tokens)
            c = c + self.said(F.pad(spoken, (0, 0, 0, len(c) - n)))
        x = embedded + self.position[1 : length + 1]
        if beside is not None:
            x = x + beside
        x = self._frame(x, c, valid, length)
        x = self.embed_norm(x)
        packing = None
        if valid is not None:
            packing = Packing(F.pad(valid, (self.config.prefix_tokens, 0), value=True))
            x = packing.pack(x)
        time = time_features(t)
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x, time, c, packing)
        if at is None:
            x = last(x, time, c, packing)
            x = (x if packing is None else packing.pad(x))[:, self.config.prefix_tokens :]
            hidden: Tensor = self.final(x)
            return hidden + self.bag_hidden(c)[:n, None] if self.config.bag_of_words else hidden
        texts = at // length
        places: tuple[Tensor, ...] = (texts, at % length + self.config.prefix_tokens)
        if packing is not None:
            places = (packing.number[places],)
        if self.config.conv:  # its last convolution needs the neighbours too
            hidden = self.final(last(x, time, c, packing)[places])
        else:
            hidden = self.final(last(x, time, c, packing, places))
        return hidden + self.bag_hidden(c)[texts] if self.config.bag_of_words else hidden

    def bag_hidden(self, c: Tensor) -> Tensor:
        """The bag-of-words path alone: one hidden state for each text, the same for all its positions. (n, width)."""
        hidden: Tensor = self.bag(c)
        return hidden + self.bag_shortcut(c) if self.config.shortcuts else hidden

    def logits(self, hidden: Tensor, words: slice = slice(None)) -> Tensor:
        """Scores over the vocabulary or a part of it, through the tied embeddings (eq. 3)."""
        bias = self.bias[words].masked_fill(self.forbidden[words], -torch.inf)
        return F.linear(hidden, self.embed.weight[words], bias)

    def _frame(self, x: Tensor, c: Tensor, valid: Tensor | None, length: int) -> Tensor:
        """Put the prefix tokens in front: they carry the vector, and by their position the ends of the text."""
        count = self.config.prefix_tokens
        if not count:
            return x
        lengths = torch.full((x.shape[0],), length, device=x.device) if valid is None else valid.sum(1)
        places = torch.stack([lengths + 1 if j % 2 else 0 * lengths for j in range(count)], 1)  # (n, prefix)
        carried = self.prefix_vector(c)[: len(x)].view(-1, count, self.config.width)
        return torch.cat([self.prefix + carried + self.position[places], x], 1)


class Packing:
    """Rows of texts of different lengths, one after the other: what is behind the end of a text is not computed."""

    def __init__(self, valid: Tensor) -> None:  # (n, length) bool
        self.valid = valid
        self.texts = valid.nonzero()[:, 0]  # (rows,) which text a row belongs to
        self.number = valid.flatten().cumsum(0).view(valid.shape) - 1  # (n, length) the row of a position
        self._places = valid.flatten().nonzero()[:, 0]

    def pack(self, x: Tensor) -> Tensor:
        """(n, length, width) -> (rows, width)."""
        return x.flatten(0, 1).index_select(0, self._places)  # a quarter of the time of x[places]

    def pad(self, rows: Tensor) -> Tensor:
        """(rows, width) -> (n, length, width), zero behind the end."""
        padded = rows.new_zeros(self.valid.numel(), rows.shape[1]).index_copy_(0, self._places, rows)
        return padded.view(*self.valid.shape, rows.shape[1])


class Block(nn.Module):
    """Attention and MLP, both under layer norms that t and c modulate (eq. 6-10)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.heads, self.post, self.prefix_tokens = config.heads, config.norm == "post", config.prefix_tokens
        self.norm1 = nn.LayerNorm(width, eps=1e-6, elementwise_affine=self.post)
        self.norm2 = nn.LayerNorm(width, eps=1e-6, elementwise_affine=self.post)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, config.ffn)
        self.down = nn.Linear(config.ffn, width)
        self.dropout = nn.Dropout(config.dropout)
        # Scale, shift and gate for each of the two norms. Zero at the start (AdaLN-Zero): a pre-norm block begins as
        # the identity, a post-norm block as the plain block.
        self.from_time = nn.Linear(TIME_FEATURES, 6 * width)  # eq. 6
        self.from_vector = nn.Linear(width, 6 * width)  # eq. 7
        for layer in (self.from_time, self.from_vector):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.near1 = Neighbours(width, 5) if config.conv else None
        self.near2 = Neighbours(width, 3) if config.conv else None

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        c: Tensor,
        packing: Packing | None,
        places: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """(n, P + L, width), or packed (rows, width) -> the same; or only at m places of it: (m, width)."""
        modulation = self.from_time(time) + self.from_vector(c)  # eq. 8, 9
        modulation = modulation[: len(x), None] if packing is None else modulation.index_select(0, packing.texts)
        scale1, shift1, gate1, scale2, shift2, gate2 = modulation.chunk(6, -1)
        x = self._convolve(x, self.near1, packing)
        mixed = self._mix(x if self.post else self.norm1(x) * (1 + scale1) + shift1, packing)
        if places is not None:  # from here on every position is for itself
            x, mixed = x[places], mixed[places]
            modulation = modulation[places[0], 0] if packing is None else modulation[places]
            scale1, shift1, gate1, scale2, shift2, gate2 = modulation.chunk(6, -1)
        attended = self.dropout(self.out(mixed))
        if self.post:
            x = self.norm1(x + (1 + gate1) * attended) * (1 + scale1) + shift1
            x = self._convolve(x, self.near2, packing)
            x = self.norm2(x + (1 + gate2) * self._mlp(x)) * (1 + scale2) + shift2
            return x
        x = x + gate1 * attended  # eq. 10
        x = self._convolve(x, self.near2, packing)
        x = x + gate2 * self._mlp(self.norm2(x) * (1 + scale2) + shift2)
        return x

    def _mix(self, x: Tensor, packing: Packing | None) -> Tensor:
        """Attention without its output layer."""
        # Written out: at these lengths the fused kernel's backward pass is ten times slower on a CPU.
        qkv: Tensor = self.qkv(x)
        if packing is not None:
            qkv = packing.pad(qkv)
        n, length, width = qkv.shape[0], qkv.shape[1], x.shape[-1]
        q, k, v = qkv.view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-1, -2)  # (n, heads, length, length)
        if packing is not None:
            scores = scores.masked_fill(~packing.valid[:, None, None], -1e9)
        mixed: Tensor = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, width)
        return mixed if packing is None else packing.pack(mixed)

    def _mlp(self, x: Tensor) -> Tensor:
        inner: Tensor = self.dropout(self.down(_gelu(self.up(x))))
        return inner

    def _convolve(self, x: Tensor, near: nn.Module | None, packing: Packing | None) -> Tensor:
        """Add the depthwise convolution over the text positions; prefix tokens have no neighbours."""
        if near is None:
            return x
        text = (x if packing is None else packing.pad(x))[:, self.prefix_tokens :]
        beside = F.pad(near(text), (0, 0, self.prefix_tokens, 0))
        return x + (beside if packing is None else packing.pack(beside))


class Neighbours(nn.Module):
    """Depthwise convolution over positions, as a sum of shifted copies (no transpose); zero at the start."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.zeros(size, width))

    def forward(self, x: Tensor) -> Tensor:
        """(n, L, width) -> the same; beyond the edges are zeros."""
        size, length = self.taps.shape[0], x.shape[1]
        padded = F.pad(x, (0, 0, size // 2, size // 2))
        total = padded[:, :length] * self.taps[0]
        for offset in range(1, size):
            total = torch.addcmul(total, padded[:, offset : offset + length], self.taps[offset])
        return total


def _gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form; without gradients on a CPU as x * sigmoid(...), which takes half the time of torch's."""
    if not (torch.is_inference_mode_enabled() and x.is_cpu and x.dtype == torch.float32):
        return F.gelu(x, approximate="tanh")
    slope = 2 * math.sqrt(2 / math.pi)
    inner = (x * x).mul_(0.044715 * slope).add_(slope).mul_(x)
    return inner.sigmoid_().mul_(x)


def time_features(t: Tensor) -> Tensor:
    """Sines and cosines of the time, t in [0, 1]. (n,) -> (n, TIME_FEATURES)."""
    half = TIME_FEATURES // 2
    frequencies = torch.exp(torch.linspace(0, math.log(1000.0), half, device=t.device))
    angles = t[:, None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def parameter_counts(net: nn.Module) -> tuple[int, int]:
    """(all parameters, trainable parameters)."""
    total = sum(p.numel() for p in net.parameters())
    return total, sum(p.numel() for p in net.parameters() if p.requires_grad)
