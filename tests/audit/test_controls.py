"""Controls: what an audit shows of vectors that give nothing away."""

from __future__ import annotations

import numpy as np
import pytest

from unembed.audit import leak
from unembed.audit.controls import _other_rows, controls
from unembed.audit.personal import find

TEXTS = [
    "The patient has a fever and needs antibiotics.",
    "Maria Gonzalez lives in Berlin.",
    "The train to London leaves at noon.",
    "Add the eggs to the flour and stir.",
    "The court ruled in favour of the tenant.",
    "We study the flow of water around a cylinder.",
    "My bank rejected the loan.",
    "The function returns a list of numbers.",
]


@pytest.fixture(scope="module")
def vectors(encoder):
    return encoder.encode(TEXTS)


@pytest.fixture(scope="module")
def recovered(inverter, vectors, encoder):
    return leak.recover(inverter, vectors, TEXTS, encoder=encoder, calibration=None)


def test_both_controls_score_far_below_the_real_recovery(inverter, vectors, recovered, encoder):
    found = controls(inverter, vectors, TEXTS, recovered, encoder=encoder, find=find, n=4, seed=1)
    real = np.mean([one.truth["token_f1"] for one in recovered])
    cosine = np.mean([one.cosine for one in recovered])
    assert set(found) == {"random", "shuffled"}
    assert [(one["n"], one["with_text"]) for one in found.values()] == [(4, 4), (len(TEXTS), len(TEXTS))]
    for one in found.values():
        assert one["token_f1"] < real - 0.1
        assert one["cosine"] < cosine - 0.2
    assert sum(found["shuffled"]["personal"].values()) == sum(len(find(one.text)) for one in recovered)
    assert found["shuffled"]["personal_right"]["NAME"] == 0
    assert controls(inverter, vectors, TEXTS, recovered, encoder=encoder, find=find, n=4, seed=1) == found


def test_without_texts_encoder_and_search(inverter, vectors, recovered):
    found = controls(inverter, vectors, [None] * len(TEXTS), recovered, encoder=None, n=2)
    assert found["random"]["n"] == 2
    assert found["shuffled"] == {
        "n": len(TEXTS), "with_text": 0, "token_f1": None, "cosine": None, "cosines": None, "personal": None,
        "personal_right": None,
    }  # fmt: skip


@pytest.mark.parametrize("n", [2, 3, 50])
def test_no_row_keeps_its_own(n):
    for seed in range(20):
        others = _other_rows(n, np.random.default_rng(seed))
        assert sorted(others) == list(range(n))
        assert (others != np.arange(n)).all()
