"""What a number depends on besides the seed: versions, machine, command line, time."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("unembed", "torch", "numpy", "tokenizers", "rapidfuzz", "sacrebleu", "transformers")


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Python and these packages, by default those that decide the numbers; those not installed are left out."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            if package == "unembed":
                found[package] = "from source"
    return found


def machine() -> dict[str, str]:
    """Where the seconds were measured."""
    return {
        "cpu": cpu_name(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "system": platform.platform(terse=True),
    }


def cpu_name() -> str:
    """Marketing name of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def command_line() -> str:
    """The command that is running, ready to paste; the program without its folder."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
