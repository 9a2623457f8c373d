"""An audit that is killed, resumed, changed under its hands, or cannot read what it finds."""

from __future__ import annotations

import json
import signal
import time

import numpy as np
import pytest

from tests.audit.conftest import TEXTS, without_times
from tests.processes import unembed
from unembed.audit import run
from unembed.audit.log import NAME, read
from unembed.audit.stores import StoreOptions
from unembed.errors import DataError

pytestmark = pytest.mark.usefixtures("warm")


ROWS = 70  # more than a batch


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Vectors of an encoder that nobody has."""
    folder = tmp_path_factory.mktemp("store")
    rows = np.random.default_rng(0).normal(size=(ROWS + 10, 24))
    np.save(folder / "v.npy", (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32))
    (folder / "t.txt").write_text("".join(f"{TEXTS[row % len(TEXTS)]}\n" for row in range(len(rows))))
    return folder


@pytest.fixture(scope="module")
def options(store, mine):
    return run.Options(StoreOptions(texts=store / "t.txt"), ROWS, 3, "mine", mine)


def audit(store, folder, options, **settings):
    return list(run.audit(str(store / "v.npy"), folder, options, **settings))


@pytest.fixture(scope="module")
def whole(store, options, tmp_path_factory):
    """The folder of an audit that nobody disturbed, and its steps."""
    folder = tmp_path_factory.mktemp("whole") / "audit"
    return folder, audit(store, folder, options)


def test_leaves_log_numbers_and_report(whole):
    folder, steps = whole
    assert {path.name for path in folder.iterdir()} == {NAME, run.SUMMARY, run.REPORT}
    summary = json.loads((folder / run.SUMMARY).read_text())
    assert summary["store"]["sampled"] == summary["recovery"]["n"] == ROWS
    assert summary["encoder"]["encoder"] == "mine"
    assert summary["controls"]["shuffled"]["n"] == ROWS
    assert [step.done for step in steps if step.stage == "recovering texts"] == [0, 64, ROWS]
    assert [record["row"] for record in read(folder) if record["kind"] == "vector"] == list(range(ROWS))


def test_a_killed_audit_goes_on(store, options, whole, tmp_path):
    """SIGKILL in the middle, then the same command: the same numbers as without."""
    folder = tmp_path / "audit"
    process = unembed(
        "audit", store / "v.npy", "-o", folder, "--sample", ROWS,
        "--seed", "3", "--texts", store / "t.txt", "--encoder", "mine", "--inverter", options.inverter,
    )  # fmt: skip
    log = folder / NAME
    while not (log.exists() and b'"kind": "vector"' in log.read_bytes()):
        assert process.poll() is None, process.wait()
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = log.read_bytes()
    assert not (folder / run.REPORT).exists(), "the audit was too fast to be killed"
    audit(store, folder, options)
    assert log.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert without_times(folder) == without_times(whole[0])


@pytest.mark.parametrize("lines", [1, 30, ROWS + 5])
def test_cut_anywhere_it_goes_on(store, options, whole, tmp_path, lines):
    """As if it had been killed in the middle of that line."""
    kept = (whole[0] / NAME).read_bytes().splitlines(keepends=True)
    assert len(kept) == ROWS + 7
    (tmp_path / NAME).write_bytes(b"".join(kept[:lines]) + kept[lines][:20])
    audit(store, tmp_path, options)
    assert without_times(tmp_path) == without_times(whole[0])
    rows = [record["row"] for record in read(tmp_path) if record["kind"] == "vector"]
    assert sorted(rows) == list(range(ROWS))


def test_a_finished_audit_is_not_taken_for_a_new_one(store, options, whole, tmp_path):
    folder, _ = whole
    with pytest.raises(DataError, match="holds a finished audit"):
        audit(store, folder, options)
    for path in folder.iterdir():
        if path.name != run.REPORT:  # killed just before the report
            (tmp_path / path.name).write_bytes(path.read_bytes())
    audit(store, tmp_path, options)
    assert without_times(tmp_path) == without_times(folder)
    report = (tmp_path / run.REPORT).read_bytes()
    (tmp_path / run.REPORT).unlink()
    run.rebuild(tmp_path)
    assert (tmp_path / run.REPORT).read_bytes() == report


def test_begun_anew_and_killed_it_goes_on(store, options, whole, tmp_path):
    """The report of the old audit does not stand for the new one."""
    for path in whole[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    steps = run.audit(str(store / "v.npy"), tmp_path, options, overwrite=True)
    while next(steps).stage != "recovering texts":
        pass
    steps.close()
    assert not (tmp_path / run.REPORT).exists()
    audit(store, tmp_path, options)
    assert without_times(tmp_path) == without_times(whole[0])


def test_a_store_that_changed_is_not_mixed_in(store, options, whole, tmp_path):
    for name in ("v.npy", "t.txt"):
        (tmp_path / name).write_bytes((store / name).read_bytes())
    moved = run.Options(StoreOptions(texts=tmp_path / "t.txt"), ROWS, 3, "mine", options.inverter)
    log = (whole[0] / NAME).read_text().splitlines(keepends=True)[:30]
    log[0] = log[0].replace(str(store), str(tmp_path))
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / NAME).write_text("".join(log))
    rows = np.load(tmp_path / "v.npy")
    rows[:, 0] += 0.001
    np.save(tmp_path / "v.npy", rows)
    with pytest.raises(DataError, match="has changed since"):
        audit(tmp_path, tmp_path / "audit", moved)
    audit(tmp_path, tmp_path / "audit", moved, overwrite=True)


def test_vectors_of_no_known_encoder(tmp_path):
    """It says so, recovers nothing, and does not call them safe."""
    rows = np.random.default_rng(0).normal(size=(30, 100)).astype(np.float32)
    np.save(tmp_path / "v.npy", rows)
    list(run.audit(str(tmp_path / "v.npy"), tmp_path / "audit", run.Options(sample=20)))
    summary = run.load(tmp_path / "audit")
    assert summary["encoder"]["encoder"] is None
    assert summary["recovery"]["recovered"] == 0
    assert "no proof" in summary["verdict"]["second"]
    assert "unembed train" in summary["next"][0]
    assert "unembed train" in (tmp_path / "audit" / run.REPORT).read_text()


def test_without_text_and_calibration_nothing_is_claimed(store, options, tmp_path):
    blind = run.Options(sample=6, seed=3, encoder="mine", inverter=options.inverter)
    audit(store, tmp_path / "audit", blind)
    summary = run.load(tmp_path / "audit")
    assert summary["recovery"]["kind"] == "none"
    assert summary["recovery"]["recovered"] == 6
    assert summary["verdict"]["token_f1"] is None
    assert "could not be measured" in summary["verdict"]["sentence"]
