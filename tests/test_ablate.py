"""The tool that measures what each part of the recipe is worth, and the backbone that it tries."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tools import ablate, backbone
from unembed.cli import main
from unembed.config import Config, tiny
from unembed.data.dataset import Dataset
from unembed.model import artifact, trainer
from unembed.model.denoiser import Denoiser
from unembed.model.rows import Packing


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ablate")
    lines = [f"the {who} saw {n} birds." for who in ("king", "nurse") for n in range(250)]
    (folder / "texts.txt").write_text("\n".join(lines))
    assert main(["encode", str(folder / "texts.txt"), "-o", str(folder / "data")]) == 0
    return folder / "data"


@pytest.fixture(scope="module")
def options(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Namespace:
    made = Namespace(dataset=dataset, work=tmp_path_factory.mktemp("work"), preset="tiny", bag_steps=2, minutes=1.0)
    ablate.conditioner(made)
    return made


def test_arms_are_trained_once_from_one_start_and_kept(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    command = [str(dataset), str(tmp_path / "work"), "-o", str(out), "--preset", "tiny", "--minutes", "0.005"]
    command += ["--bag-steps", "2", "--arms", "base", "no account of what was said"]
    assert ablate.main(command) == 0
    kept = json.loads(out.read_text())
    base, other = kept["rows"]
    assert base["arm"] == "base"
    assert other["settings"] == ["model.account=false"]
    for row in (base, other):
        assert row["texts"] == row["steps"] * 32
        assert row["steps"] >= 4
        assert row["cpu_seconds"] < 60
        assert 0 < row["entropy_0.15"] < 12
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.safetensors")}
    assert ablate.main(command) == 0  # nothing is trained again
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "work").rglob("*.safetensors")} == files
    ablate.kept(tmp_path / "work", "base").unlink()  # as if it had been killed before its end
    assert ablate.main(command) == 0
    assert len(json.loads(out.read_text())["rows"]) == 2
    assert ablate.main(["--table", "-o", str(out)]) == 0
    assert "| no account of what was said |" in capsys.readouterr().out


def test_every_arm_is_a_recipe_of_its_own(dataset: Path) -> None:
    options, data = Namespace(preset="cpu"), Dataset(dataset)
    recipes = {name: ablate.configured(options, data, arm.settings) for name, arm in ablate.ARMS.items()}
    assert recipes["base"] == recipes.pop("layers from noise")
    assert len(set(recipes.values())) == len(recipes)


@pytest.mark.parametrize("name", ["base", "layers from noise", "3 layers"])
def test_arms_get_the_steps_that_fit_into_their_time_and_start_from_the_conditioner(
    options: Namespace, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    start = artifact.load(options.work / "conditioner").net.state_dict()
    given: list[tuple[Config, artifact.Artifact]] = []
    now = [0.0]

    def train(config, data, out, *, init_from, preview, report):  # each step takes a second and a half
        given.append((config, init_from))
        for _ in range(config.train.steps):
            now[0] += 1.5
            report(SimpleNamespace(phase="denoise", metrics={}))
        report(SimpleNamespace(phase="denoise", metrics=dict.fromkeys(ablate.METRICS, 1.0)))

    monkeypatch.setattr(trainer, "train", train)
    monkeypatch.setattr(ablate.time, "process_time", lambda: now[0])
    ablate.run(name, options)
    config, before = given[-1]
    assert config.train.steps == config.train.validate_every == 40  # a minute
    assert json.loads(ablate.kept(options.work, name).read_text())["cpu_seconds"] == 60
    changed = {key for key, value in before.net.state_dict().items() if not torch.equal(value, start[key])}
    assert all(key.startswith("blocks.") for key in changed)
    assert bool(changed) == (name == "layers from noise")


def test_a_layer_of_the_backbone_is_that_of_the_llama_but_looks_ahead_too() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=48, intermediate_size=64, num_hidden_layers=1, num_attention_heads=6,
        num_key_value_heads=2, rope_theta=1000.0,
    )  # fmt: skip
    llama = LlamaForCausalLM(config).eval()
    block = backbone.LlamaBlock(llama.model.layers[0], config)
    ids = torch.randint(0, 50, (2, 7))
    nothing = (torch.zeros(2, 64), torch.zeros(2, 48))
    with torch.no_grad():
        true = llama.model(ids).last_hidden_state
        x = llama.model.embed_tokens(ids)
        found = llama.model.norm(block(x, *nothing, None))
        torch.testing.assert_close(found[:, -1], true[:, -1])  # the last place sees all others in both
        assert not torch.allclose(found[:, 0], true[:, 0], atol=1e-3)
        valid = torch.arange(7) < torch.tensor([[4], [7]])
        rows = Packing(valid)
        packed = rows.pad(block(rows.pack(x), *nothing, rows))
        torch.testing.assert_close(packed[0, :4], block(x[:1, :4], *(one[:1] for one in nothing), None)[0])


def test_a_denoiser_on_a_llama_starts_with_its_words_and_learns(dataset: Path) -> None:
    data = Dataset(dataset)
    config = trainer.fit_to_data(replace(tiny(), model=replace(tiny().model, norm="pre", conv=False)), data).model
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=60, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2,
        )
    )  # fmt: skip
    words = [data.tokenizer.id_to_token(k) for k in range(config.vocab_size)]

    def tokenizer(written: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [[len(word) % 60, 7] for word in written]}

    net = Denoiser(config)
    backbone.put_in(net, words, llama, tokenizer)
    table = llama.model.embed_tokens.weight
    king, piece = data.tokenizer.token_to_id("king"), data.tokenizer.token_to_id("##ing")
    torch.testing.assert_close(net.embed.weight[king], table[[len(" king"), 7]].mean(0))
    torch.testing.assert_close(net.embed.weight[piece], table[[len("ing"), 7]].mean(0))
    tokens = torch.full((2, 5), config.mask_id)
    net(tokens, torch.ones(2), net.condition(torch.randn(2, config.vector_dim))).sum().backward()
    last = net.blocks[-1]
    assert isinstance(last, backbone.LlamaBlock)
    assert last.qkv.weight.grad is not None
