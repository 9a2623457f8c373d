"""When a vector is met: in the precision it was stored in, and in the entries it has."""

import numpy as np
import pytest

from tests.decode.conftest import DIM, make_inverter, make_vectors
from tests.decode.test_feedback import Small, invert
from unembed.decode.feedback.target import entries, tolerance, truncate


@pytest.fixture(scope="module")
def inverter():
    return make_inverter()


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "4 decimals", "truncated"])
def test_a_vector_is_met_in_its_own_precision_and_no_wider(kind):
    for seed in range(20):
        exact = np.random.default_rng(seed).normal(size=384)
        exact /= np.linalg.norm(exact)
        if kind == "int8":
            stored = np.rint(exact * 127 / np.abs(exact).max()).astype(np.int8).astype(np.float32)
            stored /= np.linalg.norm(stored)
        elif kind == "4 decimals":
            stored = np.round(exact, 4).astype(np.float32)
        elif kind == "truncated":
            stored = np.where(np.arange(384) < 128, exact, 0).astype(np.float32)
            assert entries(stored) == 128
            exact = truncate(exact.astype(np.float32), 128).astype(np.float64)
        else:
            stored = exact.astype(kind).astype(np.float32)
        missed = 1 - float(exact @ stored.astype(np.float64) / np.linalg.norm(stored.astype(np.float64)))
        widest = {"float16": 3e-6, "int8": 3e-4, "4 decimals": 3e-6}.get(kind, 2.1e-6)
        assert missed <= tolerance(stored) <= widest
        assert kind not in ("int8", "4 decimals") or tolerance(stored) > 2.1e-6
        assert entries(stored) == (128 if kind == "truncated" else 384)


def test_a_truncated_vector_is_met_by_its_text(inverter):
    """What was cut off is not held against a text."""
    encoder = Small()
    text = inverter.invert(make_vectors(1))[0].text
    vector = truncate(encoder.one(text), DIM // 2)
    (found,) = invert(inverter, vector[None], encoder)
    same = truncate(encoder.one(found.text), DIM // 2)
    assert found.cosine == pytest.approx(float(same @ vector), abs=1e-6)
    assert abs(found.cosine) > abs(float(encoder.one(found.text) @ vector))
