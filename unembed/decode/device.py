"""Where the network runs. Texts and random numbers stay on the CPU; what goes through the network follows it."""

from __future__ import annotations

import torch

from unembed.errors import ConfigError


def find(name: str | torch.device) -> torch.device:
    """`cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, the fastest there is; one that is not there is refused."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"no device is called {name!r}: choose auto, cpu, cuda or mps") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device is {str(name)!r}, but torch sees {_count()} here: use auto or cpu")
    if device.type == "mps" and not _has_mps():
        raise ConfigError(f"device is {str(name)!r}, but torch sees no Apple GPU here: use auto or cpu")
    return device


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


def _count() -> str:
    count = torch.cuda.device_count()
    return f"only {count} CUDA GPU{'s' * (count > 1)}" if count else "no CUDA GPU"
