"""A training as a process does it, from the start or from where the last one was killed."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from unembed.config import override, tiny
from unembed.data.dataset import Dataset
from unembed.model.trainer import fit_to_data, train


def run(folder: str, out: str, *settings: str) -> None:
    torch.use_deterministic_algorithms(True)
    data = Dataset(folder)
    train(fit_to_data(override(tiny(), list(settings)), data), data, Path(out), resume=True)


if __name__ == "__main__":
    run(*sys.argv[1:])
