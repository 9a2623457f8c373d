"""The benchmarks run, and on small sizes keep well clear of the point where the thing they guard is broken."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone
ROOT = Path(__file__).parents[1]
# The goals are for full sizes on a quiet machine (see each script); these only say that it is not broken.
RUNS = {
    "train_step": ["--texts", "40", "--repeats", "1", "--goal", "1.2"],
    "decode": ["--count", "64", "--singles", "2", "--rounds", "1", "--goal", "2"],
    "encode": ["--texts", "300", "--rounds", "1", "--memory", "9000", "27000", "--goal", "0.4"],
    "audit": ["--rows", "8", "--memory", "10000", "200000", "--goal", "0.2"],
    "feedback": ["--count", "4", "--singles", "1", "--budget", "8", "--latency", "0", "--goal", "0.3"],
    "serve": ["--clients", "4", "--rounds", "1", "--goal", "1.0"],
}


@pytest.mark.parametrize("name", RUNS)
def test_it_runs_and_reaches_a_low_bar(name: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "-o", str(out), *RUNS[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    if name == "encode":
        assert [run["texts"] for run in result["memory"]["runs"]] == [9000, 27000]
        assert result["memory"]["growth_share"] <= result["memory"]["growth_share_wanted"]
    if name == "decode":
        assert all(arm["texts_that_differ"] == 0 for arm in result["arms"].values())


def test_a_missed_goal_fails(tmp_path: Path) -> None:
    script = str(ROOT / "benchmarks" / "train_step.py")
    done = subprocess.run(
        [sys.executable, script, "--texts", "10", "--repeats", "1", "--goal", "1000"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "the goal is 1000" in done.stderr
