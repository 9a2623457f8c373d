"""Vectors from every kind of source, and every way in which they can be wrong."""

import io
import json
import sys
import types

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.decode.conftest import DIM, make_vectors
from unembed.decode.vectors import VectorReader
from unembed.errors import DataError


def read(source, *, normalized=True, column=None, chunk=4, dim=DIM):
    reader = VectorReader(source, dim=dim, normalized=normalized, column=column, chunk=chunk)
    parts = list(reader)
    assert all(len(part.vectors) <= chunk for part in parts)
    assert [part.first for part in parts] == list(np.cumsum([0] + [len(part.vectors) for part in parts])[:-1])
    return reader, np.concatenate([part.vectors for part in parts]) if parts else np.zeros((0, dim), np.float32)


def as_parquet(path, vectors, kind=None):
    kind = kind or pa.list_(pa.from_numpy_dtype(vectors.dtype), vectors.shape[1])
    column = pa.array(list(vectors), type=kind)
    pq.write_table(pa.table({"vector": column, "text": ["x"] * len(vectors)}), path, row_group_size=3)


@pytest.fixture
def vectors():
    return make_vectors(10)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_every_source_gives_the_same_vectors(tmp_path, monkeypatch, vectors, dtype):
    given_ = vectors.astype(dtype)
    np.save(tmp_path / "v.npy", given_)
    np.savez(tmp_path / "v.npz", given_)
    np.savez_compressed(tmp_path / "named.npz", other=given_[:2], embedding=given_)
    native = given_.astype(given_.dtype.newbyteorder("="))
    as_parquet(tmp_path / "v.parquet", native)
    as_parquet(tmp_path / "lists.parquet", native, pa.list_(pa.from_numpy_dtype(native.dtype)))
    lines = [json.dumps(row.tolist()) for row in given_]
    (tmp_path / "v.jsonl").write_text("\n".join(lines) + "\n\n")
    objects = [json.dumps({"id": i, "vector": row.tolist()}) for i, row in enumerate(given_)]
    (tmp_path / "objects.jsonl").write_text("\n".join(objects))
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO("\n".join(lines).encode())))
    files = ["v.npy", "v.npz", "named.npz", "v.parquet", "lists.parquet", "v.jsonl", "objects.jsonl"]
    for source in [*(tmp_path / name for name in files), "-", given_, given_.tolist(), torch.tensor(native)]:
        reader, found = read(source)
        assert found.dtype == np.float32
        assert reader.total in (10, None)
        assert reader.notes == ()
        np.testing.assert_array_equal(found, given_.astype(np.float32), err_msg=str(source))


def test_one_vector_alone_and_bf16_tensors(tmp_path, vectors):
    np.save(tmp_path / "one.npy", vectors[0])
    np.savez(tmp_path / "one.npz", vectors[0])
    for source in (vectors[0], vectors[0].tolist(), tmp_path / "one.npy", tmp_path / "one.npz"):
        np.testing.assert_array_equal(read(source)[1], vectors[:1])
    assert np.allclose(read(torch.tensor(vectors).bfloat16())[1], vectors, atol=4e-3)


def test_int8_is_scaled_to_unit_length_and_said(tmp_path, vectors):
    quantised = np.round(vectors / np.abs(vectors).max() * 127).astype(np.int8)
    np.save(tmp_path / "q.npy", quantised)
    as_parquet(tmp_path / "q.parquet", quantised)
    for source in (quantised, tmp_path / "q.npy", tmp_path / "q.parquet", torch.tensor(quantised)):
        reader, found = read(source)
        assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
        assert np.allclose(found, vectors, atol=0.02)
        assert reader.notes == ("10 int8 vectors were divided by their norm (their scale is not known)",)
    with pytest.raises(DataError, match="scale is not known: give the vectors as float"):
        read(quantised, normalized=False)


def test_other_lengths_are_scaled_and_said_only_for_encoders_of_unit_length(vectors):
    longer = vectors.copy()
    longer[3] *= 7
    longer[8] *= 1.005  # within rounding: left alone
    reader, found = read(longer)
    assert np.allclose(found[3], vectors[3], atol=1e-6)
    np.testing.assert_array_equal(found[8], longer[8])
    assert reader.notes == ("1 vectors were not of unit length, as this encoder's are, and were scaled",)
    np.testing.assert_array_equal(longer[3], vectors[3] * 7)  # the caller's array is untouched
    reader, found = read(longer, normalized=False)
    np.testing.assert_array_equal(found, longer)
    assert reader.notes == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.__setitem__((7, 2), np.nan), "row 7: the vector has NaN or infinite entries: remove the row"),
        (lambda v: v.__setitem__((5, 0), np.inf), "row 5: the vector has NaN or infinite"),
        (lambda v: v.__setitem__(9, 0), "row 9: the vector is zero: remove the row"),
    ],
)
def test_bad_rows_are_named(tmp_path, vectors, change, message):
    change(vectors)
    np.save(tmp_path / "bad.npy", vectors)
    as_parquet(tmp_path / "bad.parquet", vectors)
    for source in (vectors, tmp_path / "bad.npy", tmp_path / "bad.parquet"):
        with pytest.raises(DataError, match=message):
            read(source)


def test_wrong_dimension_shape_and_type(vectors):
    with pytest.raises(DataError, match="the vector has 8 dimensions, this inverter reads 16: choose the inverter"):
        read(vectors[:, :8])
    for odd in (np.zeros((2, 3, 4)), np.float32(1), 3.0):
        with pytest.raises(DataError, match=r"has the shape .*: give vectors as"):
            read(odd)
    with pytest.raises(DataError, match="holds int32: give float16"):
        read(vectors.astype(np.int32))
    with pytest.raises(DataError, match="holds complex"):
        read(vectors.astype(complex))
    with pytest.raises(DataError, match="same number of dimensions"):
        read([[1.0, 2.0], [1.0]])
    with pytest.raises(DataError, match="holds <U"):
        read([["a", "b"]])
    with pytest.raises(DataError, match="not all lists of numbers"):
        read([[None, 1.0]])
    with pytest.raises(DataError, match="row 0: the vector has NaN or infinite"):
        read(np.full((1, DIM), 1e300))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "row 5: not JSON"),
        (b"[1, 2]", "row 5: the vector has 2 dimensions"),
        (b'["a"]', "row 5: the vector is not a list of numbers"),
        (b"[]", "not a list of numbers"),
        (b"[true]", "not a list of numbers"),
        (b"3", "not a list of numbers"),
        (b'{"text": "x"}', "row 5 has no list"),
        (b'{"a": [1], "b": [2]}', "more than one list \\(a, b\\): say which"),
        (b"\xff\xfe", "row 5: not JSON"),
        (b"[NaN" + b", 1" * (DIM - 1) + b"]", "row 5: the vector has NaN"),
    ],
)
def test_bad_lines_are_named(tmp_path, vectors, line, message):
    good = [json.dumps(row.tolist()).encode() for row in vectors[:5]]
    (tmp_path / "v.jsonl").write_bytes(b"\n".join([*good, line]))
    with pytest.raises(DataError, match=message):
        read(tmp_path / "v.jsonl")


def test_columns_are_found_or_asked_for(tmp_path, vectors):
    table = {"a": list(vectors), "b": list(vectors[::-1]), "n": list(range(10))}
    pq.write_table(pa.table(table), tmp_path / "two.parquet")
    np.savez(tmp_path / "two.npz", a=vectors, b=vectors[::-1])
    for name in ("two.parquet", "two.npz"):
        np.testing.assert_array_equal(read(tmp_path / name, column="b")[1], vectors[::-1])
        with pytest.raises(DataError, match=r"more than one .* \(a, b\): say which"):
            read(tmp_path / name)
        with pytest.raises(DataError, match=r"has no .* 'c': it has a, b"):
            read(tmp_path / name, column="c")
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "none.parquet")
    with pytest.raises(DataError, match="has no list column"):
        read(tmp_path / "none.parquet")


def test_ragged_and_missing_rows_of_parquet(tmp_path, vectors):
    rows = [row.tolist() for row in vectors]
    pq.write_table(pa.table({"vector": [*rows[:6], [1.0, 2.0]]}), tmp_path / "ragged.parquet")
    with pytest.raises(DataError, match="row 6: the vector has another number of dimensions"):
        read(tmp_path / "ragged.parquet")
    for broken in (None, [None] * DIM):
        pq.write_table(pa.table({"vector": [*rows[:6], broken]}), tmp_path / "null.parquet")
        with pytest.raises(DataError, match="row 6: the vector is missing"):
            read(tmp_path / "null.parquet")


def test_files_that_are_not_what_they_say(tmp_path, vectors):
    for name in ("v.npy", "v.npz", "v.parquet"):
        (tmp_path / name).write_bytes(b"this is no such file")
        with pytest.raises(DataError, match="can be read"):
            read(tmp_path / name)
    (tmp_path / "v.txt").write_text("x")
    with pytest.raises(DataError, match=r"give \.npy, \.npz, \.parquet or \.jsonl"):
        read(tmp_path / "v.txt")
    with pytest.raises(DataError, match="no file"):
        read(tmp_path / "nothing.npy")
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="can be read"):
        read(tmp_path / "objects.npy")
    np.savez(tmp_path / "objects.npz", np.array([[1, None]], dtype=object))
    with pytest.raises(DataError, match="Python objects"):
        read(tmp_path / "objects.npz")
    np.savez(tmp_path / "deep.npz", np.zeros((2, 3, 4)))
    with pytest.raises(DataError, match="has the shape"):
        read(tmp_path / "deep.npz")
    np.savez(tmp_path / "columns.npz", np.asfortranarray(vectors))
    with pytest.raises(DataError, match="stored by columns"):
        read(tmp_path / "columns.npz")


def test_a_large_file_is_read_in_bounded_memory(tmp_path):
    import tracemalloc

    rows = 40_000
    big = np.lib.format.open_memmap(tmp_path / "big.npy", mode="w+", dtype=np.float32, shape=(rows, DIM))
    big[:] = 0.25
    np.savez(tmp_path / "big.npz", big)
    for name in ("big.npy", "big.npz"):
        tracemalloc.start()
        count = sum(len(part.vectors) for part in VectorReader(tmp_path / name, dim=DIM, chunk=512))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == rows
        assert peak < 600_000  # the whole is 2,560,000 bytes


@settings(max_examples=25, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        st.tuples(st.integers(1, 9), st.just(3)),
        elements=st.floats(-100, 100, width=16),
    )
)
def test_whatever_comes_is_unit_length_or_refused(array):
    zero = (array.astype(np.float32) == 0).all(1)
    if zero.any():
        with pytest.raises(DataError, match=f"row {int(zero.argmax())}: the vector is zero"):
            read(array, dim=3)
    else:
        assert np.allclose(np.linalg.norm(read(array, dim=3)[1], axis=1), 1, atol=1.1e-2)
