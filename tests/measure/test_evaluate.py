from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU

from tests.measure.doubles import DIM, ListDataset, LookupInverter, WordCounts, make_examples, make_texts
from unembed.decode import DecodeConfig
from unembed.errors import CheckpointError, ConfigError, DataError
from unembed.measure import results as disk
from unembed.measure import scorer as module
from unembed.measure.baselines import BASELINES, Context, baseline, unit
from unembed.measure.evaluate import evaluate, trained_sources
from unembed.measure.metrics import token_f1
from unembed.measure.results import Results

Training = Callable[[], ListDataset]
TEXT_METRICS = {"token_accuracy", "exact_match", "token_f1", "rouge_l", "bleu", "bleu_text", "length_error"}


class WordModel:
    """Every word costs log 7."""

    name = "seven"

    def log_likelihoods(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[np.log(7) * len(text.split()), len(text.split())] for text in texts], dtype=np.float64)


def run(inverter: LookupInverter, texts: list[str], **settings: Any) -> Results:
    arguments: dict[str, Any] = {"encoder": WordCounts(), "strategies": {"best": DecodeConfig()}, "resamples": 50}
    return evaluate(inverter, make_examples(texts), **{**arguments, **settings})


@pytest.fixture(scope="module")
def whole(test_texts: list[str], training: Training) -> Results:
    """Two strategies, all baselines, perplexity."""
    inverter = LookupInverter(test_texts)
    context = Context(inverter, DecodeConfig(), training())
    return run(
        inverter,
        test_texts,
        strategies={"best": DecodeConfig(), "slow": DecodeConfig(strategy="sequential", steps=32)},
        baselines=[baseline(name, context) for name in BASELINES],
        perplexity=WordModel(),
        dataset="d" * 64,
        weights="w" * 64,
        command="unembed evaluate x",
    )


def test_every_system_has_every_metric_with_n_and_an_interval(whole: Results) -> None:
    assert [(s.name, s.kind) for s in whole.systems] == [
        ("original", "reference"), ("best", "inverter"), ("slow", "inverter"),
        ("random", "baseline"), ("unconditional", "baseline"), ("nearest", "baseline"),
    ]  # fmt: skip
    for system in whole.systems:
        for group in (system.overall, *system.by_source.values(), *system.by_length.values()):
            assert group.keys() == TEXT_METRICS | {"cosine", "perplexity"}
            assert all(e.low <= e.value + 1e-9 or e.n < 20 for e in group.values())
        assert system.overall["bleu"].n == 40
        assert {name: s["bleu"].n for name, s in system.by_source.items()} == {"news": 14, "wiki": 26}
        assert sum(s["bleu"].n for s in system.by_length.values()) == 40
        assert list(system.by_length) == ["3-8", "9-16"]


def test_the_numbers_are_those_of_the_texts(whole: Results, test_texts: list[str]) -> None:
    recovered = [text if i % 4 else text.rpartition(" ")[0] for i, text in enumerate(test_texts)]
    best = whole.system("best").overall
    assert best["exact_match"].value == 30 / 40
    assert best["bleu"].value == pytest.approx(BLEU().corpus_score(recovered, [test_texts]).score)
    assert best["perplexity"].value == pytest.approx(7)
    again = WordCounts().encode(recovered)
    assert best["cosine"].value == pytest.approx((again * WordCounts().encode(test_texts)).sum(1).mean(), abs=1e-3)
    assert best == whole.system("slow").overall  # the same texts, and the same draws


def test_the_originals_are_the_ceiling(whole: Results) -> None:
    ceiling = whole.system("original")
    assert ceiling.overall["exact_match"].value == ceiling.overall["token_accuracy"].value == 1
    assert ceiling.overall["cosine"].value == pytest.approx(1, abs=1e-3)
    assert ceiling.overall["perplexity"].value == pytest.approx(7)
    assert ceiling.passes_per_text is None


def test_baselines_are_beaten_and_the_unconditional_one_always_says_the_same(whole: Results) -> None:
    for name in BASELINES:
        assert whole.system(name).overall["token_f1"].high < whole.system("best").overall["token_f1"].low
    assert {sample.recovered for sample in whole.system("unconditional").samples} == {"the cat"}


def test_seconds_and_passes(whole: Results) -> None:
    assert whole.system("best").passes_per_text == whole.system("unconditional").passes_per_text == 2
    assert whole.system("nearest").passes_per_text is None
    assert all(system.seconds_per_text > 0 for system in whole.systems)


def test_near_copies_are_counted(whole: Results, training: Training, test_texts: list[str]) -> None:
    known, unseen = training()._examples, make_examples(test_texts)
    nearest = (unit(unseen.vectors) @ unit(known.vectors).T).argmax(1)
    copies = sum(token_f1(a, known.tokens[i]) > 0.8 for a, i in zip(unseen.tokens, nearest, strict=True))
    assert whole.near_copies is not None
    assert (whole.near_copies.n, whole.near_copies.training_texts) == (40, 60)
    assert whole.near_copies.copies == copies < 5
    quantiles = list(whole.near_copies.cosine_quantiles.values())
    assert quantiles == sorted(quantiles)
    assert 0 < quantiles[0] < quantiles[-1] < 1
    dataset = training()
    texts = dataset._examples.texts[:10]
    inverter = LookupInverter(texts)
    near = [baseline("nearest", Context(inverter, DecodeConfig(), dataset))]
    copied = run(inverter, texts, baselines=near, split="train", allow_train=True).near_copies
    assert copied is not None
    assert copied.copies == 10
    assert copied.cosine_quantiles["0.05"] == pytest.approx(1, abs=1e-3)


def test_all_that_is_needed_to_find_it_again_is_kept(whole: Results) -> None:
    assert (whole.n, whole.seed, whole.resamples, whole.split) == (40, 0, 50, "test")
    assert {"unembed", "python", "torch", "sacrebleu"} <= whole.versions.keys()
    assert {"cpu", "threads"} <= whole.machine.keys()
    assert whole.machine["threads"] == str(torch.get_num_threads())
    assert whole.encoder == {"name": "words", "fingerprint": "words-1"}
    assert (whole.dataset, whole.weights, whole.command) == ("d" * 64, "w" * 64, "unembed evaluate x")
    assert whole.perplexity_model == "seven"
    assert "version:" in whole.bleu_signature
    assert whole.system("slow").settings["strategy"] == "sequential"
    assert whole.notes == []


def test_results_survive_the_round_trip_through_json(whole: Results, tmp_path: Path) -> None:
    disk.save(whole, tmp_path / "deep" / "results.json")
    assert disk.load(tmp_path / "deep" / "results.json") == whole
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["results.json"]


def test_same_seed_same_numbers(inverter: LookupInverter, test_texts: list[str]) -> None:
    def numbers(seed: int) -> Any:
        found = run(inverter, test_texts, seed=seed).system("best")
        return found.overall, found.by_length, found.samples

    assert numbers(1) == numbers(1)
    assert numbers(1)[0]["bleu"].low != numbers(2)[0]["bleu"].low
    assert numbers(1)[2] != numbers(2)[2]


def test_samples_are_the_same_texts_for_every_system_and_tell_how_good_they_are(whole: Results) -> None:
    originals = [[s.original for s in system.samples] for system in whole.systems]
    assert all(some == originals[0] for some in originals)
    assert len(originals[0]) == 10
    for sample in whole.system("best").samples:
        assert (sample.token_accuracy == 1) == (sample.original == sample.recovered)
        assert sample.cosine is not None


def test_chunks_of_scoring_change_nothing(
    inverter: LookupInverter, test_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(inverter, test_texts).system("best").overall
    monkeypatch.setattr(module, "_CHUNK", 7)
    after = run(inverter, test_texts).system("best").overall
    assert {k: v.value for k, v in after.items()} == pytest.approx({k: v.value for k, v in before.items()})


def test_what_is_left_out_is_said(inverter: LookupInverter, test_texts: list[str]) -> None:
    found = run(inverter, test_texts, encoder=None, notes=["install this"])
    assert found.system("best").overall.keys() == TEXT_METRICS
    assert found.encoder == {}
    assert found.system("best").samples[0].cosine is None
    assert found.notes[0] == "install this"
    assert any("cosine was left out" in note for note in found.notes)
    assert any("perplexity was left out" in note for note in found.notes)


def test_training_texts_are_refused_unless_asked_for_and_then_named(training: Training) -> None:
    texts = make_texts("train", 5, seed=1)
    with pytest.raises(DataError, match="measure memory"):
        run(LookupInverter(texts), texts, split="train")
    found = run(LookupInverter(texts), texts, split="train", allow_train=True)
    assert found.split == "train"
    assert any(note.startswith("TRAINING TEXTS") for note in found.notes)


def test_training_texts_cannot_pass_for_test_texts(test_texts: list[str]) -> None:
    texts = [*test_texts[:5], *make_texts("train", 2)]
    with pytest.raises(DataError, match="2 of 7 texts are not of the split 'test'"):
        run(LookupInverter(texts), texts)
    found = run(LookupInverter(texts), texts, split="held-out")
    assert any("caller's word" in note for note in found.notes)


def test_held_out_sources_are_compared_with_those_of_the_training(inverter: LookupInverter) -> None:
    texts = make_texts("train", 9)  # of any split: the whole source is unseen
    for named in ("books, mail", ["books", "mail"]):
        inverter.artifact.info = {"data": {"sources": named}}
        notes = run(inverter, texts, split="held-out").notes
        assert "held-out: none of these sources is among the 2 that the inverter was trained on" in notes
    for named in ("books, wiki", ["en/wiki"]):
        inverter.artifact.info = {"data": {"sources": named}}
        with pytest.raises(DataError, match="not held out: the inverter was trained on wiki; encode"):
            run(inverter, texts, split="held-out")
    assert trained_sources({"data": {}}) is trained_sources({}) is None


def test_scores_without_the_near_copies(training: Training) -> None:
    dataset = training()
    unseen, known = make_texts("test", 20), dataset._examples.texts
    texts = [*unseen[:10], *known[:5], *unseen[10:]]
    inverter = LookupInverter(texts)
    near = [baseline("nearest", Context(inverter, DecodeConfig(), dataset))]
    found = run(inverter, texts, baselines=near, split="held-out")
    copies = found.near_copies
    assert copies is not None
    assert copies.left_out is not None
    assert copies.cosine_copies is not None
    assert copies.copies >= 5
    assert copies.cosine_copies >= 5
    assert max(copies.copies, copies.cosine_copies) <= copies.left_out < 12
    kept = found.system("nearest").without_copies
    assert kept is not None
    assert kept["token_f1"].n == 25 - copies.left_out
    assert kept["exact_match"].value == 0 < found.system("nearest").overall["exact_match"].value
    alone = run(inverter, texts, split="held-out")
    assert alone.near_copies is alone.system("best").without_copies is None


def test_perplexity_reads_as_many_texts_as_asked_and_each_once(inverter: LookupInverter, test_texts: list[str]) -> None:
    class Reader(WordModel):
        def __init__(self) -> None:
            self.read: list[str] = []

        def log_likelihoods(self, texts: Sequence[str]) -> np.ndarray:
            self.read += texts
            return super().log_likelihoods(texts)

    reader = Reader()
    found = run(inverter, test_texts, perplexity=reader, perplexity_texts=9)
    assert found.system("best").overall["perplexity"].n == 9
    assert found.system("best").overall["perplexity"].value == pytest.approx(7)
    assert found.system("best").overall["bleu"].n == 40
    assert len(reader.read) == len(set(reader.read)) == 9 + 3  # originals, and the three that came back changed
    assert any("first 9 texts" in note for note in found.notes)
    with pytest.raises(ConfigError, match="0 texts"):
        run(inverter, test_texts, perplexity_texts=0)


def test_many_texts_and_groups_take_seconds(test_texts: list[str]) -> None:
    texts = make_texts("test", 40) * 100
    examples = make_examples(test_texts)
    many = dataclasses.replace(
        examples, tokens=examples.tokens * 100, texts=texts, vectors=np.tile(examples.vectors, (100, 1)),
        sources=[f"source {i % 25}" for i in range(4000)],
    )  # fmt: skip
    started = time.process_time()
    found = evaluate(LookupInverter(test_texts), many, None, {"best": DecodeConfig()}, split="test")  # type: ignore[arg-type]
    assert len(found.system("best").by_source) == 25
    assert time.process_time() - started < 20


def test_an_encoder_that_no_longer_gives_these_vectors_is_noticed(
    inverter: LookupInverter, test_texts: list[str]
) -> None:
    class Drifted(WordCounts):
        def encode(self, texts: list[str]) -> np.ndarray:
            return np.roll(super().encode(texts), 1, axis=1)

    assert any("does not reproduce" in note for note in run(inverter, test_texts, encoder=Drifted()).notes)


def test_another_encoder_is_refused(inverter: LookupInverter, test_texts: list[str]) -> None:
    class Other(WordCounts):
        name, fingerprint = "other", "other-1"

    with pytest.raises(CheckpointError, match="other"):
        run(inverter, test_texts, encoder=Other())
    examples = make_examples(test_texts)
    wrong = dataclasses.replace(examples, vectors=np.zeros((40, DIM + 1), dtype=np.float16))
    with pytest.raises(CheckpointError, match=f"{DIM + 1}"):
        evaluate(inverter, wrong, WordCounts(), {"best": DecodeConfig()})  # type: ignore[arg-type]


def test_bad_input(inverter: LookupInverter, test_texts: list[str], training: Training) -> None:
    with pytest.raises(DataError, match="no texts"):
        evaluate(inverter, dataclasses.replace(make_examples(test_texts), texts=[]), None, {})  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no split named 'tset'"):
        run(inverter, test_texts, split="tset")
    near = baseline("nearest", Context(inverter, DecodeConfig(), training()))
    with pytest.raises(DataError, match="two systems are named 'nearest'"):
        run(inverter, test_texts, strategies={"nearest": DecodeConfig()}, baselines=[near])


def test_a_system_that_loses_texts_is_noticed(inverter: LookupInverter, test_texts: list[str]) -> None:
    class Short:
        name, kind, description, settings, chunk = "short", "baseline", "", {}, None

        def recover(self, vectors: np.ndarray, advance: Callable[[int], None]) -> list[str]:
            return ["one"]

    with pytest.raises(DataError, match="1 texts came back for 40"):
        run(inverter, test_texts, baselines=[Short()])


def test_an_empty_recovery_has_cosine_0_and_never_reaches_the_encoder(
    inverter: LookupInverter, test_texts: list[str]
) -> None:
    class Silent:
        name, kind, description, settings, chunk = "silent", "baseline", "", {}, None

        def recover(self, vectors: np.ndarray, advance: Callable[[int], None]) -> list[str]:
            return [""] * len(vectors)

    found = run(inverter, test_texts, baselines=[Silent()], perplexity=WordModel()).system("silent")
    assert found.overall["cosine"].value == found.overall["bleu"].value == found.overall["token_f1"].value == 0
    assert "perplexity" not in found.overall  # of nothing


def test_progress_goes_up_to_all(inverter: LookupInverter, test_texts: list[str]) -> None:
    seen: list[tuple[str, int, int]] = []
    run(inverter, test_texts, progress=lambda label, done, total: seen.append((label, done, total)))
    assert ("best: recovering", 40, 40) in seen
    assert ("best: scoring", 40, 40) in seen


def test_the_command_line_is_kept(
    inverter: LookupInverter, test_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["/usr/bin/unembed", "evaluate", "my data", "-o", "r.json"])
    assert run(inverter, test_texts).command == "unembed evaluate 'my data' -o r.json"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(colour="red"), "unknown key 'colour'"),
        (lambda d: d.pop("seed"), "lacks the key 'seed'"),
        (lambda d: d.update(seed="0"), "results.seed is '0', not a int"),
        (lambda d: d.update(n=True), "results.n"),
        (lambda d: d.update(format=99), "format 99"),
        (lambda d: d["systems"][1]["overall"]["bleu"].update(mean=1), r"systems\[1\].overall.bleu has an unknown key"),
        (lambda d: d["systems"][0]["samples"][0].update(cosine="high"), r"samples\[0\].cosine"),
        (lambda d: d["near_copies"].pop("copies"), "near_copies lacks"),
        (lambda d: d.update(systems={}), "not a list"),
    ],
)
def test_altered_results_are_refused(whole: Results, change: Callable[[Any], Any], message: str) -> None:
    values = json.loads(json.dumps(disk.to_dict(whole)))
    assert disk.from_dict(values) == whole
    change(values)
    with pytest.raises(DataError, match=message):
        disk.from_dict(values)


def test_unreadable_results_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no results at"):
        disk.load(tmp_path / "none.json")
    for content in ("{", "[]", "3", '{"format": 1}'):
        (tmp_path / "bad.json").write_text(content)
        with pytest.raises(DataError, match=r"bad\.json") as caught:
            disk.load(tmp_path / "bad.json")
        assert "\n" not in str(caught.value)


def test_a_failed_write_leaves_the_old_results(whole: Results, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    disk.save(whole, path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        disk.save(dataclasses.replace(whole, seed=float("nan")), path)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["results.json"]
