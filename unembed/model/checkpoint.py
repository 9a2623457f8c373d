"""The state of a training run in one safetensors file: weights, EMA, optimizers, and where it stands.

Written beside the old one and moved over it, so a kill at any moment leaves a whole checkpoint. No pickle.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from unembed.data.shards import write_whole
from unembed.errors import CheckpointError
from unembed.model.batches import Cursor


@dataclass(slots=True)
class Progress:
    """Where a run stands; everything else about its future follows from the configuration."""

    phase: str = "bag"
    step: int = 0  # steps done in this phase
    cursor: Cursor = field(default_factory=Cursor)
    best: float = float("inf")
    worse: int = 0  # validations since the best
    texts: int = 0  # texts seen in the denoising phase
    seconds: float = 0.0


def save(path: Path, progress: Progress, net: nn.Module, ema: nn.Module, optimizers: list[Optimizer]) -> None:
    """Write the whole state, atomically."""
    tensors: dict[str, Tensor] = {}
    for prefix, module in (("net.", net), ("ema.", ema)):
        tensors.update({prefix + name: tensor for name, tensor in module.state_dict().items()})
    for number, optimizer in enumerate(optimizers):
        for place, parameter in enumerate(_parameters(optimizer)):
            for key, value in optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer{number}.{place}.{key}"] = torch.as_tensor(value)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"progress": json.dumps(asdict(progress))}
    write_whole(path, lambda part: save_file(tensors, part, metadata=metadata))


def read_progress(path: Path) -> Progress:
    """Where the saved run stands, without loading its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads((file.metadata() or {})["progress"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"cannot read the checkpoint {path} ({error}): delete it to start anew") from None
    values["cursor"] = Cursor(**values["cursor"])
    return Progress(**values)


def restore(path: Path, net: nn.Module, ema: nn.Module, optimizers: list[Optimizer]) -> None:
    """Load the saved tensors into these objects; the run must have the same configuration."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    for prefix, module in (("net.", net), ("ema.", ema)):
        module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    for number, optimizer in enumerate(optimizers):
        parameters = _parameters(optimizer)
        for name, tensor in tensors.items():
            owner, _, rest = name.partition(".")
            if owner == f"optimizer{number}":
                place, _, key = rest.partition(".")
                optimizer.state[parameters[int(place)]][key] = tensor.to(parameters[int(place)].device)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
