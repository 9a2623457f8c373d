"""The benchmarks run, and on small sizes keep well clear of the point where the thing they guard is broken."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
# The goals are for full sizes on a quiet machine (see each script); these only say that it is not broken.
SPEED = {
    "train_step": ["--texts", "40", "--repeats", "1", "--goal", "1.2"],
    "decode": ["--count", "64", "--singles", "2", "--rounds", "1", "--goal", "2"],
    "encode": ["--texts", "300", "--rounds", "1", "--memory", "--goal", "0.4"],
    "audit": ["--rows", "8", "--memory", "--goal", "0.2"],
    "feedback": ["--count", "4", "--singles", "1", "--budget", "8", "--latency", "0", "--goal", "0.3"],
    "serve": ["--clients", "4", "--rounds", "1", "--goal", "1.0"],
}
# What a process holds does not depend on what runs beside it.
MEMORY = {
    "encode": ("texts", ["--rounds", "0"], [9_000, 27_000]),
    "audit": ("rows", ["--rows", "2", "--only-memory"], [10_000, 200_000]),
}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def result_of(name: str, folder: Path, *arguments: str) -> Any:
    done = run(name, "-o", str(folder / "result.json"), *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "result.json").read_text())


@pytest.mark.alone
@pytest.mark.parametrize("name", SPEED)
def test_it_runs_and_reaches_a_low_bar(name: str, tmp_path: Path) -> None:
    result = result_of(name, tmp_path, *SPEED[name])
    if name == "decode":
        # bf16, an arm of its own where the CPU is fast with it, rounds: one text of 64 may become another.
        differ = {name: arm["texts_that_differ"] for name, arm in result["arms"].items()}
        assert differ.pop("+ bf16", 0) <= 3
        assert set(differ.values()) == {0}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_flat(name: str, tmp_path: Path) -> None:
    unit, only, sizes = MEMORY[name]
    memory = result_of(name, tmp_path, *only, "--memory", *map(str, sizes))["memory"]
    assert [one[unit] for one in memory["runs"]][: len(sizes)] == sizes
    assert memory["growth_share"] <= memory["growth_share_wanted"]


def test_a_missed_goal_fails() -> None:
    done = run("train_step", "--texts", "10", "--repeats", "1", "--goal", "1000")
    assert done.returncode == 1
    assert "the goal is 1000" in done.stderr
