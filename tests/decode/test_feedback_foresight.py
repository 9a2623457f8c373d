"""Encoder feedback with a surrogate: many changes are drawn, few are asked about, and those are the promising ones."""

import numpy as np
import pytest
import torch

from tests.decode.conftest import SPECIAL, VOCABULARY, make_inverter, make_vectors
from tests.decode.test_feedback import BUDGET, Failing, Small, cosines, invert
from unembed.decode import DecodeConfig
from unembed.decode.feedback import FeedbackConfig, refill
from unembed.errors import ConfigError, EncoderError, UnembedError


def learned(inverter):
    """The words of `Small`, without what it makes of their places: as much as a surrogate can know."""
    surrogate, tokenizer = inverter.artifact.surrogate, inverter.artifact.tokenizer
    with torch.no_grad():
        surrogate.project.weight.zero_()
        surrogate.project.bias.zero_()
        for word in range(len(SPECIAL), VOCABULARY):
            text = tokenizer.id_to_token(word)
            seed = sum(ord(letter) * 31**k for k, letter in enumerate(text))
            surrogate.words.weight[word] = torch.from_numpy(np.random.default_rng(seed).normal(size=16))
    return inverter


@pytest.fixture(scope="module")
def foreseeing():
    return learned(make_inverter(foresees=True))


@pytest.fixture(scope="module")
def blind():
    return make_inverter()


def test_it_keeps_the_budget_and_gains_more_than_without(foreseeing, blind):
    vectors, encoder = make_vectors(8), Small()
    plain = cosines(encoder, [one.text for one in blind.invert(vectors)], vectors)
    without = invert(blind, vectors, Small())
    found = invert(foreseeing, vectors, encoder)
    assert all(one.queries <= BUDGET for one in found)
    assert len(encoder.asked) == len(set(encoder.asked)) <= 8 * BUDGET
    assert all(one.cosine >= b - 1e-6 for one, b in zip(found, plain, strict=True))
    now = cosines(encoder, [one.text for one in found], vectors)
    assert [one.cosine for one in found] == pytest.approx(now, abs=1e-6)  # asked for, not foreseen
    assert np.mean(now) > np.mean([one.cosine for one in without]) + 0.02
    assert found == invert(foreseeing, vectors, Small())


def test_switched_off_it_is_not_there(foreseeing, blind):
    vectors = make_vectors(3)
    plain = DecodeConfig(steering=0)
    assert invert(foreseeing, vectors, Small(), plain, foresight=False) == invert(blind, vectors, Small(), plain)
    assert invert(foreseeing, vectors, Small(), plain) != invert(blind, vectors, Small(), plain)


def test_masks_are_filled_with_what_is_foreseen_to_help(foreseeing):
    """Blind drafts, one for each question: what is better about them is how their masks were filled."""
    vectors, plain = make_vectors(12), DecodeConfig(steering=0)
    settings = {"drafts": 1, "variants": 1, "depth": 1}
    steered, not_steered = (
        np.mean([one.cosine for one in invert(foreseeing, vectors, Small(), plain, steering=scale, **settings)])
        for scale in (15.0, 0.0)
    )
    assert steered > not_steered


@pytest.mark.parametrize(
    "settings", [{"drafts": 1, "variants": 1, "depth": 1}, {"drafts": 3, "variants": 2, "depth": 3}]
)
def test_any_number_of_drafts(foreseeing, settings):
    found = invert(foreseeing, make_vectors(2), Small(), **settings)
    assert all(0 < one.queries <= BUDGET for one in found)
    with pytest.raises(ConfigError, match="drafts"):
        FeedbackConfig(drafts=0)


def test_variants_share_a_pass(foreseeing, monkeypatch):
    texts = []
    real = refill.Filler._hidden

    def hidden(self, batch):
        texts.append(len(batch))
        return real(self, batch)

    monkeypatch.setattr(refill.Filler, "_hidden", hidden)
    asked = {}
    for variants in (1, 6):
        texts.clear()
        invert(foreseeing, make_vectors(1), Small(), variants=variants, depth=1, budget=20)
        asked[variants] = sum(texts) / len(texts)
    assert asked[6] < 2 * asked[1]


def test_an_encoder_that_fails_loses_nothing_and_another_surrogate_does_not_go_on(foreseeing, tmp_path):
    found = invert(foreseeing, make_vectors(3), Failing(3, RuntimeError("gone")))
    assert all(one.note and one.cosine is not None for one in found)
    np.save(tmp_path / "v.npy", make_vectors(2))

    def write(inverter, encoder):
        feedback = FeedbackConfig(budget=3, batch=1)
        list(inverter.invert_file(tmp_path / "v.npy", tmp_path / "out.jsonl", encoder=encoder, feedback=feedback))

    with pytest.raises(EncoderError):
        write(foreseeing, Failing(3, RuntimeError("gone")))
    with pytest.raises(UnembedError, match="other settings or another inverter"):
        write(make_inverter(foresees=True), Small())
    write(foreseeing, Small())
