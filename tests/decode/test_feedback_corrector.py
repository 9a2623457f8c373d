"""Encoder feedback with a corrector: it fills the masks, keeps the budget, and can be the whole search."""

import copy

import numpy as np
import pytest
import torch

from tests.decode.conftest import MASK, make_inverter, make_vectors
from tests.decode.test_feedback import BUDGET, Failing, Small, cosines, invert
from unembed.decode.feedback import FeedbackConfig, compose
from unembed.decode.feedback.propose import CORRECTIONS
from unembed.errors import ConfigError, EncoderError, UnembedError


@pytest.fixture(scope="module")
def inverter():
    return make_inverter()


@pytest.fixture(scope="module")
def correcting():
    """With a corrector that hears its guess, though it has learned nothing."""
    made = make_inverter(corrects=True)
    torch.nn.init.normal_(made.artifact.corrector.guess.weight, std=0.5, generator=torch.Generator().manual_seed(0))
    return made


@pytest.mark.parametrize("use", ["auto", "only"])
def test_a_corrector_keeps_the_budget_and_gains(correcting, use):
    vectors, encoder = make_vectors(4), Small()
    plain = cosines(encoder, [one.text for one in correcting.invert(vectors)], vectors)
    found = invert(correcting, vectors, encoder, corrector=use, proposals=8, population=4)
    assert [one.queries for one in found] == [BUDGET] * 4
    assert all(one.cosine >= b - 1e-6 for one, b in zip(found, plain, strict=True))
    assert np.mean([one.cosine for one in found]) > np.mean(plain)
    assert found == invert(correcting, vectors, Small(), corrector=use, proposals=8, population=4)


def test_the_corrector_sees_its_guess_and_switched_off_it_is_not_there(inverter, correcting):
    vectors = make_vectors(3)
    off = invert(correcting, vectors, Small(), corrector="off")
    assert off == invert(inverter, vectors, Small())
    assert invert(correcting, vectors, Small()) != off
    deaf = make_inverter(corrects=True)  # what it has not learned to hear changes nothing
    assert invert(deaf, vectors, Small(), corrector="only") != invert(correcting, vectors, Small(), corrector="only")
    with pytest.raises(ConfigError, match="corrector-of"):
        invert(inverter, vectors, Small(), corrector="only")


def test_in_vec2texts_loop_every_proposal_is_a_whole_new_text(correcting, monkeypatch):
    drawn = []
    real = compose.change

    def change(*given):
        draft = real(*given)
        drawn.append((given[1], copy.deepcopy(draft)))
        return draft

    monkeypatch.setattr(compose, "change", change)
    invert(correcting, make_vectors(2), Small(), corrector="only", population=3, proposals=6)
    assert {kind for kind, _ in drawn} <= set(CORRECTIONS)
    assert all(set(draft.tokens) == {MASK} for _, draft in drawn)
    assert {len(draft.tokens) - max(draft.origin) - 1 for kind, draft in drawn if kind == "correct"} == {0}


def test_a_file_that_one_corrector_began_is_not_finished_by_another(correcting, tmp_path):
    np.save(tmp_path / "v.npy", make_vectors(2))

    def write(inverter, encoder):
        feedback = FeedbackConfig(budget=3, batch=1)
        list(inverter.invert_file(tmp_path / "v.npy", tmp_path / "out.jsonl", encoder=encoder, feedback=feedback))

    with pytest.raises(EncoderError):
        write(correcting, Failing(4, RuntimeError("gone")))
    with pytest.raises(UnembedError, match="other settings or another inverter"):
        write(make_inverter(corrects=True), Small())
    write(correcting, Small())
