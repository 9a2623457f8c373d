"""Training in processes: killed and resumed to the bit, and two of them with the loss of one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.model.test_trainer import losses
from tests.processes import Process, unembed
from unembed.config import override, tiny
from unembed.data.dataset import Dataset
from unembed.model.trainer import fit_to_data, train

ROOT = Path(__file__).parents[2]


def run(folder: str, out: str, *settings: str) -> None:
    """A training from the start, or from where the last one was killed."""
    torch.use_deterministic_algorithms(True)
    data = Dataset(folder)
    train(fit_to_data(override(tiny(), list(settings)), data), data, Path(out), resume=True)


def start(data: Dataset, out: Path, *settings: str) -> Process:
    return Process(run, str(data.folder), str(out), *settings)


def finish(process: Process) -> None:
    done = process.wait()
    assert done.returncode == 0, done.stderr


def test_kill_nine_and_resume_gives_the_same_bits(data: Dataset, tmp_path: Path) -> None:
    settings = ("train.steps=24", "train.save_every=4", "train.validate_every=8", "model.dropout=0.1")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    undisturbed = start(data, whole, *settings)
    kills = 0
    for wanted in (2, 3, 10, 17):  # steps at which to kill: in the first phase, and twice in the second
        process = start(data, broken, *settings)
        metrics = broken / "training" / "metrics.jsonl"
        while process.poll() is None:
            lines = metrics.read_text().count("\n") if metrics.exists() else 0
            if lines >= wanted + 5 * (wanted > 5):
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.01)
        process.wait()
    assert kills >= 3
    finish(start(data, broken, *settings))
    finish(undisturbed)
    one, two = (load_file(path / "training" / "last.safetensors") for path in (whole, broken))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (whole / "model.safetensors").read_bytes() == (broken / "model.safetensors").read_bytes()
    assert losses(whole) == losses(broken)


def test_two_processes_have_the_loss_of_one(data: Dataset, tmp_path: Path) -> None:
    """With an odd number of texts, and stopping early at the same step, the first that makes it worse.

    Longer steps would do that sooner, but then the last bits of a sum decide where the two go.
    """
    changes = (
        "bag_steps=3", "batch_texts=33", "validate_every=1", "patience=1", "lr=0.01", "muon_lr=0.01", "warmup_steps=0",
        "ema=0", "bf16=false",
    )  # fmt: skip
    command = ["train", str(data.folder), "--preset", "tiny", "--steps", "40", "--json"]
    command += [word for change in changes for word in ("--set", f"train.{change}")] + ["-o"]
    one, two = tmp_path / "one", tmp_path / "two"
    alone = unembed(*command, one)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "unembed"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*torchrun, *command, two], capture_output=True, text=True, env=environment, cwd=ROOT)
    finish(alone)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inverter"] == str(two), "one of the processes speaks for all"
    logs = [(out / "training" / "metrics.jsonl").read_text().count("\n") for out in (one, two)]
    assert logs[0] == logs[1], "two processes that do not know of one another write everything twice"
    wanted, together = losses(one), losses(two)
    assert wanted.keys() == together.keys()
    assert max(step for _, step in wanted) < 40
    assert len({round(loss, 3) for (phase, _), loss in wanted.items() if phase == "denoise"}) > 2, "nothing was learned"
    for key, loss in wanted.items():
        assert together[key] == pytest.approx(loss, rel=2e-4), key
