"""The echo: it hears the order of words, which the surrogate does not, and travels beside its inverter."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import unembed
from unembed.cli import main
from unembed.config import override, tiny
from unembed.data.dataset import Dataset
from unembed.errors import CheckpointError, ConfigError
from unembed.model import artifact, surrogate_trainer, trainer
from unembed.model.artifact import Artifact
from unembed.model.echo import Echo
from unembed.model.loop import Event
from unembed.model.surrogate import Surrogate


def train(data: Dataset, inverter: Artifact, out: Path, *settings: str, kind="echo", **options) -> list[Event]:
    events: list[Event] = []
    report = options.pop("report", lambda event: None)

    def tell(event: Event) -> None:
        events.append(event)
        report(event)

    config = override(tiny(), ["train.steps=6", *settings])
    surrogate_trainer.train(config, data, inverter, out, kind=kind, report=tell, **options)
    return events


@pytest.fixture(scope="module")
def plain(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """It need not know anything: only its words are taken."""
    settings = ["train.steps=1", "train.bag_steps=1", "train.preview_texts=0"]
    config = trainer.fit_to_data(override(tiny(), settings), data)
    return artifact.load(trainer.train(config, data, tmp_path_factory.mktemp("inverter")))


@pytest.fixture(scope="module")
def inverter(data: Dataset, plain: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    out = tmp_path_factory.mktemp("surrogate")
    train(data, plain, out, "train.steps=200", "train.lr=0.01", kind="surrogate")
    return artifact.load(out)


def test_it_hears_the_order_that_the_surrogate_is_blind_to(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    events = train(data, inverter, tmp_path, "train.steps=250", "train.lr=0.003", "train.validate_every=125")
    cosines = [event.metrics["echo_cosine"] for event in events if event.metrics]
    found = artifact.load(tmp_path)
    assert found.echo is not None
    assert found.surrogate is not None
    examples = data.sample("validation", 40, 0)
    texts, true = [tokens.tolist() for tokens in examples.tokens], torch.from_numpy(examples.vectors).float()
    with torch.inference_mode():
        heard, said = found.echo.foresee(texts), found.surrogate.foresee(texts)
        turned = [text[::-1] for text in texts]
        assert torch.allclose(found.surrogate.foresee(turned), said, atol=1e-5)
        assert ((found.echo.foresee(turned) * true).sum(1) < (heard * true).sum(1) - 0.1).float().mean() > 0.9
    assert (heard * true).sum(1).mean() > (said * true).sum(1).mean() + 0.05
    assert cosines[1] > cosines[0]
    assert artifact.weights_hash(found.net) == artifact.weights_hash(inverter.net)
    assert artifact.weights_hash(found.surrogate) == artifact.weights_hash(inverter.surrogate)
    assert "need not be asked" in (tmp_path / "README.md").read_text()


def test_what_is_behind_the_end_of_a_text_does_not_matter(inverter: Artifact) -> None:
    assert inverter.surrogate is not None
    echo = Echo(inverter.net, inverter.surrogate).eval()
    torch.nn.init.normal_(echo.weight.weight)
    echo.share.data = torch.tensor([1.0, 0.5])
    texts = [[7, 8, 9], [10, 11], [12, 13, 14, 15, 16]]
    with torch.inference_mode():
        together = echo.foresee(texts)
        alone = torch.cat([echo(torch.tensor([text])) for text in texts])
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(together.norm(dim=1), torch.ones(3))


def test_with_the_encoders_layers_it_begins_near_the_encoder() -> None:
    """Before anything is learned: the layers that are left hear most of a text."""
    model = unembed.load().artifact
    assert model.surrogate is not None
    echo = Echo(model.net, model.surrogate).eval()
    echo.start_from_minilm()
    texts = ["the dog bit the man.", "a parcel will arrive on tuesday morning.", "tom does not want to learn french."]
    tokens = [model.tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    with torch.inference_mode():
        heard = echo.foresee(tokens)
    alike = heard @ torch.from_numpy(unembed.encoder("minilm").encode(texts)).T
    assert (alike.argmax(1) == torch.arange(3)).all()
    assert float(alike.diagonal().mean()) > 0.5


def test_interrupted_it_goes_on_as_if_nothing_had_happened(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(data, inverter, tmp_path / "run", report=interrupt)
    train(data, inverter, tmp_path / "run", resume=True)
    train(data, inverter, tmp_path / "whole")
    halves, whole = (artifact.load(tmp_path / name).echo for name in ("run", "whole"))
    assert halves is not None
    assert whole is not None
    assert all(torch.equal(a, b) for a, b in zip(halves.parameters(), whole.parameters(), strict=True))


def test_a_second_stage_goes_on_from_the_first(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    train(data, inverter, tmp_path / "one", "train.steps=40")
    first = artifact.load(tmp_path / "one")
    train(data, first, tmp_path / "two", "train.steps=1", "train.lr=1e-9")
    second = artifact.load(tmp_path / "two")
    for a, b in zip(first.echo.parameters(), second.echo.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-2)


def test_it_travels_with_its_inverter_and_only_with_its_surrogate(inverter: Artifact, tmp_path: Path) -> None:
    assert inverter.surrogate is not None
    echo = Echo(inverter.net, inverter.surrogate)
    whole = replace(inverter, echo=echo)
    found = artifact.load(artifact.save(tmp_path / "all", whole, "fp32"))
    assert found.echo is not None
    assert all(torch.equal(a, b) for a, b in zip(found.echo.parameters(), echo.parameters(), strict=True))
    assert not any("shared" in name or "meanings" in name for name in echo.state_dict())
    artifact.save(tmp_path / "all", replace(inverter, surrogate=None), "fp32")
    assert not (tmp_path / "all" / "echo.safetensors").exists()
    with pytest.raises(CheckpointError, match="echo but no surrogate"):
        artifact.load(artifact.save(tmp_path / "odd", replace(whole, surrogate=None), "fp32"))


def test_a_new_surrogate_forgets_the_echo_of_the_old(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    whole = replace(inverter, echo=Echo(inverter.net, inverter.surrogate), info={**inverter.info, "echo": {}})
    train(data, whole, tmp_path, "train.steps=1", kind="surrogate")
    found = artifact.load(tmp_path)
    assert found.echo is None
    assert "echo" not in found.info


def test_the_command_trains_one(
    data: Dataset, inverter: Artifact, plain: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = artifact.save(tmp_path / "base", inverter)
    command = ["train", str(data.folder), "-o", str(tmp_path / "out"), "--preset", "tiny", "--steps", "2", "--json"]
    assert main([*command, "--echo-of", str(base)]) == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert np.isfinite(metrics["echo_cosine"])
    assert artifact.load(tmp_path / "out").echo is not None
    assert main([*command, "--echo-of", str(base), "--surrogate-of", str(base)]) == 2
    assert "give one" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--surrogate-of"):
        train(data, plain, tmp_path / "none")
    assert isinstance(inverter.surrogate, Surrogate)
