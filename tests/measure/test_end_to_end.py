"""The whole room on the real data, model and decoding rooms, with an untrained net."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.measure.doubles import DIM, WORDS, WordCounts, make_tokenizer
from unembed.config import tiny
from unembed.data.dataset import Dataset
from unembed.data.tokens import write_tokens
from unembed.data.vectors import write_vectors
from unembed.decode import DecodeConfig
from unembed.inverter import Inverter
from unembed.measure import results as disk
from unembed.measure.baselines import BASELINES, Context, Unconditional, baseline
from unembed.measure.evaluate import evaluate
from unembed.measure.table import terminal_table
from unembed.model.artifact import Artifact, EncoderInfo
from unembed.model.denoiser import Denoiser


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(WORDS[:-4], size=rng.integers(3, 13))) for _ in range(1500)]
    (folder / "some.txt").write_text("\n".join(lines))
    list(write_tokens([folder / "some.txt"], folder / "data", make_tokenizer(), max_tokens=16, shard_size=400))
    list(write_vectors(folder / "data", WordCounts()))
    return Dataset(folder / "data")


@pytest.fixture(scope="module")
def inverter() -> Inverter:
    torch.manual_seed(0)
    model = dataclasses.replace(
        tiny().model, vocab_size=make_tokenizer().get_vocab_size(), mask_id=2, vector_dim=DIM, max_tokens=16
    )
    net = Denoiser(model)
    net.forbid([0, 1])
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # so that the vector matters, untrained as it is
    config = dataclasses.replace(tiny(), model=model)
    return Inverter(Artifact(net.eval(), make_tokenizer(), config, EncoderInfo("words", DIM, True, "words-1")))


def test_evaluation_of_the_real_rooms(dataset: Dataset, inverter: Inverter, tmp_path: Path) -> None:
    examples = dataset.sample("test", 10, seed=0)
    config = DecodeConfig(lengths=1, steps=4)
    context = Context(inverter, config, dataset, training_texts=700)
    results = evaluate(
        inverter,
        examples,
        WordCounts(),
        {"confidence": config, "sequential": dataclasses.replace(config, strategy="sequential", steps=16)},
        [baseline(name, context) for name in BASELINES],
        dataset=dataset.fingerprint,
        resamples=50,
    )
    disk.save(results, tmp_path / "results.json")
    assert disk.load(tmp_path / "results.json") == results
    assert results.n == len(examples.texts)
    original, confidence, sequential, random, _, nearest = results.systems
    assert original.overall["exact_match"].value == 1
    assert original.overall["cosine"].value == pytest.approx(1, abs=1e-3)
    assert confidence.passes_per_text is not None
    assert sequential.passes_per_text is not None
    assert 1 <= confidence.passes_per_text < sequential.passes_per_text
    assert nearest.overall["cosine"].value > random.overall["cosine"].high
    assert results.near_copies is not None
    assert results.near_copies.training_texts == 700
    assert "nearest" in terminal_table(results)


def test_nothing_of_the_vector_is_left_without_condition(dataset: Dataset, inverter: Inverter) -> None:
    vectors = dataset.sample("test", 10, seed=0).vectors
    config = DecodeConfig(lengths=1, steps=4)
    assert len({found.text for found in inverter.invert(vectors.astype(np.float32), config)}) > 1
    texts = Unconditional(inverter, config).recover(vectors, lambda done: None)
    assert len(set(texts)) == 1
