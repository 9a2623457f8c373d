"""What every store must do, on real ones: the same vectors and texts in, a sample out."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.audit.stores.conftest import (
    DIM,
    FILE_STORES,
    PG_STORES,
    ROWS,
    STORES,
    TOLERANCE,
    Rows,
    fill,
    good_rows,
    hashes,
    nobody,
)
from unembed.audit.stores import open_store
from unembed.errors import ConfigError, DataError

GOOD = good_rows()


@pytest.fixture(params=STORES)
def store(request, filled):
    place = filled(request.param)
    with open_store(place.spec, place.options) as opened:
        opened.name = request.param
        yield opened


def test_gives_back_what_was_put_in(store):
    sample = store.sample(50, seed=1)
    rows = [int(name) for name in sample.ids]
    assert len(set(rows)) == 50
    assert sample.vectors.dtype == np.float32
    assert sample.vectors.shape == (50, DIM)
    expected = np.stack([GOOD.vectors[row] for row in rows])
    np.testing.assert_allclose(sample.vectors, expected, atol=TOLERANCE.get(store.name, 1e-6))
    assert sample.texts == [GOOD.texts[row] for row in rows]
    assert sample.normalised
    assert not sample.left_out


def test_is_seeded_and_in_order(store):
    first, again, other = store.sample(20, 3), store.sample(20, 3), store.sample(20, 4)
    assert first.ids == again.ids
    np.testing.assert_array_equal(first.vectors, again.vectors)
    assert first.ids != other.ids
    everything = store.sample(ROWS, 0).ids
    assert first.ids == [name for name in everything if name in first.ids]


def test_more_than_there_is_gives_all(store):
    sample = store.sample(10 * ROWS, seed=1)
    assert sorted(int(name) for name in sample.ids) == list(range(ROWS))
    with pytest.raises(ConfigError, match="at least 1"):
        store.sample(0, seed=1)


def test_is_uniform(store):
    draws, n = 40, 24
    counts = np.zeros(ROWS)
    for seed in range(draws):
        counts[[int(name) for name in store.sample(n, seed).ids]] += 1
    expected = draws * n / ROWS
    # Chi-square with ROWS - 1 degrees of freedom: mean 239, standard deviation 22.
    statistic = float(((counts - expected) ** 2).sum() / (expected * (1 - n / ROWS)))
    assert 140 < statistic < 340


def test_describes_itself(store):
    about = store.describe()
    assert about.rows == ROWS
    assert about.rows_exact
    assert about.dim == DIM or store.name in ("parquet", "parquet-folder", "pg-array")
    assert about.text_field
    assert json.loads(json.dumps(dataclasses.asdict(about)))["kind"] == store.kind
    names = [field.name for field in store.fields]
    assert about.text_field in names or about.text_field.endswith("texts.txt")
    assert about.place in repr(store)
    assert about.dtype == store.sample(1, 0).dtype


@pytest.mark.parametrize("name", FILE_STORES)
def test_no_file_changes(name, filled):
    place = filled(name)
    before = hashes(place.path)
    with open_store(place.spec, place.options) as store:
        store.describe()
        store.sample(30, seed=1)
    assert hashes(place.path) == before


@pytest.mark.parametrize("name", ["qdrant", "chroma", "milvus"])
def test_copies_go(name, filled, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = filled(name)
    with open_store(place.spec, place.options) as store:
        assert list(tmp_path.iterdir())
        store.sample(3, 0)
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError):
        open_store(place.spec, dataclasses.replace(place.options, table="missing"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["qdrant", "chroma", "milvus"])
def test_copies_stay_gone_when_the_process_ends(name, filled, tmp_path):
    """A client that writes at its end must not bring back a copy of private data."""
    place = filled(name)
    code = (
        "import sys; from unembed.audit.stores import StoreOptions, open_store\n"
        "with open_store(sys.argv[1], StoreOptions(column=sys.argv[2] or None)) as store: store.sample(3, 0)\n"
        "try: open_store(sys.argv[1], StoreOptions(table='missing'))\n"
        "except Exception: pass"
    )
    arguments = [sys.executable, "-c", code, place.spec, place.options.column or ""]
    subprocess.run(arguments, check=True, capture_output=True, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert not list(tmp_path.iterdir())


@pytest.fixture
def make(tmp_path, request):
    return lambda name, rows: fill(name, tmp_path, rows, lambda: request.getfixturevalue("pg_uri"))


def refusal(place, n=50):
    """The one line of the error, from opening or sampling."""
    with pytest.raises(DataError) as caught, open_store(place.spec, place.options) as store:
        store.sample(n, 0)
    assert "\n" not in str(caught.value)
    return str(caught.value)


EMPTY = [name for name in STORES if name not in ("faiss-ivf", "faiss-sq8")]  # these are trained on vectors


@pytest.mark.parametrize("name", EMPTY)
def test_empty(name, make):
    assert "is empty" in refusal(make(name, Rows([], [])))


@pytest.mark.parametrize(
    "name", ["npy", "parquet", "jsonl", "faiss-flat", "pg-vector", "qdrant", "chroma", "lancedb", "milvus"]
)
def test_all_zero(name, make):
    rows = Rows([np.zeros(DIM, np.float32)] * 6, ["a"] * 6)
    assert "6 with a zero vector" in refusal(make(name, rows))


@pytest.mark.parametrize("name", ["npy", "npz", "parquet", "jsonl", "faiss-flat", "lancedb"])
def test_nan_is_left_out_and_told(name, make):
    rows = good_rows(10)
    rows.vectors[3] = np.full(DIM, np.nan, np.float32)
    place = make(name, rows)
    with open_store(place.spec, place.options) as store:
        sample = store.sample(10, 0)
    assert len(sample.ids) == len(sample.texts) == len(sample.vectors) == 9
    assert "3" not in sample.ids
    assert sum(sample.left_out.values()) == 1
    assert "1 of 10 sampled rows were left out" in sample.notes[-1]


@pytest.mark.parametrize("name", ["parquet", "jsonl", "pg-array"])
def test_mixed_dimensions_and_missing(name, make):
    rows = good_rows(12)
    rows.vectors[2] = np.ones(5, np.float32)
    rows.vectors[7] = None
    place = make(name, rows)
    with open_store(place.spec, place.options) as store:
        sample = store.sample(12, 0)
    assert sample.vectors.shape[1] == DIM
    assert not {"2", "7"} & set(sample.ids)
    assert sample.left_out["with 5 dimensions instead of 16"] == 1
    other = dataclasses.replace(place.options, dim=5)
    with open_store(place.spec, other) as store:
        assert store.sample(12, 0).ids == ["2"]


COLUMN = {"parquet": "source", "lancedb": "source", "milvus": "text", "pg-vector": "n", "pg-view": "text"}


@pytest.mark.parametrize("name", COLUMN)
def test_column_that_is_no_vector(name, filled):
    place = filled(name)
    with pytest.raises(DataError, match=r"no (list of numbers|vector|dense vector)"):
        open_store(place.spec, dataclasses.replace(place.options, column=COLUMN[name]))


@pytest.mark.parametrize("name", ["npz", "parquet", "jsonl", "qdrant", "lancedb", "milvus", "pg-vector"])
def test_missing_column_names_those_there_are(name, filled):
    place = filled(name)
    with pytest.raises(DataError, match="nowhere"):
        open_store(place.spec, dataclasses.replace(place.options, column="nowhere"))


@pytest.mark.parametrize("name", ["qdrant", "chroma", "lancedb", "milvus", "pg-vector"])
def test_missing_table_names_those_there_are(name, filled):
    place = filled(name)
    with pytest.raises(DataError, match=r"no (collection|table) 'nowhere'.*(docs|public\.)"):
        open_store(place.spec, dataclasses.replace(place.options, table="nowhere"))


@pytest.mark.parametrize("name", ["parquet", "jsonl", "qdrant", "chroma", "lancedb", "milvus", "pg-vector"])
def test_missing_text_field(name, filled):
    place = filled(name)
    with pytest.raises(DataError, match="no field 'nowhere'"):
        open_store(place.spec, dataclasses.replace(place.options, text="nowhere"))


@pytest.mark.parametrize("name", FILE_STORES)
def test_no_permission(name, filled):
    place = filled(name)
    with open_store(place.spec, place.options):
        pass  # the client is imported while that is allowed
    modes = [(file, file.stat().st_mode) for file in [place.path, *place.path.rglob("*")]]
    for file, _ in modes:
        file.chmod(0)
    try:
        with nobody(), pytest.raises(DataError, match="permission") as caught:
            open_store(place.spec, place.options)
        assert "\n" not in str(caught.value)
    finally:
        for file, mode in modes:
            file.chmod(mode)


@pytest.mark.parametrize("kind", ["file", "faiss", "qdrant", "chroma", "lancedb", "milvus"])
def test_nothing_there(kind, tmp_path):
    with pytest.raises(DataError, match="there is no"):
        open_store(f"{kind}:{tmp_path}/nothing")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["file", "faiss", "qdrant", "chroma", "milvus"])
def test_something_else_there(kind, tmp_path):
    path = tmp_path / {"file": "a.parquet", "milvus": "a.db"}.get(kind, "a")
    if kind in ("qdrant", "chroma"):
        path.mkdir()
        (path / "meta.json").write_bytes(b"\x00\xff")
        (path / "chroma.sqlite3").write_bytes(b"\x00\xff" * 4000)
    else:
        path.write_bytes(b"\x00\xff" * 4000)
    with pytest.raises(DataError) as caught:
        open_store(f"{kind}:{path}").sample(1, 0)
    assert "\n" not in str(caught.value)


def test_every_kind_is_covered():
    from unembed.audit.stores import MEMBERS

    assert {name.split("-")[0] for name in STORES} >= set(MEMBERS) - {"file", "postgresql"}
    assert PG_STORES
