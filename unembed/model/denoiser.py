"""The denoiser: a transformer that predicts every masked token at once, conditioned on the vector by AdaLN.

    c = net.condition(vectors)          (n, d)              -> (n, width)      eq. 5
    h = net(tokens, t, c)               (n, L), (n,), (n, width) -> (n, L, width)
    h = net(tokens, t, c, at=places)    only at these m places   -> (m, width)
    logits = net.logits(h)              (..., width)        -> (..., vocab)    eq. 3

With `model.reader`, conditions and hidden states are wider: what the reader says of the vector stands behind them, and
goes unchanged from `condition` to `logits`.

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
from unembed.model import fused
from unembed.model.reader import Reader, reader_size
from unembed.model.rows import Packing, Padding

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
        if config.reader:
            self.reader = Reader(config)
        if config.account:
            self.said = nn.Linear(width, width, bias=False)
            nn.init.zeros_(self.said.weight)
        if config.account and config.reader:
            self.reader_said = nn.Linear(width, reader_size(config), bias=False)
            nn.init.zeros_(self.reader_said.weight)
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
            return F.pad(self.no_vector, (0, reader_size(self.config))).expand(n, -1)
        given = vectors * self.vector_scale
        c: Tensor = self.project(given)
        if self.config.shortcuts:
            c = c + self.project_shortcut(given)
        return torch.cat([c, self.reader(given)], 1) if self.config.reader else c

    @property
    def vector_scale(self) -> float:
        """Unit vectors have tiny entries (about 1/sqrt(d)); times this, what reads them has inputs of unit variance."""
        return math.sqrt(self.config.vector_dim) / self.config.vector_norm

    def length_logits(self, c: Tensor) -> Tensor:
        """Logits of the number of tokens (n, max_tokens + 1); a text has at least one."""
        return F.pad(self.length(c[:, : self.config.width]), (1, 0), value=-torch.inf)

    def forward(
        self,
        tokens: Tensor,
        t: Tensor,
        c: Tensor,
        valid: Tensor | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of the text positions, ready for `logits`: (n, L, width).

        With `at` (m,), places in texts, counted through the batch (text * L + position), only there: (m, width).
        `t` and `c` may have more rows than there are texts; what is computed of those is thrown away.
        """
        n, length = tokens.shape
        c, read = c[:, : self.config.width], c[:, self.config.width :]
        embedded = self.embed(tokens)  # (n, L, width)
        if self.config.account:
            visible = tokens != self.config.mask_id
            if valid is not None:
                visible = visible & valid
            spoken = (embedded * visible[..., None]).sum(1) / math.sqrt(self.config.max_tokens)
            spoken = F.pad(spoken, (0, 0, 0, len(c) - n))
            c = c + self.said(spoken)
            if self.config.reader:
                read = read + self.reader_said(spoken)
        x = embedded + self.position[1 : length + 1]
        x = self._frame(x, c, valid, length)
        x = self.embed_norm(x)
        rows: Packing | Padding | None = None
        if valid is not None:
            framed = F.pad(valid, (self.config.prefix_tokens, 0), value=True)
            # Micro-batches of training are sorted by length: there, gathering costs more than it saves.
            rows = Padding(framed) if self.training else Packing(framed)
            x = rows.pack(x)
        time = time_features(t)
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x, time, c, rows)
        if at is None:
            x = last(x, time, c, rows)
            x = (x if rows is None else rows.pad(x))[:, self.config.prefix_tokens :]
            hidden: Tensor = self.final(x)
            if not self.config.bag_of_words:
                return hidden
            return self._behind(hidden + self._bag(c)[:n, None], read[:n, None].expand(-1, length, -1))
        texts = at // length
        places: tuple[Tensor, ...] = (texts, at % length + self.config.prefix_tokens)
        if isinstance(rows, Packing):
            places = (rows.number[places],)
        if self.config.conv:  # its last convolution needs the neighbours too
            hidden = self.final(last(x, time, c, rows)[places])
        else:
            hidden = self.final(last(x, time, c, rows, places))
        if not self.config.bag_of_words:
            return hidden
        bag = self._bag(c)  # (texts, width)
        return self._behind(hidden + bag[texts], read[texts])

    def bag_hidden(self, c: Tensor) -> Tensor:
        """The bag-of-words path alone: one hidden state for each text, the same for all its positions. (n, width)."""
        c, read = c[:, : self.config.width], c[:, self.config.width :]
        return self._behind(self._bag(c), read)

    def _bag(self, c: Tensor) -> Tensor:
        hidden: Tensor = self.bag(c)
        return hidden + self.bag_shortcut(c) if self.config.shortcuts else hidden

    def _behind(self, hidden: Tensor, read: Tensor) -> Tensor:
        """What the reader says, behind the hidden states."""
        return torch.cat([hidden, read.to(hidden.dtype)], -1) if self.config.reader else hidden

    def logits(self, hidden: Tensor, words: slice | Tensor = slice(None)) -> Tensor:
        """Scores over the vocabulary or a part of it, through the tied embeddings (eq. 3) and the reader's own."""
        width = self.config.width
        scores = self.place_logits(hidden[..., :width], words)
        return scores + self.text_logits(hidden[..., width:], words) if self.config.reader else scores

    def word_table(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """What hidden states are multiplied with for the logits of some words, (k, hidden size), and their bias."""
        table = self.embed.weight[words]
        if self.config.reader:
            table = torch.cat([table, self.reader.words.weight[words]], 1)
        return table, self.bias[words].masked_fill(self.forbidden[words], -torch.inf)

    def place_logits(self, hidden: Tensor, words: slice | Tensor) -> Tensor:
        """The part of the logits that differs from place to place, from hidden states without the reader's part."""
        bias = self.bias[words].masked_fill(self.forbidden[words], -torch.inf)
        return F.linear(hidden, self.embed.weight[words], bias)

    def text_logits(self, read: Tensor, words: slice | Tensor) -> Tensor:
        """The part that all places of a text share, from what the reader says of its vector."""
        return F.linear(read, self.reader.words.weight[words])

    def _frame(self, x: Tensor, c: Tensor, valid: Tensor | None, length: int) -> Tensor:
        """Put the prefix tokens in front: they carry the vector, and by their position the ends of the text."""
        count = self.config.prefix_tokens
        if not count:
            return x
        lengths = torch.full((x.shape[0],), length, device=x.device) if valid is None else valid.sum(1)
        places = torch.stack([lengths + 1 if j % 2 else 0 * lengths for j in range(count)], 1)  # (n, prefix)
        carried = self.prefix_vector(c)[: len(x)].view(-1, count, self.config.width)
        return torch.cat([self.prefix + carried + self.position[places], x], 1)


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
        self.compiled = False  # in training only; set by the trainer where `train.compile` says so

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        c: Tensor,
        rows: Packing | Padding | None,
        places: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """(n, P + L, width), or packed (rows, width) -> the same; or only at m places of it: (m, width)."""
        modulation = self.from_time(time) + self.from_vector(c)  # eq. 8, 9
        packing = rows if isinstance(rows, Packing) else None
        modulation = modulation[: len(x), None] if packing is None else modulation.index_select(0, packing.texts)
        x = self._convolve(x, self.near1, rows)
        mixed = self._mix(self._before_mixing(x, modulation), rows)
        if places is not None:  # from here on every position is for itself
            x, mixed = x[places], mixed[places]
            modulation = modulation[places[0], 0] if packing is None else modulation[places]
        return self._after_mixing(x, mixed, modulation, rows)

    def _before_mixing(self, x: Tensor, modulation: Tensor) -> Tensor:
        """What attention looks at."""
        if self.post:
            return x
        scale, shift, *_ = modulation.chunk(6, -1)
        return self.norm1(x) * (1 + scale) + shift  # type: ignore[no-any-return]

    def _after_mixing(
        self, x: Tensor, mixed: Tensor, modulation: Tensor, rows: Packing | Padding | None = None
    ) -> Tensor:
        """The rest of the block, from what attention has gathered."""
        scale1, shift1, gate1, scale2, shift2, gate2 = modulation.chunk(6, -1)
        if self.post:
            x = self._add_norm(x, mixed, self.out, self.norm1, gate1, scale1, shift1)
            x = self._convolve(x, self.near2, rows)
            return self._add_norm(x, self._inner(x), self.down, self.norm2, gate2, scale2, shift2)
        x = x + gate1 * self.dropout(self.out(mixed))  # eq. 10
        x = self._convolve(x, self.near2, rows)
        x = x + gate2 * self.dropout(self.down(self._inner(self.norm2(x) * (1 + scale2) + shift2)))
        return x

    def _add_norm(
        self,
        x: Tensor,
        branch: Tensor,
        linear: nn.Linear,
        norm: nn.LayerNorm,
        gate: Tensor,
        scale: Tensor,
        shift: Tensor,
    ) -> Tensor:
        """The end of a branch: its last linear layer, the sum with the stream, the modulated norm."""
        if self.compiled and self.training and not self.dropout.p:  # dropout comes between the bias and the sum
            y = F.linear(branch, linear.weight)
            joined = fused.compiled(fused.add_norm_modulate)
            return joined(x, y, linear.bias, gate, scale, shift, norm.weight, norm.bias)
        x = norm(x + (1 + gate) * self.dropout(linear(branch)))
        return x * (1 + scale) + shift

    def _mix(self, x: Tensor, rows: Packing | Padding | None) -> Tensor:
        """Attention without its output layer."""
        # Written out: at these lengths the fused kernel's backward pass is ten times slower on a CPU.
        qkv = self._linear(x, self.qkv)
        if rows is not None:
            qkv = rows.pad(qkv)
        q, k, v = self._heads(qkv)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)  # (n, heads, length, length)
        if rows is not None:
            scores = scores.masked_fill(~rows.valid[:, None, None], -1e9)
        mixed = (softmax(scores) @ v).transpose(1, 2).reshape(*qkv.shape[:2], x.shape[-1])
        return mixed if rows is None else rows.pack(mixed)

    def _linear(self, x: Tensor, layer: nn.Linear) -> Tensor:
        """The layer; with the bias by itself where oneDNN's own takes as long again as the product (bf16 on AMX)."""
        if not (self.compiled and self.training):
            return layer(x)  # type: ignore[no-any-return]
        y = F.linear(x, layer.weight)
        return y + layer.bias.to(y.dtype)

    def _heads(self, qkv: Tensor) -> Tensor:
        """(n, length, 3 * width) -> queries, keys and values, (3, n, heads, length, d)."""
        n, length, width = qkv.shape
        return qkv.view(n, length, 3, self.heads, width // (3 * self.heads)).permute(2, 0, 3, 1, 4)

    def _inner(self, x: Tensor) -> Tensor:
        """The MLP without its output layer."""
        if self.compiled and self.training:
            return fused.compiled(fused.gelu)(self._linear(x, self.up))
        return _gelu(self.up(x))

    def _convolve(self, x: Tensor, near: nn.Module | None, rows: Packing | Padding | None) -> Tensor:
        """Add the depthwise convolution over the text positions; prefix tokens have no neighbours."""
        if near is None:
            return x
        text = x if rows is None else rows.pad(x)
        if isinstance(rows, Padding):
            text = text * rows.valid[..., None]  # beyond the end there is nothing
        beside = F.pad(near(text[:, self.prefix_tokens :]), (0, 0, self.prefix_tokens, 0))
        return x + (beside if rows is None else rows.pack(beside))


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


def softmax(scores: Tensor) -> Tensor:
    """Over the last dimension; in bf16 on a CPU torch's own takes three times as long as that of fp32 and a copy."""
    if torch.is_inference_mode_enabled() and scores.is_cpu and scores.dtype == torch.bfloat16:
        return scores.float().softmax(-1).to(torch.bfloat16)
    return scores.softmax(-1)


def _gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form; without gradients on a CPU as x * sigmoid(...), which takes half the time of torch's.

    In bf16 the exact form takes a fifth of the time and differs by less than the numbers do from their neighbours.
    """
    if not (torch.is_inference_mode_enabled() and x.is_cpu and x.dtype in (torch.float32, torch.bfloat16)):
        return F.gelu(x, approximate="tanh")
    if x.dtype == torch.bfloat16:
        return F.gelu(x)
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
