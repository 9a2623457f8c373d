"""Ctrl-C: a command ends with 130 and one line, and goes on later. (evaluate: measure/test_recovery.py)"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import numpy as np

from tests.data.conftest import contents
from tests.data.encoder_models import static_model
from tests.measure.doubles import DIM
from tests.measure.real import make_dataset, make_inverter
from tests.processes import unembed
from unembed.cli import main
from unembed.data.shards import MANIFEST, shard_name, tokens_folder, vectors_folder


def stop(arguments: list[object], begun: Path) -> str:
    """Interrupt a command as soon as a file is there; returns the one line that it says then."""
    process = unembed(*arguments)
    for _ in range(30_000):
        if begun.exists():
            break
        assert process.poll() is None, process.wait()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    done = process.wait()
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("unembed: stopped. ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_interrupted_inversion_goes_on(tmp_path):
    count = 20_000
    rows = np.random.default_rng(1).normal(size=(count, DIM)).astype(np.float32)
    np.save(tmp_path / "many.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
    out, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part.json"
    make_inverter().save_pretrained(tmp_path / "inverter")
    fast = ["--steps", "1", "--lengths", "1"]
    arguments = ["invert", tmp_path / "many.npy", "-o", out, "--inverter", tmp_path / "inverter", *fast]
    assert "same command again" in stop(arguments, part)
    assert not out.exists()
    kept = json.loads(part.read_text())
    assert unembed(*arguments).wait().returncode == 0
    lines = out.read_text().splitlines()
    assert len(lines) == count
    assert [json.loads(line)["row"] for line in (lines[0], lines[-1])] == [0, count - 1]
    assert 0 < kept["rows"] < count


def test_interrupted_training_is_saved(tmp_path):
    run = tmp_path / "run"
    arguments = ["train", make_dataset(tmp_path), "-o", run, "--preset", "tiny", "--steps", "100000"]
    assert "--resume" in stop(arguments, run / "training" / "metrics.jsonl")
    assert (run / "training" / "last.safetensors").is_file()


def test_interrupted_encoding_goes_on(tmp_path):
    """In both stages; the files are those of a run that nobody stopped."""
    lines = [f"Parcel {row} goes to house {row * 7} in street {row % 89}." for row in range(6_000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    data, whole = tmp_path / "data", tmp_path / "whole"
    tokens = ["encode", tmp_path / "a.txt", "--stage", "tokens", "-o"]
    encoder = f"model2vec:{static_model(tmp_path / 'static')}"
    vectors = ["encode", "--stage", "vectors", "--encoder", encoder, "-o"]
    for stage, place in ((tokens, tokens_folder(data)), (vectors, vectors_folder(data, encoder))):
        assert "same command again" in stop([*stage, data], place / MANIFEST)
        assert not (place / shard_name(0)).exists()
        for folder in (data, whole):
            assert main([*map(str, stage), str(folder)]) == 0
    assert contents(data) == contents(whole)
