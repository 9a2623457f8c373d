from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unembed.data import dedupe
from unembed.data.dedupe import HashSet
from unembed.errors import DataError

# Few different values and equal low bits, so that probing, collisions and zero all happen.
VALUES = st.one_of(st.integers(0, 20), st.integers(0, 20).map(lambda n: n << 32), st.integers(0, 2**64 - 1))


@pytest.mark.parametrize("slots", [4, 4096])  # nearly all in files, or nothing
@given(batches=st.lists(st.lists(VALUES, max_size=40), max_size=10))
@settings(deadline=None, max_examples=60)
def test_it_is_a_set(slots, batches):
    table, known = HashSet(slots=slots), set()
    for batch in batches:
        expected = []
        for value in batch:
            expected.append(value not in known)
            known.add(value)
        assert table.add(np.array(batch, dtype=np.uint64)).tolist() == expected
        assert len(table) == len(known)
    assert bool(table.on_disk) == (slots == 4 and len(known - {0}) >= 2)


def test_files_give_the_same_answers_as_memory(tmp_path, monkeypatch):
    for name, small in {"CHUNK": 100, "SMALLEST_BLOCK": 3, "MOST_BLOCKS": 512}.items():
        monkeypatch.setattr(dedupe, name, small)
    rng = np.random.default_rng(0)
    table, known = HashSet(tmp_path, slots=1024), set()
    for _ in range(40):
        some = rng.integers(0, 30_000, size=1000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        expected = [value not in known and not known.add(value) for value in some.tolist()]
        assert table.add(some).tolist() == expected
    assert len(table) == len(known)
    runs = table.on_disk
    assert all(run > sum(runs[i + 1 :]) for i, run in enumerate(runs))  # so there are few
    assert sum(runs) > 20 * 1024
    assert not list(tmp_path.iterdir())  # the files have no names: nothing is left by a kill


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from unembed.data.dedupe import HashSet

def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024

rng, table = np.random.default_rng(0), HashSet(Path(sys.argv[1]), slots=1 << 17)
def add(count):
    for _ in range(count):
        assert table.add(rng.integers(1, 2**64, size=4096, dtype=np.uint64)).all()
add(50)
before = peak()
add(400)
print(peak() - before, sum(table.on_disk))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_number_of_hashes(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True)
    growth, on_disk = map(float, done.stdout.split())
    assert on_disk > 1_600_000
    assert growth < 16  # MB; one flat table would take 32


def test_a_full_disk_is_one_clear_line(tmp_path):
    with pytest.raises(DataError, match=r"to find duplicates .*: make room"):
        HashSet(tmp_path / "gone", slots=4).add(np.arange(9, dtype=np.uint64))
