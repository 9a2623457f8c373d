"""Average the weights of two inverters of one shape: usually those that a stage began with and ended with.

    python tools/average.py BEFORE AFTER -o OUT [--share 0.5]

Small batches leave noise in the weights that a falling rate does not remove; half-way between two stages there is less
of it (docs/LOG.md, sixth session). Data and recipe in OUT are those of AFTER.
"""

from __future__ import annotations

import argparse
import copy
import sys
from dataclasses import replace
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

from unembed.errors import UnembedError  # noqa: E402
from unembed.model import artifact  # noqa: E402


def main(arguments: list[str]) -> int:
    """Write the averaged inverter; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.5, help="of AFTER (default 0.5)")
    options = parser.parse_args(arguments)
    try:
        before, after = artifact.load(options.before), artifact.load(options.after)
        if (before.config.model, before.encoder) != (after.config.model, after.encoder):
            raise UnembedError("the two inverters differ in shape or encoder: only stages of one net can be averaged")
        net = copy.deepcopy(after.net)
        average(before.net, net, options.share)
        surrogate = None if after.surrogate is None else after.surrogate.on(net)
        artifact.save(options.output, replace(after, net=net, surrogate=surrogate, writer=None), "fp32")
    except UnembedError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


@torch.no_grad()
def average(before: torch.nn.Module, after: torch.nn.Module, share: float) -> None:
    """Move `after` towards `before`, in place, until only `share` of it is left."""
    for mine, theirs in zip(after.parameters(), before.parameters(), strict=True):
        mine.lerp_(theirs, 1 - share)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
