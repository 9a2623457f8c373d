"""The small tools beside the package."""

import json
from pathlib import Path

import torch

import unembed
from tools import learning_curve, ship

TOOLS = Path(__file__).parents[1] / "tools"


def test_a_learning_curve_is_drawn_from_logs_and_again_from_what_was_kept(tmp_path: Path) -> None:
    for stage, texts in (("one", (10, 20)), ("two", (30,))):
        log = tmp_path / stage / "training" / "metrics.jsonl"
        log.parent.mkdir(parents=True)
        lines = [{"metrics": {}}] + [
            {"metrics": {"texts": n, "entropy_1": 5 - n / 100, "entropy_0.5": 4.0, "entropy_0.15": 3.5}} for n in texts
        ]
        log.write_text("\n".join(map(json.dumps, lines)))
    data, first, again = tmp_path / "curve.json", tmp_path / "a.svg", tmp_path / "b.svg"
    runs = [str(tmp_path / stage) for stage in ("two", "one")]
    for command in ([*runs, "--data", data, "-o", first], ["--data", data, "-o", again]):
        assert learning_curve.main([str(word) for word in command]) == 0
    assert [line["texts"] for line in json.loads(data.read_text())["validations"]] == [10, 20, 30]
    assert first.read_text() == again.read_text()
    assert first.read_text().count("<circle") == 3 * 3 + 3  # a point for each validation and level, and the legend


def test_shipping_keeps_the_weights_and_writes_scores_and_random_examples_into_the_card(tmp_path: Path) -> None:
    results = TOOLS.parent / "results" / "minilm.json"
    assert ship.main([str(unembed.SHIPPED), str(results)], tmp_path) == 0
    before, after = unembed.load(), unembed.Inverter.from_pretrained(tmp_path)
    for name, tensor in before.artifact.net.state_dict().items():
        assert torch.equal(tensor, after.artifact.net.state_dict()[name]), name
    card = (tmp_path / "README.md").read_text()
    assert "MedQuAD" in card
    assert "| nearest |" in card
    (default,) = [system for system in json.loads(results.read_text())["systems"] if system["name"] == "confidence"]
    assert default["samples"][0]["recovered"][:20] in card
    assert ship.main([], tmp_path) == 2
