"""The scripts of runs/: the whole pipeline on a CPU for real, those of a cluster up to what they would start."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_cli import ROOT, parses, write_sentences


def test_cpu_script_runs_the_whole_pipeline(tmp_path):
    write_sentences(tmp_path / "sentences.txt")
    stand_in(tmp_path / "bin" / "unembed", f'exec {sys.executable} -m unembed "$@"')
    done = run_script("cpu.sh", tmp_path, str(tmp_path / "sentences.txt"), "--", "--steps", "2", PRESET="tiny", N="2")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "results.json").read_text())["n"] == 2


@pytest.mark.parametrize(("script", "commands"), [("paper_gpu.sh", 4), ("slurm.sh", 4)])
def test_cluster_scripts_call_commands_that_exist(script, commands, tmp_path):
    """Their machines are not here; what they would start is, and must parse."""
    for name in ("unembed", "torchrun", "sbatch"):
        stand_in(tmp_path / "bin" / name, f'printf "%s\\n" "{name} $*" >> {tmp_path}/calls; echo 1')
    done = run_script(script, tmp_path, SLURM_ARRAY_TASK_ID="3")
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == commands
    for call in calls:
        call = call.replace("$SLURM_ARRAY_TASK_ID", "3")
        parses(shlex.split(re.search(r"(?:^| )(?:-m )?unembed (.*)", call)[1]))


def stand_in(path: Path, line: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{line}\n")
    path.chmod(0o755)


def run_script(name: str, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    path = f"{folder}/bin:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OUT": str(folder / "out"), "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        ["bash", str(ROOT / "runs" / name), *arguments], capture_output=True, text=True, cwd=folder, env=environment
    )
