"""The echo: a small copy of the encoder that hears the order of words: it tells right texts from nearly right ones.

    echo(tokens, valid)        (n, L) -> (n, d)   about what the encoder would say, of unit length

A surrogate (`surrogate.py`) is a sum over words: quick enough to lead every word of every beam, and blind to order. The
echo is a transformer of a few layers, too slow for that, but there is time to ask it about the texts that a writer has
finished: the one whose echo is nearest to the vector is right far more often than the one that reads best.

It learns from pairs, as everything here does, and is never the encoder: some layers are missing, and the words are the
inverter's own. Where the encoder's weights are at hand its layers begin as some of the encoder's (as those of the
denoiser do); else as noise on top of the surrogate, and then it learns far slower (docs/LOG.md, eighteenth session).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.config import ModelConfig
from unembed.model.denoiser import Denoiser, softmax
from unembed.model.surrogate import Surrogate, foresee

# Which of the encoder's six layers it begins with: those that hear words and those that make the vector.
LAYERS = (0, 1, 4, 5)


class Echo(nn.Module):
    """Vector of a text, foreseen with the order of its words."""

    def __init__(self, base: Denoiser, surrogate: Surrogate) -> None:
        super().__init__()
        config = base.config
        self.shared = [base.embed]  # in a list: not a part of this module
        width = config.width
        self.register_buffer("meanings", surrogate.word_vectors().detach().float(), persistent=False)
        self.meanings: Tensor
        self.words = nn.Linear(width, width)
        nn.init.eye_(self.words.weight)
        nn.init.zeros_(self.words.bias)
        self.position = nn.Parameter(torch.randn(config.max_tokens + 2, width) * 0.02)
        self.ends = nn.Parameter(torch.randn(2, width) * 0.02)  # what stands before a text and behind it
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.blocks = nn.ModuleList(Layer(config) for _ in LAYERS)
        self.weight = nn.Linear(width, 1)  # how much a place counts, as a logarithm
        nn.init.zeros_(self.weight.weight)
        nn.init.zeros_(self.weight.bias)
        self.speak = nn.Linear(width, config.vector_dim)
        # What the layers say and what the surrogate says.
        self.share = nn.Parameter(torch.tensor([0.1, 1.0]))

    @torch.no_grad()
    def start_from_minilm(self) -> None:
        """Begin with layers of the encoder (and its place for every number of a vector)."""
        from unembed.model.warmstart import copy_block, minilm_tensors

        source = minilm_tensors()
        positions = source["embeddings.position_embeddings.weight"][: len(self.position)]
        self.position.copy_(positions + source["embeddings.token_type_embeddings.weight"][0])
        self.ends.copy_(source["embeddings.word_embeddings.weight"][[101, 102]])
        for part in ("weight", "bias"):
            getattr(self.norm, part).copy_(source[f"embeddings.LayerNorm.{part}"])
        for layer, number in zip(self.blocks, LAYERS, strict=True):
            copy_block(cast(Layer, layer), source, f"encoder.layer.{number}.")
        nn.init.eye_(self.speak.weight)
        nn.init.zeros_(self.speak.bias)
        self.share.copy_(torch.tensor([1.0, 0.0]))

    def forward(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        """Unit vectors (n, d) of texts (n, L); `valid` tells what belongs to each, from its first place on."""
        n, longest = tokens.shape
        lengths = torch.full((n,), longest, device=tokens.device) if valid is None else valid.sum(1)
        places = torch.arange(longest + 2, device=tokens.device)
        begin, end = self.ends
        x = F.pad(self.words(self.shared[0](tokens).detach()), (0, 0, 1, 1))
        x = torch.where((places == 0)[:, None], begin.to(x.dtype), x)
        x = torch.where((places == lengths[:, None] + 1)[..., None], end.to(x.dtype), x)
        x = self.norm(x + self.position[: longest + 2])
        there = places < lengths[:, None] + 2
        for layer in self.blocks:
            x = layer(x, there)
        counts = self.weight(x).float().exp() * there[..., None]
        heard = self.speak((x.float() * counts).sum(1) / counts.sum(1)).float()
        said = self.meanings[tokens] if valid is None else self.meanings[tokens] * valid[..., None]
        both = self.share[0] * F.normalize(heard, dim=1) + self.share[1] * F.normalize(said.sum(1), dim=1)
        return F.normalize(both, dim=1)

    def foresee(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Unit vectors (n, d) of texts of any length, on the CPU."""
        return foresee(self, texts, self.speak.weight.device, self.speak.out_features)


class Layer(nn.Module):
    """Attention and MLP, each followed by its norm."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, config.ffn), nn.Linear(config.ffn, width)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """(n, L, width), and which places there are (n, L)."""
        n, longest, width = x.shape
        q, k, v = self.qkv(x).view(n, longest, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        # Written out: at these lengths the fused kernel's backward pass is ten times slower on a CPU.
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-1, -2)
        mixed = softmax(scores.masked_fill(~there[:, None, None], -1e9)) @ v
        x = self.norm1(x + self.out(mixed.transpose(1, 2).reshape(n, longest, width)))
        found: Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return found
