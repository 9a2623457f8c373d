"""The writer: no place sees what is behind it, it learns from pairs alone, and it travels beside its inverter."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from unembed.cli import main
from unembed.config import override, tiny
from unembed.data.dataset import Dataset
from unembed.errors import CheckpointError, ConfigError
from unembed.measure.recovery import net_sha256
from unembed.model import artifact, batches, objective, surrogate_trainer, trainer, writer_trainer
from unembed.model.artifact import Artifact
from unembed.model.loop import Event
from unembed.model.surrogate import Surrogate
from unembed.model.writer import Writer, WriterEntropy, targets_of

Trained = tuple[Artifact, list[Event], Path]


@pytest.fixture(scope="module")
def inverter(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """An inverter that knows its words, with a surrogate."""
    config = trainer.fit_to_data(
        override(tiny(), ["train.steps=5", "train.bag_steps=40", "train.preview_texts=0"]), data
    )
    base = artifact.load(trainer.train(config, data, tmp_path_factory.mktemp("inverter")))
    out = tmp_path_factory.mktemp("surrogate")
    settings = override(tiny(), ["train.steps=60", "train.lr=0.01", "train.warmup_steps=5"])
    return artifact.load(surrogate_trainer.train(settings, data, base, out))


def train(data: Dataset, inverter: Artifact, out: Path, *settings: str, **options) -> list[Event]:
    events: list[Event] = []
    report = options.pop("report", lambda event: None)

    def tell(event: Event) -> None:
        events.append(event)
        report(event)

    config = override(tiny(), ["train.steps=8", *settings])
    writer_trainer.train(config, data, inverter, out, report=tell, **options)
    return events


@pytest.fixture(scope="module")
def trained(data: Dataset, inverter: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    out = tmp_path_factory.mktemp("writer")
    events = train(data, inverter, out, "train.steps=80", "train.validate_every=40")
    return artifact.load(out), events, out


def blank(inverter: Artifact) -> Writer:
    """One whose every part says something."""
    torch.manual_seed(3)
    assert inverter.surrogate is not None
    writer = Writer(inverter.net, inverter.surrogate).eval()
    for layer in (writer.account, writer.account_spoken):
        torch.nn.init.normal_(layer.weight, std=0.1)
    torch.nn.init.normal_(writer.end)
    return writer


def test_it_learns_and_leaves_the_inverter_alone(trained: Trained, inverter: Artifact) -> None:
    found, events, out = trained
    entropies = [event.metrics["entropy_next"] for event in events if event.metrics]
    assert len(entropies) == 3  # before the first step, at 40 and at 80
    assert entropies[2] < entropies[1] < entropies[0] - 0.5
    assert artifact.weights_hash(found.net) == artifact.weights_hash(inverter.net)
    assert found.info["writer"]["data"]["texts seen"] == 80 * 32
    assert "from left to right" in (out / "README.md").read_text()


def test_no_place_sees_what_is_behind_it(inverter: Artifact) -> None:
    writer = blank(inverter)
    tokens = torch.randint(5, 40, (3, 9))
    vectors = F.normalize(torch.randn(3, inverter.encoder.dim), dim=1)
    other = tokens.clone()
    other[:, 5:] = torch.randint(5, 40, (3, 4))
    with torch.inference_mode():
        c, _ = writer.hear(vectors)
        one, two = writer(tokens, vectors, c), writer(other, vectors, c)
    assert one.shape == (3, 10, inverter.net.config.width)
    assert torch.allclose(one[:, :6], two[:, :6], atol=1e-5)  # place 5 knows the words 0 to 4
    assert not torch.allclose(one[:, 6:], two[:, 6:], atol=1e-2)


def test_place_by_place_with_what_was_kept_it_is_the_same(inverter: Artifact) -> None:
    writer = blank(inverter)
    tokens = torch.randint(5, 40, (2, 7))
    vectors = F.normalize(torch.randn(2, inverter.encoder.dim), dim=1)
    with torch.inference_mode():
        c, _ = writer.hear(vectors)
        whole = writer(tokens, vectors, c)
        x, past, said = writer.start.expand(2, 1, -1), None, torch.zeros(2, 1, vectors.shape[1])
        for place in range(8):
            account = writer.reckon(said, vectors)
            hidden, past = writer.through(writer.place(x, account, place), c, past)
            assert torch.allclose(writer.speak(hidden[:, -1:], account), whole[:, place : place + 1], atol=1e-4)
            if place < 7:
                x = writer.before(writer.base.embed(tokens[:, place : place + 1]))
                said = said + writer.meanings[tokens[:, place : place + 1]]


def test_the_end_is_a_word_but_not_of_a_text_that_was_cut() -> None:
    tokens = torch.tensor([[7, 8, 9, 0], [5, 6, 7, 8]])
    targets, counts = targets_of(tokens, torch.tensor([3, 4]), end=99, longest=4)
    assert targets.tolist() == [[7, 8, 9, 99, 99], [5, 6, 7, 8, 99]]
    assert counts.tolist() == [[True, True, True, True, False], [True, True, True, True, False]]


def test_the_loss_and_its_gradients_are_those_of_a_plain_cross_entropy(inverter: Artifact) -> None:
    writer, config = blank(inverter), inverter.net.config
    hidden = torch.randn(30, 6, config.width, requires_grad=True)  # more texts than one part takes
    tokens, lengths = torch.randint(5, 40, (30, 5)), torch.randint(3, 6, (30,))
    targets, counts = targets_of(tokens, lengths, config.vocab_size, config.max_tokens)
    with torch.no_grad():
        _, heard = writer.hear(torch.randn(30, config.vector_dim))
    table, bias = inverter.net.word_table(torch.arange(config.vocab_size))
    table, bias = table.detach(), bias.detach()
    loss = WriterEntropy.apply(hidden, writer.end, writer.end_bias, heard, table, bias, targets, counts)
    parts = (hidden, writer.end, writer.end_bias)
    mine = torch.autograd.grad(loss * 2, parts)
    plain = F.cross_entropy(writer.logits(hidden, heard)[counts], targets[counts], reduction="sum")
    theirs = torch.autograd.grad(plain * 2, parts)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-4)
    for a, b in zip(mine, theirs, strict=True):
        assert torch.allclose(a, b, atol=1e-3, rtol=1e-3)


def test_with_all_words_as_candidates_the_loss_is_the_validation_entropy(trained: Trained, data: Dataset) -> None:
    found, _, _ = trained
    examples = data.sample("validation", 20, 0)
    batch = batches.collate(examples.tokens, examples.vectors)
    vocabulary, longest = found.net.config.vocab_size, found.net.config.max_tokens
    every = objective.Candidates(torch.arange(vocabulary), torch.zeros(vocabulary))
    words = int((batch.lengths + (batch.lengths < longest)).sum())
    assert found.writer is not None
    with torch.no_grad():
        loss = writer_trainer.WritingLoss(found.writer)(batch, every, words)
    assert float(loss) == pytest.approx(writer_trainer.validation_entropy(found.writer, batch), rel=1e-4)


def test_interrupted_it_goes_on_as_if_nothing_had_happened(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if event.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(data, inverter, tmp_path / "run", report=interrupt)
    train(data, inverter, tmp_path / "run", resume=True)
    train(data, inverter, tmp_path / "plain")
    halves, whole = (artifact.load(tmp_path / name).writer for name in ("run", "plain"))
    assert halves is not None
    assert whole is not None
    assert all(torch.equal(a, b) for a, b in zip(halves.parameters(), whole.parameters(), strict=True))


def test_a_further_stage_goes_on_from_it(trained: Trained, data: Dataset, tmp_path: Path) -> None:
    before, events, _ = trained
    first = train(data, before, tmp_path / "next", "train.steps=2", "train.lr=0.00001", "train.muon_lr=0.00001")
    assert first[0].metrics["entropy_next"] == pytest.approx(events[-2].metrics["entropy_next"], abs=0.05)  # bf16
    after = artifact.load(tmp_path / "next")
    assert after.info["writer"]["data"]["texts seen"] == 82 * 32


def test_it_travels_beside_its_inverter_without_the_words_of_that(inverter: Artifact, tmp_path: Path) -> None:
    writer = blank(inverter)
    folder = artifact.save(tmp_path / "both", replace(inverter, writer=writer), "fp32")
    found = artifact.load(folder).writer
    assert found is not None
    assert torch.equal(found.end, writer.end)
    assert net_sha256(found) == net_sha256(writer) != net_sha256(inverter.net)
    assert inverter.net.config.vocab_size not in {len(p) for p in writer.parameters() if p.dim()}
    artifact.save(folder, inverter, "fp32")  # in the same place, one without
    assert artifact.load(folder).writer is None
    assert not (folder / "writer.safetensors").exists()
    artifact.save(folder, replace(inverter, writer=writer, surrogate=None), "fp32")
    with pytest.raises(CheckpointError, match="no surrogate"):
        artifact.load(folder)


def test_what_changes_its_words_leaves_it_behind(trained: Trained, data: Dataset, tmp_path: Path) -> None:
    before, _, _ = trained
    config = trainer.fit_to_data(override(tiny(), ["train.steps=1", "train.preview_texts=0"]), data)
    stage = trainer.train(config, data, tmp_path / "stage", init_from=before)
    assert artifact.load(stage).writer is None
    surrogate = surrogate_trainer.train(override(tiny(), ["train.steps=1"]), data, before, tmp_path / "surrogate")
    assert artifact.load(surrogate).writer is None


def test_it_needs_a_surrogate_and_vectors_of_its_encoder(data: Dataset, inverter: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="surrogate"):
        train(data, replace(inverter, surrogate=None), tmp_path / "run")
    other = replace(inverter, encoder=replace(inverter.encoder, spec="other", fingerprint="x"))
    with pytest.raises(ConfigError, match=r"other.*bag"):
        train(data, other, tmp_path / "run")


def test_the_command_trains_one(
    data: Dataset, inverter: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = artifact.save(tmp_path / "base", inverter)
    command = ["train", str(data.folder), "-o", str(tmp_path / "all"), "--preset", "tiny", "--steps", "2"]
    assert main([*command, "--writer-of", str(base), "--json"]) == 0
    assert "entropy_next" in capsys.readouterr().out
    found = artifact.load(tmp_path / "all")
    assert found.writer is not None
    assert isinstance(found.surrogate, Surrogate)
    assert main([*command, "--writer-of", str(base), "--surrogate-of", str(base)]) == 2
    assert "give one" in capsys.readouterr().err
