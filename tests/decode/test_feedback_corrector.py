"""Encoder feedback with a writer that corrects: it sees its guess, keeps the budget, and can be the whole search."""

import numpy as np
import pytest
import torch

from tests.decode.conftest import make_inverter, make_vectors
from tests.decode.test_feedback import BUDGET, Failing, Small, cosines, invert
from unembed.decode.feedback import FeedbackConfig, author, compose
from unembed.errors import ConfigError, EncoderError, UnembedError


@pytest.fixture(scope="module")
def correcting():
    """It sees its guess, though it has learned nothing."""
    return make_inverter(corrects=True)


@pytest.mark.parametrize("use", ["auto", "only"])
def test_a_corrector_keeps_the_budget_and_gains(correcting, use):
    vectors, encoder = make_vectors(4), Small()
    plain = cosines(encoder, [one.text for one in correcting.invert(vectors)], vectors)
    settings = {"corrector": use, "proposals": 8, "population": 4, "temperature": 2.0}
    found = invert(correcting, vectors, encoder, **settings)
    # A loop ends when all that it would ask about is known: what has learned nothing corrects everything alike.
    assert all(one.queries == BUDGET if use == "auto" else 4 < one.queries <= BUDGET for one in found)
    assert all(one.cosine >= b - 1e-6 for one, b in zip(found, plain, strict=True))
    assert np.mean([one.cosine for one in found]) > np.mean(plain)
    assert found == invert(correcting, vectors, Small(), **settings)


def test_the_corrector_sees_its_guess_and_switched_off_it_does_not(correcting):
    vectors, blind = make_vectors(6), make_inverter(writes=True)
    off = invert(correcting, vectors, Small(), corrector="off", temperature=2.0)
    assert off == invert(blind, vectors, Small(), temperature=2.0)
    assert invert(correcting, vectors, Small(), temperature=2.0) != off
    for inverter in (blind, make_inverter()):
        with pytest.raises(ConfigError, match="writer-of"):
            invert(inverter, vectors, Small(), corrector="only")


def test_in_vec2texts_loop_every_proposal_is_a_whole_new_text_that_corrects_one_of_the_beam(correcting, monkeypatch):
    shown = []
    real = author.go_on

    def go_on(writer, vectors, beginnings, guess, width):
        shown.extend(zip(beginnings, guess.tokens, guess.valid, guess.vectors, strict=True))
        assert width == 3  # as many as the beam has
        return real(writer, vectors, beginnings, guess, width)

    monkeypatch.setattr(author, "go_on", go_on)
    monkeypatch.setattr(compose, "change", None)  # nothing else is changed
    vectors, encoder = make_vectors(2), Small()
    invert(correcting, vectors, encoder, corrector="only", population=3)
    assert len(shown) > 4
    for tokens, words, valid, there in shown:
        assert tokens == []
        (vector,) = encoder.encode([correcting.artifact.tokenizer.decode(words[valid].tolist())])
        assert torch.allclose(there, torch.from_numpy(vector / np.linalg.norm(vector)), atol=1e-5)


def test_what_corrections_do_not_bring_is_asked_for_more_and_more_and_then_astray(monkeypatch):
    asked = []
    real = compose.Composer._aim

    def aim(self, search, kind, parent):
        number = parent.rewritten
        asked.append((kind, number, search.vector, parent, real(self, search, kind, parent)))
        return asked[-1][-1]

    monkeypatch.setattr(compose.Composer, "_aim", aim)
    invert(make_inverter(corrects=True, foresees=True), make_vectors(3), Small(), temperature=2.0)
    straight = []
    for kind, number, target, parent, found in asked:
        assert np.isclose(np.linalg.norm(found), 1, atol=1e-5)
        if kind == "rewrite" and number + 1 < len(compose.DISTANCES):
            start = target if parent.aim is None else parent.aim
            wanted = start + compose.DISTANCES[number] * (target - parent.vector)
            assert np.allclose(found, wanted / np.linalg.norm(wanted), atol=1e-5)
            straight.append(parent.aim)
    assert any(one is None for one in straight)
    assert any(one is not None for one in straight)
    stray = [one[-1] for one in asked if one[0] == "tail"]
    assert len({one.tobytes() for one in stray}) == len(stray) > 1


def test_a_file_that_one_writer_began_is_not_finished_by_another(correcting, tmp_path):
    np.save(tmp_path / "v.npy", make_vectors(2))

    def write(inverter, encoder):
        feedback = FeedbackConfig(budget=3, batch=1)
        list(inverter.invert_file(tmp_path / "v.npy", tmp_path / "out.jsonl", encoder=encoder, feedback=feedback))

    with pytest.raises(EncoderError):
        write(correcting, Failing(4, RuntimeError("gone")))
    other = make_inverter(corrects=True)
    other.artifact.writer.sight.mark.add_(0.5)
    with pytest.raises(UnembedError, match="other settings or another inverter"):
        write(other, Small())
    write(correcting, Small())
