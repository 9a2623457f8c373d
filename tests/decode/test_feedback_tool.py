"""The tool that measures encoder feedback."""

import json
from itertools import product

import pytest

from tools import feedback_curve
from unembed.cli import main


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("feedback")
    who, what, when = ("my sister", "the old man", "a nurse"), ("sold the car", "read a letter"), ("today", "in may")
    lines = [f"{a} {b} {c}, number {n}." for a, b, c, n in product(who, what, when, range(80))]
    (folder / "texts.txt").write_text("\n".join(lines))
    assert main(["encode", str(folder / "texts.txt"), "-o", str(folder / "data"), "--split", "test"]) == 0
    return folder / "data"


def test_one_run_gives_the_curve_and_is_not_searched_twice(dataset, tmp_path, capsys, monkeypatch):
    out, chart = tmp_path / "feedback.json", tmp_path / "feedback.svg"
    command = [str(dataset), "-n", "2", "--batch", "1", "--budgets", "4", "12", "-o", str(out), "--jobs", "1"]
    monkeypatch.setattr(feedback_curve, "estimate", None)  # stopped before it is scored
    with pytest.raises(TypeError):
        feedback_curve.main([*command, "--arms", "black box", "int8 vectors"])
    monkeypatch.undo()
    monkeypatch.setattr(feedback_curve.Keeper, "put", None)  # what was searched is kept, and not searched again
    assert feedback_curve.main([*command, "--arms", "black box"]) == 0
    assert feedback_curve.main([*command, "--arms", "int8 vectors", "--chart", str(chart)]) == 0
    results = json.loads(out.read_text())
    rows = {(row["arm"], row["budget"]): row for row in results["rows"]}
    arms = [(arm, budget) for arm in ("int8 vectors", "black box") for budget in (4, 12)]
    assert list(rows) == [("no feedback", 0), *arms]  # the second command added its arm
    assert len(results["commands"]) == 2
    assert rows["black box", 12]["queries"] == 12
    cosines = [rows[key]["metrics"]["cosine"]["value"] for key in (("no feedback", 0), *arms[2:])]
    assert cosines == sorted(cosines)
    assert 0 < rows["black box", 4]["cpu_seconds"] < rows["black box", 12]["cpu_seconds"]
    first = chart.read_text()
    assert "2 unseen texts" in first
    assert "CPU seconds" in (tmp_path / "feedback_seconds.svg").read_text()
    capsys.readouterr()
    assert feedback_curve.main(["-o", str(out), "--chart", str(chart)]) == 0
    assert chart.read_text() == first
    assert "| black box | 12 |" in capsys.readouterr().out
    assert feedback_curve.feedback_table(results, ["black box"], [12]).count("\n") == 2
