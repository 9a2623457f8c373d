"""Start the denoiser from weights that already know language, instead of from noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor

from unembed.data.encoders import minilm
from unembed.errors import ConfigError
from unembed.model import reader
from unembed.model.denoiser import Block, Denoiser

if TYPE_CHECKING:
    from unembed.data.dataset import Dataset
    from unembed.model.artifact import Artifact
    from unembed.model.echo import Layer


@torch.no_grad()
def from_minilm(net: Denoiser) -> None:
    """Copy the MiniLM encoder into the denoiser: embeddings, positions, and its six post-norm layers.

    The encoder's layers are a bidirectional language model that has already found its neighbours; with AdaLN-Zero at
    zero the denoiser starts as exactly that network. [CLS] and [SEP] become the prefix tokens that carry the vector.
    """
    config = net.config
    source = minilm_tensors()
    words = source["embeddings.word_embeddings.weight"]
    positions = source["embeddings.position_embeddings.weight"]
    ffn = source["encoder.layer.0.intermediate.dense.weight"].shape[0]
    fits = (config.vocab_size, config.width) == tuple(words.shape) and config.layers <= minilm.LAYERS
    fits &= (config.heads, config.ffn) == (minilm.HEADS, ffn) and config.max_tokens + 2 <= len(positions)
    if not fits or config.norm != "post":
        raise ConfigError(
            f"model.init=encoder needs norm=post, width={words.shape[1]}, heads={minilm.HEADS}, ffn={ffn}, at most "
            f"{minilm.LAYERS} layers and {len(positions) - 2} tokens, and its tokenizer of {words.shape[0]} tokens; "
            "use model.init=random for another shape"
        )
    net.embed.weight.copy_(words)
    net.position.copy_(positions[: config.max_tokens + 2] + source["embeddings.token_type_embeddings.weight"][0])
    _copy(net.embed_norm, source, "embeddings.LayerNorm")
    if config.prefix_tokens:
        cls, sep = words[101], words[102]
        net.prefix.copy_(torch.stack([sep if j % 2 else cls for j in range(config.prefix_tokens)]))
        torch.nn.init.normal_(net.prefix_vector.weight, std=0.02)
        torch.nn.init.zeros_(net.prefix_vector.bias)
    for number, block in enumerate(net.blocks):
        assert isinstance(block, Block)
        copy_block(block, source, f"encoder.layer.{number}.")


@torch.no_grad()
def from_inverter(net: Denoiser, source: Denoiser, *, same_encoder: bool) -> None:
    """Copy another inverter's denoiser; for another encoder, what reads its vectors starts anew."""
    if net.config.width != source.config.width or net.config.vocab_size != source.config.vocab_size:
        raise ConfigError(
            f"--init-from has width {source.config.width} and {source.config.vocab_size} tokens, this run "
            f"{net.config.width} and {net.config.vocab_size}: use the same preset and tokenizer"
        )
    mine = net.state_dict()
    for name, tensor in source.state_dict().items():
        reads_vectors = name.startswith(("project", "reader"))
        if name in mine and mine[name].shape == tensor.shape and (same_encoder or not reads_vectors):
            mine[name].copy_(tensor)


def start_reader(net: Denoiser, data: Dataset, init_from: Artifact | None) -> None:
    """Start the reader from the data, unless it came with the weights of the same encoder."""
    same = init_from is not None and init_from.encoder == data.encoder_info
    if init_from is not None and same and init_from.config.model.reader:
        return
    share = reader.SHARE_ON_TOP if same else reader.SHARE_ALONE
    reader.start_from_data(net.reader, data, net.vector_scale, net.embed.weight.detach(), share)


@torch.no_grad()
def set_unigram(net: Denoiser, counts: npt.NDArray[np.int64]) -> None:
    """Start the output bias at the log frequency of each token, so that nothing is learned twice."""
    frequency = torch.from_numpy(counts).float() + 0.1
    net.bias[: len(counts)].copy_(torch.log(frequency / frequency.sum()))  # a mask of our own has no count


def minilm_tensors() -> dict[str, Tensor]:
    """The MiniLM encoder's weights, verified."""
    return load_safetensors(minilm.read_verified(minilm.model_folder() / "model.safetensors"))


@torch.no_grad()
def copy_block(block: Block | Layer, source: dict[str, Tensor], prefix: str) -> None:
    """Copy one of its layers."""
    for kind in ("weight", "bias"):
        parts = [source[f"{prefix}attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
        getattr(block.qkv, kind).copy_(torch.cat(parts))
    _copy(block.out, source, prefix + "attention.output.dense")
    _copy(block.norm1, source, prefix + "attention.output.LayerNorm")
    _copy(block.up, source, prefix + "intermediate.dense")
    _copy(block.down, source, prefix + "output.dense")
    _copy(block.norm2, source, prefix + "output.LayerNorm")


def _copy(module: torch.nn.Module, source: dict[str, Tensor], name: str) -> None:
    module.get_parameter("weight").copy_(source[f"{name}.weight"])
    module.get_parameter("bias").copy_(source[f"{name}.bias"])
