"""The elementwise parts of a block, each as one function, so that a compiler can make one loop of it.

Matrix products on a CPU with bf16 units are so fast that what lies between them takes longer than they do. Compiled
(`train.compile`), each of these reads and writes its tensors once; the shapes stay dynamic, so that texts of all
lengths share one compilation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from unembed.errors import ConfigError

T = TypeVar("T")


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form, written with an exponential, which is cheaper than a tanh.

    Its argument is clamped because far below zero the gradient would be infinity divided by infinity.
    (torch.sigmoid would be safe by itself, but its compiled gradient is three times slower.)
    """
    h = x.float()
    u = (2 * math.sqrt(2 / math.pi) * (h + 0.044715 * h * h * h)).clamp(-30.0, 30.0)
    return (h / (1 + torch.exp(-u))).to(x.dtype)


def add_norm_modulate(
    x: Tensor, y: Tensor, bias: Tensor, gate: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, offset: Tensor
) -> Tensor:
    """Add a branch to the stream, normalise, modulate: norm(x + (1 + gate) (y + bias)) (1 + scale) + shift."""
    h = x.float() + (1 + gate.float()) * (y.float() + bias)
    h = F.layer_norm(h, (h.shape[-1],), weight, offset, 1e-6)
    return (h * (1 + scale.float()) + shift.float()).to(y.dtype)


def join_logits(places: Tensor, text: Tensor) -> Tensor:
    """Logits in float32: what each place (n, T, k) says and what is the same at all places of a text (n, 1, k)."""
    return places.float() + text


def log_sums(logits: Tensor) -> Tensor:
    """Logarithm of the sum of the exponentials of the last dimension, which stays."""
    most = logits.amax(-1, keepdim=True)
    return most + (logits - most).exp().sum(-1, keepdim=True).log()


def softmax_slopes(logits: Tensor, sums: Tensor, weight: Tensor, kind: torch.dtype) -> Tensor:
    """Probabilities times a weight for each place, in the type that products take."""
    return ((logits - sums).exp() * weight).to(kind)


_compiled: dict[str, Callable[..., Any]] = {}


def compiled(function: Callable[..., T]) -> Callable[..., T]:
    """The function as one loop; compiled at its first call."""
    name = function.__name__
    if name not in _compiled:
        _compiled[name] = torch.compile(function, dynamic=True)
    return _compiled[name]


def check_compiler() -> None:
    """Compile something, or say what is missing."""
    try:
        torch.compile(lambda x: torch.exp(x) + 1)(torch.zeros(64))
    except Exception as error:  # whatever it is that a compiler says
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"train.compile needs a working C++ compiler ({first}): install g++, or set train.compile=false"
        ) from None
