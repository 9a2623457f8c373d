from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from tests.measure.doubles import ListDataset, LookupInverter, WordCounts, make_examples, make_tokenizer
from unembed.decode import DecodeConfig
from unembed.errors import ConfigError, DataError
from unembed.measure import baselines
from unembed.measure.baselines import BASELINES, Context, Nearest, RandomTokens, Strategy, baseline, unit
from unembed.measure.recovery import Keeper, recover

Training = Callable[[], ListDataset]


def quiet(_: int) -> None: ...


@pytest.mark.parametrize("name", list(BASELINES))
def test_contract(name: str, inverter: LookupInverter, training: Training, test_texts: list[str]) -> None:
    """One text for each vector, in order, the same for the same seed, with progress up to all of them."""
    vectors = make_examples(test_texts).vectors
    context = Context(inverter, DecodeConfig(), training(), seed=3)
    system = baseline(name, context)
    assert (system.name, system.kind) == (name, "baseline")
    assert system.description
    done: list[int] = []
    texts = system.recover(vectors, done.append)
    assert len(texts) == len(vectors)
    assert all(isinstance(text, str) and text for text in texts)
    assert done == sorted(done)
    assert done[-1] == len(vectors)
    assert baseline(name, context).recover(vectors, quiet) == texts


def test_an_unknown_baseline_is_named_with_the_known_ones(inverter: LookupInverter, training: Training) -> None:
    with pytest.raises(ConfigError, match="choose one of random, unconditional, nearest"):
        baseline("nearst", Context(inverter, DecodeConfig(), training()))


def test_random_tokens_follow_the_frequencies_and_lengths_of_training(training: Training) -> None:
    dataset = training()
    texts = RandomTokens(dataset, seed=0).recover(np.zeros((4000, 3)), quiet)
    tokenizer = make_tokenizer()
    drawn = [tokenizer.encode(text).ids for text in texts]
    known = [row.tolist() for row in dataset._examples.tokens]
    assert {len(row) for row in drawn} == {len(row) for row in known}
    assert np.mean([len(row) for row in drawn]) == pytest.approx(np.mean([len(row) for row in known]), rel=0.03)
    for share, other in ((_shares(drawn), _shares(known)), (_shares(known), _shares(drawn))):
        assert all(abs(share[token] - other[token]) < 0.01 for token in share)
    assert len(set(texts)) > 3000


def _shares(rows: list[list[int]]) -> dict[int, float]:
    counts = Counter(token for row in rows for token in row)
    return Counter({token: count / counts.total() for token, count in counts.items()})


def test_another_seed_draws_other_tokens(training: Training) -> None:
    vectors = np.zeros((5, 3))
    assert RandomTokens(training(), 0).recover(vectors, quiet) != RandomTokens(training(), 1).recover(vectors, quiet)


@pytest.mark.parametrize("block", [1, 64, 2**23])
def test_nearest_is_the_brute_force_neighbour(
    training: Training, test_texts: list[str], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(baselines, "_SIMILARITIES", block)
    dataset, queries = training(), make_examples(test_texts).vectors * np.float16(3)  # length is of no matter
    everything = dataset._examples
    similarity = unit(queries) @ unit(everything.vectors).T
    nearest = Nearest(dataset)
    assert nearest.recover(queries, quiet) == [everything.texts[i] for i in similarity.argmax(1)]
    assert nearest.cosines == pytest.approx(similarity.max(1), abs=1e-6)
    assert dataset.reads == 2  # every shard once, for all vectors
    assert nearest.training_texts == nearest.settings["training_texts"] == 60


def test_nearest_looks_at_the_first_n_only_and_says_so(training: Training, test_texts: list[str]) -> None:
    dataset = training()
    nearest = Nearest(dataset, limit=5)
    found = nearest.recover(WordCounts().encode(test_texts), quiet)
    assert set(found) <= set(dataset._examples.texts[0:10:2])
    assert nearest.training_texts == 5
    assert "5 training texts" in nearest.description


def test_nearest_finds_a_text_that_was_trained_on(training: Training) -> None:
    dataset = training()
    nearest = Nearest(dataset)
    assert nearest.recover(dataset._examples.vectors, quiet) == dataset._examples.texts
    assert nearest.cosines == pytest.approx(np.ones(60), abs=1e-3)


def test_no_training_texts(training: Training) -> None:
    with pytest.raises(DataError, match="no training texts"):
        RandomTokens(_empty(), 0)


def _empty() -> ListDataset:
    dataset = ListDataset(["the cat sat"])
    dataset.count = lambda split: 0  # type: ignore[method-assign]
    return dataset


def test_unconditional_is_the_same_decoding_at_guidance_0(inverter: LookupInverter, training: Training) -> None:
    config = DecodeConfig(strategy="sequential", steps=5, guidance=2.0)
    system = baseline("unconditional", Context(inverter, config, training()))
    system.recover(np.ones((2, 24)), quiet)
    assert inverter.seen == [DecodeConfig(strategy="sequential", steps=5, guidance=0.0)]
    assert system.settings["guidance"] == 0.0


def test_a_strategy_inverts_in_order_whatever_the_chunks(inverter: LookupInverter, test_texts: list[str]) -> None:
    vectors = make_examples(test_texts).vectors
    done: list[int] = []
    whole = Strategy("s", inverter, DecodeConfig()).recover(vectors, done.append)
    assert done == [len(vectors)]
    way = Strategy("s", inverter, DecodeConfig())
    way.chunk = 7
    assert recover(way, vectors, inverter.artifact.net, Keeper(), done.append).texts == whole
    assert done[1:] == [7, 14, 21, 28, 35, 40]


def test_unit_leaves_a_zero_row_zero() -> None:
    assert unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]
