"""Near-duplicates and links among vectors."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import unembed
from unembed.audit.topics import labelled
from unembed.audit.unique import NEAR_DUPLICATE, uniqueness

PAIRS = [
    ("Mrs Ferrer from Girona asked for her third refund.", "Third refund wanted by Mrs Ferrer from Girona."),
    ("The MRI of patient 4471 shows a tumour in the left lung.", "Patient 4471: tumour in left lung seen on MRI."),
    ("My landlord in Leeds has not repaired the boiler.", "The boiler is still not repaired by my Leeds landlord."),
]


def noise(n: int, d: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def test_copies_are_near_duplicates_and_linked():
    vectors = noise(200)
    vectors[7] = 3 * vectors[100]  # length does not matter
    found = uniqueness(vectors)
    assert (found.n, found.near_duplicates, found.linked) == (200, 2, 2)
    assert [pair[:2] for pair in found.pairs] == [(7, 100)]
    assert found.pairs[0][2] == pytest.approx(1, abs=1e-5)


def test_random_vectors_are_not_linked():
    for seed in range(5):
        found = uniqueness(noise(300, 384, seed))
        assert (found.near_duplicates, found.linked) == (0, 0)


def test_a_link_must_be_mutual():
    vectors = noise(100)
    vectors[1] = vectors[0] + 0.1 * vectors[1]
    vectors[2] = vectors[0] + 0.3 * vectors[2]  # nearest to 0, whose nearest is 1
    assert uniqueness(vectors).linked == 2


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_vectors(n):
    found = uniqueness(noise(n))
    assert (found.n, found.linked) == (n, 0)
    assert found.note


def test_blocks_do_not_change_the_result_and_memory_stays_flat(monkeypatch):
    vectors = noise(700, 16)
    whole = uniqueness(vectors)
    monkeypatch.setattr("unembed.audit.unique._BLOCK", 64)
    assert uniqueness(vectors) == whole
    tracemalloc.start()
    uniqueness(noise(6000, 16))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 80e6  # all cosines at once would be 144 MB


def test_texts_on_one_event_are_linked_and_the_note_says_how():
    encoder = unembed.encoder("minilm")
    others = labelled("check")[0]
    vectors = encoder.encode([text for pair in PAIRS for text in pair] + others)
    found = uniqueness(vectors)
    assert {(0, 1), (2, 3), (4, 5)} <= {pair[:2] for pair in found.pairs}
    assert found.linked <= 2 * len(PAIRS) + 6  # of 130 other sentences, hardly any two
    assert found.background < found.threshold < NEAR_DUPLICATE
    assert f"{found.threshold:.2f}" in found.note
