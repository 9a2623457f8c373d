"""A search that asks an echo instead of the encoder."""

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers

from tests.decode.conftest import MAX_TOKENS, make_inverter, make_vectors, same
from unembed.decode import DecodeConfig
from unembed.decode.feedback import FeedbackConfig
from unembed.decode.imagine import LIKELIHOOD, TOGETHER, Imagined
from unembed.errors import ConfigError, DataError

EXACT = DecodeConfig(precision="fp32", imagine=12)


@pytest.fixture(scope="module")
def inverter():
    made = make_inverter(hears=True)
    made.artifact.tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # its texts are read again here
    return made


def foreseen(inverter, vectors, texts):
    with torch.inference_mode():
        heard = inverter.artifact.echo.foresee([one.tokens for one in texts]).numpy()
    return (heard * vectors).sum(1)


def test_it_comes_nearer_as_far_as_the_echo_can_tell_and_asks_nobody(inverter):
    vectors = make_vectors(6, seed=2)
    plain = inverter.invert(vectors, EXACT, imagine=0)
    found = inverter.invert(vectors, EXACT)
    before, after = foreseen(inverter, vectors, plain), foreseen(inverter, vectors, found)
    assert (after >= before - 1e-5).all()
    assert after.mean() > before.mean() + 0.02
    assert np.allclose([one.score for one in found], after, atol=1e-4)
    assert all(one.queries == 0 and one.cosine is None and one.tokens for one in found)


def test_it_is_the_search_with_the_echo_as_the_encoder(inverter):
    vectors = make_vectors(3, seed=3)
    imagined = Imagined(inverter.artifact, EXACT)
    imagined.name, imagined.dim, imagined.fingerprint = "test", inverter.dim, ""
    settings = FeedbackConfig(budget=12, gradients="off", likelihood_weight=LIKELIHOOD, batch=TOGETHER)
    searched = dict(inverter.search(vectors, imagined, DecodeConfig(precision="fp32"), feedback=settings))
    for row, one in enumerate(inverter.invert(vectors, EXACT)):
        assert one.tokens == searched[row].tokens
        assert one.score == pytest.approx(searched[row].cosine, abs=1e-5)


def test_neither_the_batch_nor_its_order_matters(inverter):
    vectors = make_vectors(TOGETHER + 3, seed=4)
    together = inverter.invert(vectors, EXACT, n_best=2)
    backwards = inverter.invert(vectors[::-1].copy(), EXACT, n_best=2)[::-1]
    for a, b in zip(together, backwards, strict=True):
        assert same(a, b)
        assert [one.text for one in a.alternatives] == [one.text for one in b.alternatives]


def test_texts_that_an_echo_cannot_hear_are_no_reason_to_stop(inverter):
    imagined = Imagined(inverter.artifact, EXACT)
    rows = imagined.encode(["w1 w2", "", " ".join(["w3"] * 3 * MAX_TOKENS)])
    assert np.isnan(rows[1]).all()
    assert np.allclose(np.linalg.norm(rows[[0, 2]], axis=1), 1, atol=1e-5)


def test_a_file_of_vectors_resumes_only_with_the_same_settings(inverter, tmp_path):
    np.save(tmp_path / "v.npy", make_vectors(3))
    for _ in inverter.invert_file(tmp_path / "v.npy", tmp_path / "out.jsonl", EXACT):
        pass
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 3
    with pytest.raises(DataError, match=r"out\.jsonl"):
        list(inverter.invert_file(tmp_path / "v.npy", tmp_path / "out.jsonl", DecodeConfig(precision="fp32")))


def test_what_is_missing_is_named():
    (vector,) = make_vectors(1)
    with pytest.raises(ConfigError, match="--echo-of"):
        make_inverter(writes=True).invert(vector, imagine=4)
    with pytest.raises(ConfigError, match="writer"):
        make_inverter(hears=True).invert(vector, imagine=4, strategy="confidence")
    with pytest.raises(ConfigError, match="imagine is -1"):
        DecodeConfig(imagine=-1)
