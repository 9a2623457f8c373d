"""The scripts of runs/: the whole pipeline on a CPU for real, those of a cluster up to what they would start."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import unembed
from tests.test_cli import ROOT, parses, write_sentences


def test_cpu_script_runs_the_whole_pipeline(tmp_path):
    write_sentences(tmp_path / "sentences.txt")
    with forked_commands(tmp_path) as calls:
        done = run_script("cpu.sh", tmp_path, f"{tmp_path}/sentences.txt", "--", "--steps", "2", PRESET="tiny", N="2")
    assert done.returncode == 0, done.stderr
    assert calls == ["encode", "train", "evaluate", "invert"]
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


@contextmanager
def forked_commands(folder: Path) -> Iterator[list[str]]:
    """An `unembed` for a script that need not import torch for each call; gives the names of the commands so far.

    Through one pipe come the arguments, through the other the exit code goes back.
    """
    asked, answered, said = folder / "asked", folder / "answered", folder / "said"
    os.mkfifo(asked)
    os.mkfifo(answered)
    back = f"read -r code < {answered}; cat {said} >&2; exit $code"
    stand_in(folder / "bin" / "unembed", f'printf "%s\\0" "$@" > {asked}; {back}')
    calls: list[str] = []

    def work() -> None:
        while arguments := asked.read_text().split("\0")[:-1]:
            calls.append(arguments[0])
            try:
                done = unembed(*arguments).wait()
                code, text = done.returncode, done.stdout + done.stderr
            except AssertionError as error:  # it took too long; the script still waits for an answer
                code, text = 1, str(error)
            said.write_text(text)
            answered.write_text(f"{code}\n")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield calls
    finally:
        asked.write_text("")  # no arguments: the end
        thread.join()


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
