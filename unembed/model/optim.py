"""Optimizers, learning-rate schedule and parameter groups."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from unembed.config import TrainConfig
from unembed.precision import fast_bf16

# Matrices of the blocks, and what makes keys and values of a guess.
MUON_MATRICES = re.compile(r"blocks\..*(qkv|out|up|down)\.weight|sight\.shown\..*\.weight")


class Muon(Optimizer):
    """Momentum, orthogonalised by Newton-Schulz, with AdamW-like step size (Jordan 2024; Liu et al. 2025).

    torch.optim.Muon always iterates in bfloat16, which is eight times slower than float32 on CPUs without bf16 units;
    here the iteration is in the precision that the machine is fast in.
    """

    def __init__(self, params: list[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                direction = p.grad.lerp(state["momentum"], group["momentum"])  # Nesterov
                update = orthogonalise(direction)
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(p.shape)))


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Nearest (semi-)orthogonal matrix, roughly: quintic Newton-Schulz iteration."""
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    if fast_bf16(matrix.device):
        x = x.bfloat16()
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.T if tall else x).to(matrix.dtype)


def waits_for_bag(name: str, trains: str = "all") -> bool:
    """Parameters that the pretraining of the bag of words does not touch; `trains` is `train.bag_trains`."""
    if trains == "reader":
        return name.split(".")[0] not in ("reader", "bias")
    return name.split(".")[0] not in (
        "embed", "project", "project_shortcut", "no_vector", "bias", "length", "bag", "bag_shortcut", "reader",
    )  # fmt: skip


def build(net: nn.Module, config: TrainConfig) -> list[Optimizer]:
    """Optimizers for the trainable parameters. No weight decay on vectors and embeddings."""
    matrices, others, plain, embeddings = [], [], [], []
    for name, p in net.named_parameters():
        if not p.requires_grad:
            continue
        if name == "embed.weight":
            embeddings.append(p)
        elif p.ndim < 2 or name in ("position", "prefix", "reader.words.weight"):
            plain.append(p)
        elif config.optimizer == "muon" and MUON_MATRICES.fullmatch(name):
            matrices.append(p)
        else:
            others.append(p)
    groups = [
        {"params": others, "lr": config.lr, "weight_decay": config.weight_decay},
        {"params": plain, "lr": config.lr, "weight_decay": 0.0},
        {"params": embeddings, "lr": config.lr * config.embedding_lr_scale, "weight_decay": 0.0},
    ]
    made: list[Optimizer] = [AdamW([g for g in groups if g["params"]], betas=(0.9, 0.98), fused=True)]
    if matrices:
        made.append(Muon(matrices, config.muon_lr, config.weight_decay))
    for optimizer in made:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return made


def lr_factor(step: int, total: int, config: TrainConfig) -> float:
    """Learning rate at a step (counted from 0) as a share of its peak."""
    warm = min(1.0, (step + 1) / max(1, config.warmup_steps))
    if config.decay == "cosine":
        return warm * 0.5 * (1 + math.cos(math.pi * step / total))
    if config.decay == "wsd":
        left = (total - step) / max(1.0, config.decay_share * total)
        return warm * min(1.0, left)
    return warm


def set_lr(optimizers: list[Optimizer], factor: float) -> None:
    """Apply the factor to every group's peak rate."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
