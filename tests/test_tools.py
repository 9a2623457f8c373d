"""The small tools beside the package."""

import json
from pathlib import Path

import torch

import unembed
from tools import average, learning_curve, ship, warmstart_curve
from unembed.cli import main
from unembed.config import override, tiny
from unembed.measure.results import load as load_results
from unembed.measure.table import markdown_table
from unembed.model import artifact
from unembed.model.artifact import Artifact, EncoderInfo
from unembed.model.denoiser import Denoiser

TOOLS = Path(__file__).parents[1] / "tools"


def test_a_learning_curve_is_measured_and_drawn_again_from_what_was_kept(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    lines = [
        f"the {who} saw {n} birds in {place}."
        for who in ("nurse", "king")
        for n in range(99)
        for place in ("may", "rome")
    ]
    texts.write_text("\n".join(lines))
    assert main(["encode", str(texts), "-o", str(tmp_path / "data"), "--split", "validation"]) == 0
    data, first, again = tmp_path / "curve.json", tmp_path / "a.svg", tmp_path / "b.svg"
    measured = [unembed.SHIPPED, "--dataset", tmp_path / "data", "-n", "3"]
    for command in ([*measured, "--data", data, "-o", first], ["--data", data, "-o", again]):
        assert learning_curve.main([str(word) for word in command]) == 0
    kept = json.loads(data.read_text())
    (stage,) = kept["stages"]
    assert kept["n"] == stage["metrics"]["token_f1"]["n"] == 3
    info = unembed.load().artifact.info
    seen = info["data"]["texts seen"] + info["writer"]["data"]["texts seen"]
    assert stage["texts"] == seen
    assert stage["metrics"]["bleu_text"]["value"] > 1
    assert 0 < stage["metrics"]["cosine"]["value"] <= 1
    assert stage["entropy"]["0.15"] < stage["entropy"]["1"]
    assert first.read_text() == again.read_text()
    stage["texts"] = 7  # what is kept is not measured again, unless on other texts
    data.write_text(json.dumps(kept))
    for n, texts in (("3", 7), ("2", seen)):
        command = [*measured[:-1], n, "--data", data, "-o", again]
        assert learning_curve.main([str(word) for word in command]) == 0
        assert [stage["texts"] for stage in json.loads(data.read_text())["stages"]] == [texts]
    assert "3 unseen texts" in first.read_text()


def test_shipping_keeps_the_weights_and_writes_scores_and_random_examples_into_the_card(tmp_path: Path) -> None:
    results = TOOLS.parent / "results" / "minilm.json"
    assert ship.main([str(unembed.SHIPPED), str(results)], tmp_path) == 0
    before, after = unembed.load(), unembed.Inverter.from_pretrained(tmp_path)
    for name, tensor in before.artifact.net.state_dict().items():
        assert torch.equal(tensor, after.artifact.net.state_dict()[name]), name
    for name, tensor in before.artifact.writer.state_dict().items():  # rounded to one byte a number, at most once
        off = (tensor - after.artifact.writer.state_dict()[name]).abs()
        rounded = name.endswith(".weight") and tensor.dim() == 2 and tensor.numel() >= artifact.LARGE
        assert (off <= (0.51 * tensor.abs().amax(1, keepdim=True) / 127 if rounded else 0.0)).all(), name
    again = tmp_path / "again"
    assert ship.main([str(tmp_path)], again) == 0
    assert (again / "writer.safetensors").read_bytes() == (tmp_path / "writer.safetensors").read_bytes()
    card = (tmp_path / "README.md").read_text()
    assert "MedQuAD" in card
    assert markdown_table(load_results(results), "systems", ship.SCORES, "") in card
    (default,) = [system for system in json.loads(results.read_text())["systems"] if system["name"] == "writer"]
    assert default["samples"][0]["recovered"][:20] in card
    assert ship.main([], tmp_path) == 2


def test_weights_of_two_stages_are_averaged(tmp_path: Path) -> None:
    tokenizer = unembed.load().artifact.tokenizer
    for number, width in enumerate((48, 48, 24)):
        config = override(tiny(), [f"model.width={width}", "model.vocab_size=400"])
        torch.manual_seed(number)
        info = EncoderInfo("minilm", 384, True, "one")
        made = Artifact(Denoiser(config.model), tokenizer, config, info, {"stage": number})
        artifact.save(tmp_path / str(number), made, "fp32")
    before, after, narrow, out = (str(tmp_path / name) for name in ("0", "1", "2", "out"))
    assert average.main([before, after, "-o", out, "--share", "0.75"]) == 0
    a, b, mean = (artifact.load(folder) for folder in (before, after, out))
    for name, tensor in mean.net.named_parameters():
        assert torch.allclose(tensor, 0.25 * a.net.get_parameter(name) + 0.75 * b.net.get_parameter(name), atol=1e-6)
    assert mean.info == {"stage": 1}
    assert average.main([before, narrow, "-o", out]) == 2


def test_what_a_warm_start_saves_is_drawn_from_what_the_runs_have_written(tmp_path: Path) -> None:
    def at(texts: int, f1: float) -> dict[str, dict[str, float]]:
        return {"metrics": {"texts": texts, "token_f1": f1, "entropy_0.5": 5 - f1}}

    for name, scores in {"warm": [0.2, 0.3], "cold": [0.1, 0.15]}.items():
        run = tmp_path / name
        (run / "training").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({"train": {"steps": 2}, "encoder": {"spec": "other-encoder"}}))
        steps = [{"metrics": {}}, *(at(64 * k, f1) for k, f1 in enumerate(scores, 1))]
        (run / "training" / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)) + "\n")
    data, first, again = tmp_path / "kept.json", tmp_path / "a.svg", tmp_path / "b.svg"
    for command in ([tmp_path / "warm", tmp_path / "cold", "--data", data, "-o", first], ["--data", data, "-o", again]):
        assert warmstart_curve.main([str(word) for word in command]) == 0
    kept = json.loads(data.read_text())
    assert [one["token_f1"] for one in kept["runs"]["cold"]["validations"]] == [0.1, 0.15]
    assert first.read_text() == again.read_text()
    assert "other-encoder" in first.read_text()
    assert "the shipped inverter behind a map" in first.read_text()
