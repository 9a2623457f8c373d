from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from unembed.data.dedupe import HashSet

# Few different values and equal low bits, so that probing, collisions and zero all happen.
VALUES = st.one_of(st.integers(0, 20), st.integers(0, 20).map(lambda n: n << 32), st.integers(0, 2**64 - 1))


@given(st.lists(st.lists(VALUES, max_size=40), max_size=10))
@settings(deadline=None)
def test_it_is_a_set(batches):
    table, known = HashSet(capacity=4), set()
    for batch in batches:
        expected = []
        for value in batch:
            expected.append(value not in known)
            known.add(value)
        assert table.add(np.array(batch, dtype=np.uint64)).tolist() == expected
        assert len(table) == len(known)


def test_memory_is_bounded_by_the_number_of_different_hashes():
    rng, table = np.random.default_rng(0), HashSet()
    hashes = rng.integers(0, 2**64, size=300_000, dtype=np.uint64)
    for _ in range(3):  # duplicates cost nothing
        for start in range(0, len(hashes), 4096):
            table.add(hashes[start : start + 4096])
    assert len(table) == len(np.unique(hashes))
    assert table.nbytes <= len(hashes) * 8 * 2 / 0.7
