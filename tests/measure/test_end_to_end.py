"""The whole room on the real data, model and decoding rooms, with an untrained net."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.measure.doubles import WordCounts
from tests.measure.real import make_dataset, make_inverter
from unembed.data.dataset import Dataset
from unembed.decode import DecodeConfig
from unembed.inverter import Inverter
from unembed.measure import results as disk
from unembed.measure.baselines import BASELINES, Context, Unconditional, baseline
from unembed.measure.evaluate import evaluate
from unembed.measure.table import terminal_table


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset(make_dataset(tmp_path_factory.mktemp("corpus")))


@pytest.fixture(scope="module")
def inverter() -> Inverter:
    return make_inverter()


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
