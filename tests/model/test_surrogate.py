"""The surrogate: it learns vectors from pairs alone, foresees what a change does, and travels beside its inverter."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model.conftest import BagEncoder
from tools import average
from unembed.cli import main
from unembed.config import override, tiny
from unembed.data.dataset import Dataset
from unembed.errors import CheckpointError, ConfigError
from unembed.model import artifact, surrogate_trainer, trainer
from unembed.model.artifact import Artifact
from unembed.model.loop import Event
from unembed.model.surrogate import Surrogate

Trained = tuple[Artifact, list[Event], Path]


@pytest.fixture(scope="module")
def inverter(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """It need not know anything: the surrogate only takes its words."""
    config = trainer.fit_to_data(
        override(tiny(), ["train.steps=1", "train.bag_steps=1", "train.preview_texts=0"]), data
    )
    return artifact.load(trainer.train(config, data, tmp_path_factory.mktemp("inverter")))


def train(data: Dataset, inverter: Artifact, out: Path, *settings: str, **options) -> list[Event]:
    events: list[Event] = []
    report = options.pop("report", lambda event: None)

    def tell(event: Event) -> None:
        events.append(event)
        report(event)

    config = override(tiny(), ["train.steps=8", *settings])
    surrogate_trainer.train(config, data, inverter, out, report=tell, **options)
    return events


@pytest.fixture(scope="module")
def trained(data: Dataset, inverter: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    out = tmp_path_factory.mktemp("surrogate")
    settings = ("train.steps=300", "train.validate_every=100", "train.lr=0.01", "train.warmup_steps=5")
    events = train(data, inverter, out, *settings)
    return artifact.load(out), events, out


def test_it_learns_and_leaves_the_inverter_alone(trained: Trained, inverter: Artifact) -> None:
    found, events, out = trained
    cosines = [event.metrics["surrogate_cosine"] for event in events if event.metrics]
    assert len(cosines) == 3
    assert cosines[-1] > 0.7  # it cannot know that in this language a word means something else at each place
    assert artifact.weights_hash(found.net) == artifact.weights_hash(inverter.net)
    assert found.info["surrogate"]["data"]["texts seen"] == 300 * 32
    assert "takes fewer queries" in (out / "README.md").read_text()


def test_it_foresees_what_a_change_does(trained: Trained, data: Dataset) -> None:
    found, _, _ = trained
    assert found.surrogate is not None
    encoder, tokenizer = BagEncoder(), found.tokenizer
    rng = np.random.default_rng(0)
    examples = data.sample("train", 12, 0)
    gains, hopes = [], []
    for k in range(len(examples.texts)):
        target = encoder.encode([examples.texts[k]])[0]
        parent = examples.texts[k - 1].split()
        children = []
        for _ in range(20):  # one word of it becomes one of another text
            child = list(parent)
            child[rng.integers(len(parent) - 1)] = rng.choice(examples.texts[rng.integers(12)].split()[:-1])
            children.append(" ".join(child))
        texts = [" ".join(parent), *children]
        real = encoder.encode(texts)
        tokens = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        with torch.inference_mode():
            seen = found.surrogate.foresee(tokens).numpy()
        foreseen = real[0] + seen[1:] - seen[0]
        foreseen /= np.linalg.norm(foreseen, axis=1, keepdims=True)
        gains.append(real[1:] @ target - real[0] @ target)
        hopes.append(foreseen @ target - real[0] @ target)
    correlation = np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(gains, hopes, strict=True)])
    assert correlation > 0.15  # chance: 0 +- .07; in this language half of what a word does depends on its place
    chosen = np.mean([gain[np.argmax(hope)] for gain, hope in zip(gains, hopes, strict=True)])
    assert chosen > np.mean(gains) + 0.03


def test_what_is_behind_the_end_of_a_text_does_not_matter(inverter: Artifact) -> None:
    surrogate = Surrogate(inverter.net).eval()
    for table in (surrogate.words, surrogate.weight):
        torch.nn.init.normal_(table.weight)
    texts = [[7, 8, 9], [10, 11], [12, 13, 14, 15, 16]]
    with torch.inference_mode():
        together = surrogate.foresee(texts)
        alone = torch.cat([surrogate(torch.tensor([text])) for text in texts])
    assert torch.allclose(together, alone, atol=1e-6)
    assert torch.allclose(together.norm(dim=1), torch.ones(3))


def test_interrupted_it_goes_on_as_if_nothing_had_happened(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(data, inverter, tmp_path / "run", report=interrupt)
    train(data, inverter, tmp_path / "run", resume=True)
    train(data, inverter, tmp_path / "plain")
    halves, whole = (artifact.load(tmp_path / name).surrogate for name in ("run", "plain"))
    assert halves is not None
    assert whole is not None
    assert all(torch.equal(a, b) for a, b in zip(halves.parameters(), whole.parameters(), strict=True))


def test_vectors_of_another_encoder_are_refused(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    other = replace(inverter, encoder=replace(inverter.encoder, spec="other", fingerprint="x"))
    with pytest.raises(ConfigError, match=r"other.*bag"):
        train(data, other, tmp_path / "run")


def test_it_travels_beside_its_inverter_without_the_words_of_that(inverter: Artifact, tmp_path: Path) -> None:
    surrogate = Surrogate(inverter.net)
    torch.nn.init.normal_(surrogate.words.weight)
    for dtype, tolerance in (("fp32", 0.0), ("int8", 0.03)):
        folder = artifact.save(tmp_path / "both", replace(inverter, surrogate=surrogate), dtype)
        found = artifact.load(folder).surrogate
        assert found is not None
        assert torch.allclose(found.words.weight, surrogate.words.weight, atol=tolerance)
    assert not any("shared" in name for name in surrogate.state_dict())
    artifact.save(folder, inverter, "fp32")  # in the same place, one without
    assert artifact.load(folder).surrogate is None
    assert not (folder / "surrogate.safetensors").exists()
    wrong = replace(inverter, surrogate=Surrogate(inverter.net))
    wrong.surrogate.project = torch.nn.Linear(3, 3)
    artifact.save(folder, wrong, "fp32")
    with pytest.raises(CheckpointError, match="does not fit"):
        artifact.load(folder)


def test_a_further_stage_keeps_it_though_the_words_change(trained: Trained, data: Dataset, tmp_path: Path) -> None:
    before, _, _ = trained
    settings = ["train.steps=3", "train.bag_steps=0", "train.preview_texts=0", "train.lr=0.05"]
    config = trainer.fit_to_data(override(tiny(), settings), data)
    after = artifact.load(trainer.train(config, data, tmp_path / "next", init_from=before))
    mean = tmp_path / "mean"
    artifact.save(tmp_path / "before", before, "fp32")
    assert average.main([str(tmp_path / "before"), str(tmp_path / "next"), "-o", str(mean)]) == 0
    assert before.surrogate is not None
    texts = [tokens.tolist() for tokens in data.sample("validation", 20, 0).tokens]
    with torch.inference_mode():
        expected = before.surrogate.foresee(texts)
        for found in (after, artifact.load(mean)):
            assert found.surrogate is not None
            assert found.info["surrogate"] == before.info["surrogate"]
            assert not torch.allclose(found.net.embed.weight, before.net.embed.weight, atol=0.01)
            cosine = (found.surrogate.foresee(texts) * expected).sum(1)
            assert cosine.min() > 0.999  # bf16 on disk
    other = replace(before, encoder=replace(before.encoder, fingerprint="another encoder"))
    anew = artifact.load(trainer.train(config, data, tmp_path / "other", init_from=other))
    assert anew.surrogate is None


def test_the_command_trains_one(
    data: Dataset, inverter: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = artifact.save(tmp_path / "base", inverter)
    command = ["train", str(data.folder), "-o", str(tmp_path / "both"), "--preset", "tiny", "--steps", "2"]
    assert main([*command, "--surrogate-of", str(base), "--json"]) == 0
    assert "surrogate_cosine" in capsys.readouterr().out
    assert artifact.load(tmp_path / "both").surrogate is not None
    assert main([*command, "--surrogate-of", str(base), "--init-from", str(base)]) == 2
    assert "give one" in capsys.readouterr().err
