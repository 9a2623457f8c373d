"""The writer: no place sees what is behind it, it learns from pairs alone, and it travels beside its inverter."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.model.conftest import BagEncoder
from unembed.cli import main
from unembed.config import override, tiny
from unembed.data.dataset import Dataset
from unembed.data.shards import file_sha256
from unembed.errors import CheckpointError, ConfigError
from unembed.measure.recovery import net_sha256
from unembed.model import artifact, batches, mistakes, objective, surrogate_trainer, trainer, writer_trainer
from unembed.model.artifact import Artifact
from unembed.model.loop import Event
from unembed.model.sight import FACTS, Copied, guess_of, likeness
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


def blank(inverter: Artifact, sees: bool = False) -> Writer:
    """One whose every part says something."""
    torch.manual_seed(3)
    assert inverter.surrogate is not None
    writer = Writer(inverter.net, inverter.surrogate, sees).eval()
    silent = [writer.account, writer.account_spoken]
    if writer.sight is not None:
        sight = writer.sight
        silent += [sight.after, sight.worth, sight.heed[2], sight.heed_shortcut, sight.placed, sight.spoken]
    for layer in silent:
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
        told, _, _ = writer.listen(vectors)
        one, two = writer(tokens, told), writer(other, told)
    assert one.shape == (3, 10, inverter.net.config.width)
    assert torch.allclose(one[:, :6], two[:, :6], atol=1e-5)  # place 5 knows the words 0 to 4
    assert not torch.allclose(one[:, 6:], two[:, 6:], atol=1e-2)


@pytest.mark.parametrize("sees", [False, True])
def test_place_by_place_with_what_was_kept_it_is_the_same(inverter: Artifact, sees: bool) -> None:
    writer = blank(inverter, sees)
    tokens = torch.randint(5, 40, (2, 7))
    vectors = F.normalize(torch.randn(2, inverter.encoder.dim), dim=1)
    guess = guess_of([[7, 8, 9], [11, 12]], F.normalize(torch.randn(2, inverter.encoder.dim), dim=1)) if sees else None
    with torch.inference_mode():
        told, _, seen = writer.listen(vectors, guess)
        whole = writer(tokens, told, seen)
        for begun in (0, 3):
            hidden, memory = writer.begin(tokens[:, :begun], told, seen)
            assert torch.allclose(hidden, whole[:, : begun + 1], atol=1e-4)
            said = writer.meanings[tokens[:, :begun]].sum(1, keepdim=True)
            for place in range(begun + 1, 8):
                word = tokens[:, place - 1 : place]
                said = said + writer.meanings[word]
                hidden = writer.next_place(writer.before(writer.base.embed(word)), said, told, place, memory)
                assert torch.allclose(hidden, whole[:, place : place + 1], atol=1e-4)
                memory.choose(None, torch.zeros(2, 1, dtype=torch.long))


def test_beams_remember_their_own_past_and_no_other(inverter: Artifact) -> None:
    writer = blank(inverter)
    longest = 11  # beams that need room more than once
    vectors = F.normalize(torch.randn(3, inverter.encoder.dim), dim=1)
    rng = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        given, _, _ = writer.listen(vectors)
        _, memory = writer.begin(torch.zeros(3, 0, dtype=torch.long), given)
        texts, tokens = torch.arange(3), torch.zeros(3, 1, 0, dtype=torch.long)
        for place in range(1, longest):
            on = torch.tensor([0, 2]) if place == 5 else torch.arange(len(texts))  # a text is given up
            texts = texts[on]
            beams = torch.randint(0, tokens.shape[1], (len(texts), 2 + place % 2), generator=rng)
            memory.choose(on if place == 5 else None, beams)
            words = torch.randint(5, 40, (*beams.shape, 1), generator=rng)
            tokens = torch.cat([tokens[on[:, None], beams], words], 2)
            told = given.rows(texts.repeat_interleave(beams.shape[1]))
            x = writer.before(writer.base.embed(words[..., 0]))
            hidden = writer.next_place(x, writer.meanings[tokens].sum(2), told, place, memory)
            whole = writer(tokens.flatten(0, 1), told)[:, -1].view_as(hidden)
            assert torch.allclose(hidden, whole, atol=1e-4)


def test_the_end_is_a_word_but_not_of_a_text_that_was_cut() -> None:
    tokens = torch.tensor([[7, 8, 9, 0], [5, 6, 7, 8]])
    targets, counts = targets_of(tokens, torch.tensor([3, 4]), end=99, longest=4)
    assert targets.tolist() == [[7, 8, 9, 99, 99], [5, 6, 7, 8, 99]]
    assert counts.tolist() == [[True, True, True, True, False], [True, True, True, True, False]]


@pytest.mark.parametrize("compiled", [False, True])
def test_the_loss_and_its_gradients_are_those_of_a_plain_cross_entropy(inverter: Artifact, compiled: bool) -> None:
    writer, config = blank(inverter), inverter.net.config
    hidden = torch.randn(30, 6, config.width, requires_grad=True)  # more texts than one part takes
    tokens, lengths = torch.randint(5, 40, (30, 5)), torch.randint(3, 6, (30,))
    targets, counts = targets_of(tokens, lengths, config.vocab_size, config.max_tokens)
    with torch.no_grad():
        _, heard = writer.hear(torch.randn(30, config.vector_dim))
    table, bias = inverter.net.word_table(torch.arange(config.vocab_size))
    table, bias = table.detach(), bias.detach()
    added = torch.randn(30, 6, 4, requires_grad=True)
    added_to = torch.randint(5, config.vocab_size + 1, (30, 4))  # some twice, some the end
    loss = WriterEntropy.apply(
        hidden, writer.end, writer.end_bias, heard, table, bias, targets, counts, added, added_to, compiled
    )
    parts = (hidden, writer.end, writer.end_bias, added)
    mine = torch.autograd.grad(loss * 2, parts)
    logits = writer.logits(hidden, heard).scatter_add(2, added_to[:, None].expand(-1, 6, -1), added)
    plain = F.cross_entropy(logits[counts], targets[counts], reduction="sum")
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
        loss = writer_trainer.WritingLoss(found.writer)(batch, None, every, words)
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


def test_it_grows_between_its_blocks_and_hardly_changes(trained: Trained, data: Dataset, tmp_path: Path) -> None:
    found, _, _ = trained
    examples = data.sample("validation", 64, 0)
    batch = batches.collate(examples.tokens, examples.vectors)
    assert found.writer is not None
    before = writer_trainer.validation_entropy(found.writer, batch)
    events = train(data, found, tmp_path, "train.steps=12", "train.grow=1", "train.guesses=0.5", encoder=BagEncoder())
    grown = artifact.load(tmp_path).writer
    assert grown is not None
    assert grown.sight is not None
    assert len(grown.blocks) == len(grown.sight.shown) == len(found.writer.blocks) + 1
    assert events[0].metrics["entropy_next"] == pytest.approx(before, abs=0.15)
    new = grown.blocks[2]
    assert float(new.get_parameter("out.weight").abs().sum()) > 0  # it has begun to learn
    with pytest.raises(ConfigError, match="at once"):
        grown.grow(9)


def test_it_travels_beside_its_inverter_without_the_words_of_that(inverter: Artifact, tmp_path: Path) -> None:
    writer = blank(inverter)
    folder = artifact.save(tmp_path / "both", replace(inverter, writer=writer), "fp32")
    found = artifact.load(folder).writer
    assert found is not None
    assert torch.equal(found.end, writer.end)
    assert net_sha256(found) == net_sha256(writer) != net_sha256(inverter.net)
    assert inverter.net.config.vocab_size not in {len(p) for p in writer.parameters() if p.dim()}
    torch.save({"a": torch.zeros(1)}, folder / "writer.safetensors")  # a pickle is never loaded
    description = json.loads((folder / "config.json").read_text())
    description["sha256"]["writer.safetensors"] = file_sha256(folder / "writer.safetensors")
    (folder / "config.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match="does not fit"):
        artifact.load(folder)
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


# --- guesses ----------------------------------------------------------------------------------------------------------


def test_a_guess_that_is_none_changes_nothing_and_one_that_is_shorter_is_not_padded(inverter: Artifact) -> None:
    writer = blank(inverter, sees=True)
    tokens, vectors = torch.randint(5, 40, (2, 7)), F.normalize(torch.randn(2, inverter.encoder.dim), dim=1)
    there = F.normalize(torch.randn(2, inverter.encoder.dim), dim=1)
    with torch.inference_mode():

        def seen(*guesses: list[int]) -> torch.Tensor:
            told, _, past = writer.listen(vectors, guess_of([*guesses], there))
            return writer(tokens, told, past)

        plain = writer(tokens, writer.listen(vectors)[0])
        assert torch.allclose(seen([], []), plain, atol=1e-5)
        one = seen([7, 8, 9], [])
        assert not torch.allclose(one[0], plain[0], atol=1e-2)
        assert torch.allclose(one[1], plain[1], atol=1e-5)
        assert torch.allclose(one[0], seen([7, 8, 9], [1] * 14)[0], atol=1e-5)  # whoever else is longer
        assert not torch.allclose(one[0], seen([9, 8, 7], [])[0], atol=1e-4)  # their order is seen


def test_mistakes_are_texts_and_as_wrong_as_they_should_be(trained: Trained, data: Dataset) -> None:
    writer = trained[0].writer
    assert writer is not None
    examples = data.sample("train", 100, 0)
    batch = batches.collate(examples.tokens, examples.vectors)
    dice = mistakes.throw(100, 16, objective.generator(0))
    made = mistakes.make(writer, batch, dice)
    assert made == mistakes.make(writer, batch, dice)
    assert made != mistakes.make(writer, batch, mistakes.throw(100, 16, objective.generator(1)))
    true = [row[:length].tolist() for row, length in zip(batch.tokens, batch.lengths, strict=True)]
    for row in made:
        assert 1 <= len(row) <= 16
        assert not writer.base.forbidden[row].any()
    nothing = (dice.kind[:, 1] < mistakes.FROM_NOTHING).numpy()
    overlap = np.array([len(set(a) & set(b)) / len(set(b)) for a, b in zip(made, true, strict=True)])
    strangers = np.array([len(set(a) & set(b)) / len(set(b)) for a, b in zip(made, true[50:] + true[:50], strict=True)])
    assert strangers.mean() + 0.1 < overlap[nothing].mean() < overlap[~nothing].mean() < 0.99
    # Those with true words in them keep the length, but for a word too many or one too few.
    lengths = np.array([len(a) - len(b) for a, b in zip(made, true, strict=True)])
    assert set(lengths[~nothing]) == {-1, 0, 1}
    # All true words and no edit: the text itself.
    dice.kind[:] = torch.tensor([0.0, 1.0, 1.0, 0.5, 1.0])
    assert mistakes.make(writer, batch, dice) == true


def test_it_learns_to_correct_guesses_and_without_one_is_still_a_writer(
    data: Dataset, trained: Trained, tmp_path: Path
) -> None:
    before = trained[0]
    settings = ("train.steps=60", "train.validate_every=60", "train.validate_texts=128", "train.guesses=0.7")
    events = train(data, before, tmp_path / "run", *settings, encoder=BagEncoder())
    first, last = (event.metrics for event in (events[0], [e for e in events if e.metrics][-1]))
    assert last["entropy_corrected"] < first["entropy_corrected"]
    assert last["entropy_next"] < first["entropy_next"] + 0.05
    found = artifact.load(tmp_path / "run").writer
    assert found is not None
    assert found.sight is not None
    # What it is shown, it uses: the text itself helps most, that of another text harms.
    examples = data.sample("validation", 100, 1)
    batch = batches.collate(examples.tokens, examples.vectors)
    true = [row[:length].tolist() for row, length in zip(batch.tokens, batch.lengths, strict=True)]
    with torch.inference_mode():
        plain = writer_trainer.validation_entropy(found, batch)
        right = writer_trainer.validation_entropy(found, batch, guess_of(true, batch.vectors))
        others = guess_of(true[-1:] + true[:-1], batch.vectors.roll(1, 0))
        wrong = writer_trainer.validation_entropy(found, batch, others)
    assert right < 0.7 * plain
    assert right < wrong
    with pytest.raises(ConfigError, match="encoder"):
        train(data, before, tmp_path / "other", "train.guesses=0.7")
    # A further stage without guesses keeps the sight.
    train(data, artifact.load(tmp_path / "run"), tmp_path / "next", "train.steps=1")
    again = artifact.load(tmp_path / "next").writer
    assert again is not None
    assert again.sight is not None


def test_interrupted_among_guesses_it_goes_on_as_if_nothing_had_happened(
    data: Dataset, trained: Trained, tmp_path: Path
) -> None:
    def interrupt(event: Event) -> None:
        if event.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    options = {"encoder": BagEncoder()}
    with pytest.raises(KeyboardInterrupt):
        train(data, trained[0], tmp_path / "run", "train.guesses=0.5", report=interrupt, **options)
    train(data, trained[0], tmp_path / "run", "train.guesses=0.5", resume=True, **options)
    train(data, trained[0], tmp_path / "plain", "train.guesses=0.5", **options)
    halves, whole = (artifact.load(tmp_path / name).writer for name in ("run", "plain"))
    assert halves is not None
    assert whole is not None
    assert all(torch.equal(a, b) for a, b in zip(halves.parameters(), whole.parameters(), strict=True))


def test_facts_about_words_that_may_be_copied() -> None:
    end = 99
    words = torch.tensor([[5, 6, 5, end]])
    copied = Copied(words, words > 0, torch.tensor([[0, 0, 1, 0]]), torch.zeros(1, 4, FACTS), torch.zeros(1, 4, 1))
    facts = likeness(copied, torch.tensor([[5, 7, 6]]), 0, 4)[0]  # places behind nothing, "5", "5 7", "5 7 6"
    there, follows, both, left_out, changed, near, used = facts.unbind(2)
    assert there.all()
    # At the start the first word follows; behind 5 both that stand behind a 5; behind 7 none; behind 6 the second 5.
    assert follows.tolist() == [[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 1, 0]]
    assert both.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert left_out.tolist() == [[1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert changed[2].tolist() == [0, 0, 1, 0]  # behind "5 7" the word two behind 5
    assert near.diagonal().tolist() == [1, 1, 1, 1]
    assert used.tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    alone = likeness(copied, torch.tensor([[5, 7, 6]]), 3, 1)[0]
    assert torch.equal(alone[0], facts[3])
