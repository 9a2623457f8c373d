"""A measurement that is stopped goes on where it was, and gives the same results."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.measure.doubles import LookupInverter, WordCounts, make_examples
from tests.measure.real import make_dataset, make_inverter
from tests.processes import Process, unembed
from unembed.decode import DecodeConfig, Inversion
from unembed.errors import DataError
from unembed.measure import results as disk
from unembed.measure.baselines import Strategy
from unembed.measure.evaluate import evaluate
from unembed.measure.recovery import Keeper, count_passes, net_sha256
from unembed.measure.results import Results

MADE_OF = {"weights": "w", "n": 40}


class Stopping(LookupInverter):
    """Is interrupted at its n-th call."""

    def invert(self, vectors: np.ndarray, config: DecodeConfig) -> list[Inversion]:
        if len(self.seen) == self.stop:
            raise KeyboardInterrupt
        return super().invert(vectors, config)


def numbers(results: Results) -> Any:
    """All that does not depend on the clock."""
    return [dataclasses.replace(system, seconds_per_text=0.0) for system in results.systems]


@pytest.mark.parametrize("stop", [0, 1, 4, 6])
def test_what_was_done_is_not_done_again(
    stop: int, test_texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Strategy, "chunk", 10)
    part = tmp_path / "r.json.part"
    strategies = {"best": DecodeConfig(), "slow": DecodeConfig(strategy="sequential")}
    inverter = Stopping(test_texts)
    arguments: Any = (inverter, make_examples(test_texts), WordCounts(), strategies)
    inverter.stop = stop
    with pytest.raises(KeyboardInterrupt):
        evaluate(*arguments, resamples=50, keeper=Keeper(part, MADE_OF))
    assert part.exists()  # the originals are there in any case
    inverter.stop = -1
    keeper = Keeper(part, MADE_OF)
    resumed = evaluate(*arguments, resamples=50, keeper=keeper)
    assert len(inverter.seen) == 8  # two strategies, four chunks, each once
    assert resumed.system("slow").seconds_per_text > 0
    inverter.seen.clear()
    assert numbers(resumed) == numbers(evaluate(*arguments, resamples=50))
    keeper.remove()
    assert not list(tmp_path.iterdir())


def test_a_part_of_something_else_is_refused(tmp_path: Path) -> None:
    part = tmp_path / "r.json.part"
    keeper = Keeper(part, MADE_OF)
    keeper.get("best", {"steps": 8}).texts.append("a text")
    keeper.save()
    with pytest.raises(DataError, match=r"r\.json\.part was begun with another n \(40, now 50\)"):
        Keeper(part, {**MADE_OF, "n": 50})
    again = Keeper(part, MADE_OF)
    assert again.get("best", {"steps": 8}).texts == ["a text"]
    assert again.get("best", {"steps": 9}).texts == []  # other settings: nothing of it can be used
    for damage in ("{", '{"made_of": {}, "systems": [1]}', '{"colour": 1}'):
        part.write_text(damage)
        with pytest.raises(DataError, match=r"r\.json\.part"):
            Keeper(part, MADE_OF)


def test_the_hash_of_a_net_is_that_of_its_weights() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    before = net_sha256(net)
    assert net_sha256(net) == before
    with torch.no_grad():
        net.bias[0] += 1e-3
    assert net_sha256(net) != before
    assert len(net_sha256(net.bfloat16())) == 64


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An inverter, and a dataset of a source that it was not trained on."""
    folder = tmp_path_factory.mktemp("evaluate")
    make_inverter({"data": {"sources": "others"}}).save_pretrained(folder / "inverter")
    return folder / "inverter", make_dataset(folder)


def start(folders: tuple[Path, Path], out: Path, *more: str) -> Process:
    arguments = ["evaluate", *folders, "-o", out, "--split", "held-out", "-n", "1100", "--no-cosine"]
    fast = ["--steps", "2", "--lengths", "1", "--resamples", "20", "--strategies", "confidence,sequential"]
    return unembed(*arguments, *fast, *more)


@pytest.fixture(scope="module")
def whole(folders: tuple[Path, Path]) -> Results:
    """What one unbroken run says."""
    done = start(folders, folders[0].parent / "whole.json", "--json").wait()
    return disk.from_dict(json.loads(done.stdout))


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_process_loses_nothing(
    stop: signal.Signals, folders: tuple[Path, Path], whole: Results, tmp_path: Path
) -> None:
    out, part = tmp_path / "r.json", tmp_path / "r.json.part"
    process = start(folders, out)
    began = time.monotonic()
    while not (part.exists() and "confidence" in part.read_text()):
        assert process.poll() is None, process.wait()
        assert time.monotonic() - began < 120
        time.sleep(0.01)
    process.send_signal(stop)
    done = process.wait()
    assert not out.exists()
    if stop == signal.SIGINT:
        assert done.returncode == 130
        assert (done.stdout, done.stderr) == (
            "", "unembed: stopped. What was recovered and scored is kept: run the same command again to go on.\n",
        )  # fmt: skip
    kept = json.loads(part.read_text())["systems"]["confidence"]
    assert kept["texts"]
    done = start(folders, out).wait()
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["r.json"]
    results = disk.load(out)
    assert numbers(results) == numbers(whole)
    assert results.split == "held-out"
    assert {s.overall["token_f1"].n for s in results.systems} == {1100}
    assert any("random and nearest were left out" in note for note in results.notes)


def test_passes_are_counted_only_inside_and_the_hook_goes_away() -> None:
    net = torch.nn.Linear(2, 2)
    with count_passes(net) as passes:
        net(torch.zeros(5, 2))
        net(torch.zeros(3, 2))
        with pytest.raises(RuntimeError), count_passes(net):
            net(torch.zeros(1, 3))  # fails
    net(torch.zeros(7, 2))
    assert passes.rows == 9
    assert not net._forward_pre_hooks
