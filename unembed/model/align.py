"""Vectors of a new encoder, read as those of an encoder that an inverter knows: one linear map, in closed form.

Sentence encoders say much the same of a text in different coordinates. So before anything is learned, the vectors of
the new encoder are mapped to those of the old one by a regression over some thousand texts that both have embedded. All
that reads a vector in a denoiser is linear at first, so the map goes into those layers, and the new inverter starts as
the old one behind it: what takes training is only what the map gets wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from unembed.data import encoders
from unembed.data.encoders.base import parse
from unembed.errors import EncoderError

if TYPE_CHECKING:
    from unembed.data.dataset import Dataset
    from unembed.model.artifact import Artifact
    from unembed.model.denoiser import Denoiser

TEXTS = 16_384
# Strengths of the regression's ridge, in mean variances of a direction; a tenth of the texts chooses.
RIDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True, slots=True)
class Alignment:
    """old = new @ weight + bias, about."""

    weight: Tensor  # (new, old)
    bias: Tensor  # (old,)
    cosine: float
    """Mean, of mapped vectors with the true ones, over texts that the map was not made from."""


def start_aligned(net: Denoiser, init_from: Artifact, data: Dataset) -> bool:
    """Let the net begin as that of another encoder behind a map; False where it cannot."""
    if parse(init_from.encoder.spec).kind == "openai":
        return False  # nobody is asked over a network without being told to
    if [layer.out_features for layer in _readers(net)] != [layer.out_features for layer in _readers(init_from.net)]:
        return False
    try:
        encoder = encoders.load(init_from.encoder.spec)
    except EncoderError:
        return False
    examples = data.sample("train", TEXTS, 0)
    new = torch.from_numpy(examples.vectors.astype(np.float32))
    read_through(net, init_from.net, alignment(new, torch.from_numpy(encoder.encode(examples.texts))))
    return True


def alignment(new: Tensor, old: Tensor) -> Alignment:
    """The best linear map from vectors (n, new) to vectors (n, old) of the same texts."""
    new, old = new.double(), old.double()
    kept = max(1, len(new) // 10)
    centre_new, centre_old = new[kept:].mean(0), old[kept:].mean(0)
    x, y = new[kept:] - centre_new, old[kept:] - centre_old
    gram, cross = x.T @ x, x.T @ y
    unit = torch.eye(len(gram), dtype=gram.dtype) * gram.diagonal().mean()
    found: list[tuple[float, Tensor, Tensor]] = []
    for ridge in RIDGES:
        weight = torch.linalg.solve(gram + ridge * unit, cross)
        mapped = (new[:kept] - centre_new) @ weight + centre_old
        found.append((float(torch.cosine_similarity(mapped, old[:kept]).mean()), weight, mapped))
    cosine, weight, mapped = max(found, key=lambda item: item[0])
    # A regression is cautious, so what it gives is too short.
    weight, centre_old = (part * (old.norm(dim=1).mean() / mapped.norm(dim=1).mean()) for part in (weight, centre_old))
    return Alignment(weight.float(), (centre_old - centre_new @ weight).float(), cosine)


@torch.no_grad()
def read_through(net: Denoiser, source: Denoiser, alignment: Alignment) -> None:
    """Copy what reads vectors in `source` into the net, behind the map."""
    mine, theirs = net.state_dict(), source.state_dict()
    for name, tensor in theirs.items():
        if name.startswith(("project", "reader")) and mine[name].shape == tensor.shape:
            mine[name].copy_(tensor)
    weight, bias = alignment.weight * (source.vector_scale / net.vector_scale), alignment.bias * source.vector_scale
    for layer, origin in zip(_readers(net), _readers(source), strict=True):
        layer.weight.copy_(origin.weight @ weight.T)
        layer.bias.copy_(origin.bias + origin.weight @ bias)


def _readers(net: Denoiser) -> list[nn.Linear]:
    """The layers that a vector goes into."""
    first = net.project[0]
    assert isinstance(first, nn.Linear)
    found = [first]
    if net.config.shortcuts:
        found.append(net.project_shortcut)
    if net.config.reader:
        found.append(net.reader.whiten)
    return found
