"""The paper's own future work, to be measured: a pretrained language model as the denoiser's backbone.

The first layers of SmolLM2-135M (a Llama: rotary positions, grouped queries, SwiGLU) take the place of the denoiser's
blocks. They look both ways instead of back only, and AdaLN-Zero modulates them: at the start each is the layer as it
was trained. Word pieces that SmolLM2 does not have start as the mean of the tokens that it writes them with.
`tools/ablate.py` trains it beside the others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.model.denoiser import TIME_FEATURES, Denoiser
from unembed.model.rows import Packing, Padding


class LlamaBlock(nn.Module):
    """A layer of Llama under AdaLN-Zero; called as `unembed.model.denoiser.Block` is."""

    def __init__(self, layer: Any, config: Any) -> None:
        super().__init__()
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        attention, mlp = layer.self_attn, layer.mlp
        joined = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        self.qkv, self.out = _linear(joined), _linear(attention.o_proj.weight)
        self.up = _linear(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
        self.down = _linear(mlp.down_proj.weight)
        self.norm1 = nn.Parameter(layer.input_layernorm.weight.detach().clone())
        self.norm2 = nn.Parameter(layer.post_attention_layernorm.weight.detach().clone())
        width = config.hidden_size
        self.from_time, self.from_vector = nn.Linear(TIME_FEATURES, 6 * width), nn.Linear(width, 6 * width)
        for linear in (self.from_time, self.from_vector):
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
        self.base = float(config.rope_parameters["rope_theta"])
        self.eps = config.rms_norm_eps

    def forward(
        self,
        x: Tensor,
        time: Tensor,
        c: Tensor,
        rows: Packing | Padding | None,
        places: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """(n, P + L, width), or packed (rows, width) -> the same; or only at m places of it."""
        modulation = self.from_time(time) + self.from_vector(c)
        packed = isinstance(rows, Packing)
        modulation = modulation.index_select(0, rows.texts) if packed else modulation[: len(x), None]
        scale1, shift1, gate1, scale2, shift2, gate2 = modulation.chunk(6, -1)
        x = x + (1 + gate1) * self.out(self._mix(self._norm(x, self.norm1) * (1 + scale1) + shift1, rows))
        gate, up = self.up(self._norm(x, self.norm2) * (1 + scale2) + shift2).chunk(2, -1)
        x = x + (1 + gate2) * self.down(F.silu(gate) * up)
        return x if places is None else x[places]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.eps)

    def _mix(self, x: Tensor, rows: Packing | Padding | None) -> Tensor:
        """Attention both ways, without its output layer."""
        qkv = self.qkv(x) if rows is None else rows.pad(self.qkv(x))
        n, length, _ = qkv.shape
        size = qkv.shape[-1] // (self.heads + 2 * self.groups)
        q, k, v = qkv.view(n, length, -1, size).transpose(1, 2).split([self.heads, self.groups, self.groups], 1)
        q, k = self._turned(q), self._turned(k)
        k, v = (part.repeat_interleave(self.heads // self.groups, 1) for part in (k, v))
        scores = (q * size**-0.5) @ k.transpose(-1, -2)
        if rows is not None:
            scores = scores.masked_fill(~rows.valid[:, None, None], -1e9)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, length, -1)
        return mixed if rows is None else rows.pack(mixed)

    def _turned(self, x: Tensor) -> Tensor:
        """Rotary positions, (n, heads, length, size)."""
        half = x.shape[-1] // 2
        speeds = self.base ** (-torch.arange(half, device=x.device) / half)
        angles = torch.arange(x.shape[-2], device=x.device)[:, None] * speeds  # (length, half)
        cos, sin = angles.cos(), angles.sin()
        a, b = x.split(half, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


@torch.no_grad()
def put_in(net: Denoiser, words: list[str], model: Any, tokenizer: Any) -> None:
    """Give the denoiser the first layers of a Llama, and its words; `words` are those of the denoiser's tokenizer."""
    net.blocks = nn.ModuleList(LlamaBlock(layer, model.config) for layer in model.model.layers[: net.config.layers])
    table = model.model.embed_tokens.weight
    # A piece that goes on with a word has no space before it.
    written = [word[2:] if word.startswith("##") else " " + word for word in words]
    for row, ids in enumerate(tokenizer(written, add_special_tokens=False)["input_ids"]):
        net.embed.weight[row] = table[ids].mean(0)
    net.embed.weight[net.config.mask_id] = table.mean(0)
    # Where the text stands is told by the rotary positions; those of the prefix tokens are learned.
    net.position.mul_(0.1)


def _linear(weight: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight.detach().clone())
    return made
