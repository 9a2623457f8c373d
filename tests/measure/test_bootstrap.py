from __future__ import annotations

import numpy as np
import pytest

from unembed.errors import ConfigError
from unembed.measure import bootstrap
from unembed.measure.bootstrap import estimate
from unembed.measure.metrics import Bleu, bleu_of


def ones(values: np.ndarray) -> np.ndarray:
    return np.stack([values, np.ones(len(values))], axis=1)


def test_the_interval_covers_the_true_mean_about_95_times_in_100() -> None:
    rng = np.random.default_rng(3)
    hits = 0
    for trial in range(300):
        found = estimate({"token_accuracy": ones(rng.normal(0.5, 0.2, size=60))}, resamples=300, seed=trial)
        hits += found["token_accuracy"].low <= 0.5 <= found["token_accuracy"].high
    assert 0.90 <= hits / 300 <= 0.985


def test_the_width_is_that_of_the_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=2000)
    found = estimate({"cosine": ones(values)}, resamples=2000, seed=0)["cosine"]
    assert found.value == pytest.approx(values.mean())
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 2000**0.5, rel=0.08)
    assert found.n == 2000


def test_same_seed_same_interval_whatever_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"token_f1": ones(np.random.default_rng(1).random(50))}
    whole = estimate(columns, resamples=100, seed=5)
    assert estimate(columns, resamples=100, seed=5) == whole
    assert estimate(columns, resamples=100, seed=6) != whole
    monkeypatch.setattr(bootstrap, "_DRAWS", 7)  # one resample at a time
    assert estimate(columns, resamples=100, seed=5)["token_f1"].low == pytest.approx(whole["token_f1"].low)


def test_bleu_is_computed_anew_for_each_resample() -> None:
    references = ["the cat sat on the mat", "a dog ran home then", "the bird flew over the roof", "a b c d e"]
    recovered = ["the cat sat on a mat", "a dog ran home then", "a bird flew away", "v w x y z"]
    counts = Bleu().counts(references, recovered)
    found = estimate({"bleu": counts}, resamples=400, seed=2)["bleu"]
    rng = np.random.default_rng(2)
    draws = [float(bleu_of(counts[rng.integers(0, 4, size=4)].sum(0))) for _ in range(400)]
    assert found.value == pytest.approx(float(bleu_of(counts.sum(0))))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(draws, [0.025, 0.975])))


def test_equal_texts_have_an_interval_of_no_width() -> None:
    found = estimate({"exact_match": ones(np.ones(9))}, resamples=50, seed=0)["exact_match"]
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)


def test_what_is_undefined_is_left_out_and_resamples_without_it_are_ignored() -> None:
    columns = {"perplexity": np.zeros((3, 2)), "cosine": ones(np.array([0.1, 0.2, 0.3]))}
    assert estimate(columns, resamples=20, seed=0).keys() == {"cosine"}
    columns["perplexity"][0] = [np.log(4), 1]  # the other two texts have no token
    assert estimate(columns, resamples=50, seed=0)["perplexity"].high == pytest.approx(4)


def test_no_resamples_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        estimate({"cosine": ones(np.ones(3))}, resamples=0, seed=0)
