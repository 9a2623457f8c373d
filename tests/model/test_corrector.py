"""The corrector: it begins as the inverter, learns from the inverter's mistakes, and travels beside it."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model.conftest import BagEncoder
from unembed.config import override, tiny
from unembed.data.dataset import Dataset
from unembed.errors import CheckpointError, ConfigError
from unembed.model import artifact, batches, corrector_trainer, mistakes, objective, trainer
from unembed.model.artifact import Artifact
from unembed.model.corrector import Corrector, stretch
from unembed.model.loop import Event

RECIPE = ("train.steps=70", "train.bag_steps=20", "train.validate_every=70", "train.preview_texts=0")


@pytest.fixture(scope="module")
def inverter(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Trained a little: it makes mistakes that have something to do with the texts."""
    config = trainer.fit_to_data(override(tiny(), list(RECIPE)), data)
    return artifact.load(trainer.train(config, data, tmp_path_factory.mktemp("inverter")))


@pytest.fixture
def batch(data: Dataset) -> objective.Batch:
    examples = data.sample("train", 100, 0)
    return batches.collate(examples.tokens, examples.vectors)


def dice(batch: objective.Batch, seed: int = 0) -> mistakes.Dice:
    return mistakes.throw(batch, 16, objective.generator(seed))


def train_corrector(data: Dataset, inverter: Artifact, out: Path, *settings: str, **options) -> list[Event]:
    events: list[Event] = []
    config = override(tiny(), ["train.steps=8", "train.preview_texts=0", *settings])
    report = options.pop("report", lambda event: None)

    def tell(event: Event) -> None:
        events.append(event)
        report(event)

    corrector_trainer.train(config, data, inverter, BagEncoder(), out, report=tell, **options)
    return events


def test_untrained_it_is_the_inverter_whatever_the_guess(inverter: Artifact, batch: objective.Batch) -> None:
    corrector, net = Corrector(inverter.net).eval(), inverter.net
    guess = torch.randint(5, 20, batch.tokens.shape)
    tokens = batch.tokens.masked_fill(torch.rand(batch.tokens.shape) < 0.5, net.config.mask_id)
    t = torch.full((len(tokens),), 0.5)
    with torch.inference_mode():
        c = corrector.condition(batch.vectors, batch.vectors.flip(0))
        assert torch.equal(c, net.condition(batch.vectors))
        assert torch.equal(corrector(tokens, t, c, guess, batch.valid), net(tokens, t, c, batch.valid))
    with torch.no_grad():
        corrector.guess.weight.normal_(std=0.1)
        assert not torch.equal(corrector(tokens, t, c, guess, batch.valid), net(tokens, t, c, batch.valid))


def test_words_and_conditioner_are_the_inverters_own(inverter: Artifact) -> None:
    corrector = Corrector(inverter.net)
    for name in ("embed.weight", "bias", "position", "project.0.weight", "blocks.1.from_vector.weight"):
        assert corrector.net.get_parameter(name) is inverter.net.get_parameter(name)
        assert f"net.{name}" not in corrector.own
    assert corrector.net.get_parameter("blocks.1.qkv.weight") is not inverter.net.get_parameter("blocks.1.qkv.weight")
    assert {"guess.weight", "net.blocks.1.qkv.weight", "sight.0.weight"} <= corrector.own.keys()


def test_mistakes_are_texts_and_as_wrong_as_they_should_be(inverter: Artifact, batch: objective.Batch) -> None:
    thrown = dice(batch)
    made = mistakes.make(inverter.net, batch, thrown)
    assert made == mistakes.make(inverter.net, batch, thrown)
    assert made != mistakes.make(inverter.net, batch, dice(batch, 1))
    true = [row[:length].tolist() for row, length in zip(batch.tokens, batch.lengths, strict=True)]
    for row in made:
        assert 1 <= len(row) <= 16
        assert not inverter.net.forbidden[row].any()
    assert {len(a) - len(b) for a, b in zip(made, true, strict=True)} > {-1, 0, 1}
    overlap = np.array([len(set(a) & set(b)) / len(set(b)) for a, b in zip(made, true, strict=True)])
    nothing = (thrown.kind[:, 0] < mistakes.FROM_NOTHING).numpy()
    assert sum(a == b for a, b in zip(made, true, strict=True)) < len(true) / 2
    # Others have nothing to do with the text; its own words and its vector do.
    strangers = np.array([len(set(a) & set(b)) / len(set(b)) for a, b in zip(made, true[50:] + true[:50], strict=True)])
    assert overlap[nothing].mean() > strangers.mean() + 0.1


def test_it_learns_from_them_and_leaves_the_inverter_alone(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    before = artifact.weights_hash(inverter.net)
    settings = ("train.steps=150", "train.validate_every=150", "train.validate_texts=128", "train.lr=0.005")
    events = train_corrector(data, inverter, tmp_path / "run", *settings)
    first, last = (event.metrics["entropy_1"] for event in (events[0], [e for e in events if e.metrics][-1]))
    assert events[0].step == 0  # the inverter itself, without a look at the guess
    assert last < 0.9 * first
    assert artifact.weights_hash(inverter.net) == before
    found = artifact.load(tmp_path / "run")
    assert artifact.weights_hash(found.net) == before
    assert found.corrector is not None
    assert found.info["corrector"]["data"]["texts seen"] == 150 * 32
    assert found.corrector.guess.weight.any()
    assert found.corrector.net.embed.weight is found.net.embed.weight


def test_interrupted_it_goes_on_as_if_nothing_had_happened(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_corrector(data, inverter, tmp_path / "run", report=interrupt)
    train_corrector(data, inverter, tmp_path / "run", resume=True)
    train_corrector(data, inverter, tmp_path / "plain")
    halves, whole = (artifact.load(tmp_path / name).corrector for name in ("run", "plain"))
    assert all(torch.equal(a, b) for a, b in zip(halves.parameters(), whole.parameters(), strict=True))
    other = replace(inverter, net=Corrector(inverter.net).net.requires_grad_(False))
    other.net.get_parameter("blocks.0.qkv.weight").mul_(2)
    with pytest.raises(CheckpointError, match="dataset is not the one"):
        train_corrector(data, other, tmp_path / "run", resume=True)


def test_vectors_of_another_encoder_are_refused(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    other = replace(inverter, encoder=replace(inverter.encoder, spec="other", fingerprint="x"))
    with pytest.raises(ConfigError, match=r"other.*bag"):
        train_corrector(data, other, tmp_path / "run")


def test_it_travels_beside_its_inverter_and_with_no_other(inverter: Artifact, tmp_path: Path) -> None:
    corrector = Corrector(inverter.net)
    torch.nn.init.normal_(corrector.guess.weight)
    folder = artifact.save(tmp_path / "both", replace(inverter, corrector=corrector), "fp32")
    found = artifact.load(folder).corrector
    assert found is not None
    assert torch.equal(found.guess.weight, corrector.guess.weight)
    size = (folder / "corrector.safetensors").stat().st_size
    assert size < 1.1 * 4 * sum(p.numel() for p in corrector.own.values())  # nothing that is the inverter's
    artifact.save(folder, inverter, "fp32")  # in the same place, one without
    assert artifact.load(folder).corrector is None
    assert not (folder / "corrector.safetensors").exists()
    wrong = replace(inverter, corrector=Corrector(inverter.net))
    wrong.corrector.guess = torch.nn.Linear(3, 3, bias=False)
    artifact.save(folder, wrong, "fp32")
    with pytest.raises(CheckpointError, match="another inverter"):
        artifact.load(folder)


def test_a_guess_is_stretched_from_end_to_end() -> None:
    assert stretch([1, 2, 3], 3) == [1, 2, 3]
    assert stretch([1, 2, 3], 5) == [1, 2, 2, 3, 3]
    assert stretch([1, 2, 3, 4, 5], 3) == [1, 3, 5]
    assert stretch([7], 3) == [7, 7, 7]
    assert stretch([7, 8], 1) == [7]


def test_its_settings_are_written_down(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    train_corrector(data, inverter, tmp_path / "run", "train.steps=1")
    run = json.loads((tmp_path / "run/training/run.json").read_text())
    assert run["config"]["train"]["steps"] == 1
    assert artifact.weights_hash(inverter.net) in run["dataset"]
