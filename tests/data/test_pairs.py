from __future__ import annotations

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.conftest import HashEncoder, contents, crash_after, finish, sentence
from unembed.data import pairs as module
from unembed.data.dataset import Dataset
from unembed.data.pairs import write_pairs
from unembed.data.vectors import write_vectors
from unembed.data.windows import SPLITS
from unembed.errors import DataError

TEXTS = [sentence(number).lower() for number in range(50)]
VECTORS = HashEncoder(dim=5).encode(TEXTS)


def save(path, texts=TEXTS, vectors=VECTORS):
    """Write pairs in the format that the suffixes name."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table({"text": texts, "vector": list(vectors)}), path, row_group_size=20)
    elif ".jsonl" in path.name:
        rows = [{"text": text, "vector": np.asarray(v).tolist()} for text, v in zip(texts, vectors, strict=True)]
        data = "\n".join(json.dumps(row) for row in rows).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    else:
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
        np.save(path.with_suffix(".npy"), vectors)
    return path


def everything(folder):
    """All rows of a dataset by text."""
    data = Dataset(folder)
    found = [data.sample(split, 10_000, 0) for split in SPLITS if data.count(split)]
    return {text: vector for some in found for text, vector in zip(some.texts, some.vectors, strict=True)}


@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl", "p.jsonl.gz", "p.txt"])
def test_every_format_gives_the_same_dataset(tmp_path, tokenizer, name):
    done = finish(write_pairs([save(tmp_path / name)], tmp_path / "out", tokenizer, "ours", shard_size=16))
    assert (done.done, done.left_out) == (50, {})
    data = Dataset(tmp_path / "out")
    data.verify()
    assert (data.dim, data.encoder_info.spec, data.encoder_info.normalized, data.shards) == (5, "ours", True, 4)
    assert data.source_counts == {"p": 50}
    found = everything(tmp_path / "out")
    assert found.keys() == set(TEXTS)
    for text, vector in zip(TEXTS, VECTORS, strict=True):
        assert np.array_equal(found[text], vector.astype(np.float16))


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float16(), 5)])
def test_every_kind_of_list_column(tmp_path, tokenizer, kind):
    number = np.float16 if kind.value_type == pa.float16() else np.float64
    column = pa.array([row.astype(number) for row in VECTORS], kind)
    table = pa.table({"body": TEXTS, "emb": column})
    pq.write_table(table, tmp_path / "p.parquet", row_group_size=30)
    finish(
        write_pairs(
            [tmp_path / "p.parquet"], tmp_path / "out", tokenizer, "ours", text_column="body", vector_column="emb"
        )
    )
    found = everything(tmp_path / "out")
    assert all(np.array_equal(found[t], v.astype(np.float16)) for t, v in zip(TEXTS, VECTORS, strict=True))


def test_several_files_limit_and_plain_numbers(tmp_path, tokenizer):
    save(tmp_path / "a.jsonl", TEXTS[:30], np.round(VECTORS[:30] * 100).astype(int))
    save(tmp_path / "b.txt", TEXTS[20:], np.round(VECTORS[20:] * 100).astype(np.int8))
    files = [tmp_path / "a.jsonl", tmp_path / "b.txt"]
    done = finish(write_pairs(files, tmp_path / "out", tokenizer, "ours", shard_size=8))
    assert (done.done, done.left_out) == (50, {"duplicate": 10})
    assert not Dataset(tmp_path / "out").encoder_info.normalized
    assert Dataset(tmp_path / "out").source_counts == {"a": 30, "b": 20}
    assert finish(write_pairs(files, tmp_path / "few", tokenizer, "ours", limit=33)).done == 33


def test_what_is_left_out_is_counted(tmp_path, tokenizer):
    texts = ["short and good", "long " * 33, "Short  and GOOD", "𐎠𐎡 is unknown", "[MASK] is no word", "the last one"]
    save(tmp_path / "p.jsonl", texts, VECTORS[:6])
    done = finish(write_pairs([tmp_path / "p.jsonl"], tmp_path / "out", tokenizer, "ours"))
    assert done.done == 2
    assert done.left_out == {"too long": 1, "duplicate": 1, "unknown to the tokenizer": 2}


BAD = {
    "empty text": ("   ", VECTORS[3].tolist(), "the text is empty"),
    "no vector": ("fine text here", None, "there is no vector"),
    "not finite": ("fine text here", [1, 2, float("nan"), 4, 5], "NaN or infinite"),
    "ragged": ("fine text here", [1, 2, 3], "has 3 numbers, those before it have 5"),
    "zero vector": ("fine text here", [0, 0, 0.0, 0, 0], "the vector is zero"),
    "too large": ("fine text here", [1e6, 0, 0, 0, 0], "too large for float16"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_every_bad_row_is_named_or_counted(tmp_path, tokenizer, kind, suffix):
    text, vector, message = BAD[kind]
    path = tmp_path / f"p.{suffix}"
    rows = [{"text": t, "vector": v.tolist()} for t, v in zip(TEXTS, VECTORS, strict=True)]
    rows.insert(7, {"text": text, "vector": vector})
    if suffix == "jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    with pytest.raises(DataError, match=f"row 8: .*{message}"):
        finish(write_pairs([path], tmp_path / "out", tokenizer, "ours", shard_size=3))
    # The same folder goes on when bad rows are to be skipped.
    done = finish(write_pairs([path], tmp_path / "out", tokenizer, "ours", shard_size=3, skip_bad=True))
    assert (done.done, done.left_out) == (50, {kind: 1})
    Dataset(tmp_path / "out").verify()


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        ('{"text": 5, "vector": [1, 2, 3, 4, 5]}', "not a text", "not a string but int"),
        ('{"text": null, "vector": [1, 2, 3, 4, 5]}', "empty text", "the text is empty"),
        ('{"text": "fine here", "vector": ["1", "2"]}', "no vector", "not a list of numbers"),
        ('{"text": "fine here", "vector": [[1, 2], [3]]}', "no vector", "not a list of numbers"),
        ('{"text": "fine here", "vector": [1, null]}', "no vector", "not a list of numbers"),
        ('{"text": "fine here", "vector": []}', "no vector", "not a list of numbers"),
        ('{"text": "fine here", "vector": 3}', "no vector", "not a list of numbers"),
        ('{"text": "fine here", "vector": [Infinity, 1, 1, 1, 1]}', "not finite", "NaN or infinite"),
    ],
)
def test_json_can_hold_anything(tmp_path, tokenizer, row, kind, message):
    path = save(tmp_path / "p.jsonl")
    path.write_text(path.read_text() + "\n" + row)
    with pytest.raises(DataError, match=f"row 51: .*{message}"):
        finish(write_pairs([path], tmp_path / "a", tokenizer, "ours"))
    assert finish(write_pairs([path], tmp_path / "b", tokenizer, "ours", skip_bad=True)).left_out == {kind: 1}


def test_a_declared_dimension_is_kept_to(tmp_path, tokenizer):
    path = save(tmp_path / "p.parquet")
    with pytest.raises(DataError, match="row 1: the vector has 5 numbers, not 4"):
        finish(write_pairs([path], tmp_path / "a", tokenizer, "ours", dim=4))
    with pytest.raises(DataError, match=r"no text is left .*wrong dimension: 50"):
        finish(write_pairs([path], tmp_path / "b", tokenizer, "ours", dim=4, skip_bad=True))


def test_broken_files(tmp_path, tokenizer):
    def fails(path, message):
        with pytest.raises(DataError, match=message):
            finish(write_pairs([path], tmp_path / "out", tokenizer, "ours"))

    fails(tmp_path / "none.jsonl", "is not a file")
    (tmp_path / "p.csv").write_text("a,b")
    fails(tmp_path / "p.csv", "is not .parquet, .jsonl")
    (tmp_path / "alone.txt").write_text("a line\n")
    fails(tmp_path / "alone.txt", "needs its vectors beside it")
    for count, message in ((49, "more lines than"), (51, "has 50 lines, but .* has 51 rows")):
        path = save(tmp_path / f"{count}.txt", vectors=np.ones((count, 3)))
        with pytest.raises(DataError, match=message):
            finish(write_pairs([path], tmp_path / str(count), tokenizer, "ours"))
    for name, array in (("flat", np.ones(50)), ("words", np.array([["a"]] * 50))):
        path = save(tmp_path / f"{name}.txt", vectors=array)
        with pytest.raises(DataError, match=r"must be numbers, \(rows, dim\)"):
            finish(write_pairs([path], tmp_path / name, tokenizer, "ours"))
    path = save(tmp_path / "pickled.txt", vectors=np.array([[None]] * 50))
    with pytest.raises(DataError, match="cannot be read as an array"):
        finish(write_pairs([path], tmp_path / "pickled", tokenizer, "ours"))
    with pytest.raises(DataError, match="no column 'emb'; it has: text, vector"):
        finish(write_pairs([save(tmp_path / "p.parquet")], tmp_path / "x", tokenizer, "ours", vector_column="emb"))
    with pytest.raises(DataError, match="row 1: no 'emb'"):
        finish(write_pairs([save(tmp_path / "p.jsonl")], tmp_path / "y", tokenizer, "ours", vector_column="emb"))


@pytest.mark.parametrize("name", ["p.parquet", "p.jsonl", "p.txt"])
def test_a_crash_at_any_write_leaves_a_state_to_go_on_from(tmp_path, tokenizer, monkeypatch, name):
    monkeypatch.setattr(module, "BATCH", 7)
    vectors = list(VECTORS)
    if name != "p.txt":
        vectors[11] = np.ones(2, dtype=np.float32)  # one ragged row
    path = save(tmp_path / name, [*TEXTS[:40], *TEXTS[:10]], vectors)

    def run(out):
        return finish(write_pairs([path], out, tokenizer, "ours", shard_size=6, skip_bad=True))

    whole_run = run(tmp_path / "whole")
    whole = contents(tmp_path / "whole")
    for survive in range(0, 24, 3):
        with crash_after(survive):
            run(tmp_path / str(survive))
        again = run(tmp_path / str(survive))
        assert contents(tmp_path / str(survive)) == whole
        assert again.left_out == whole_run.left_out


def test_another_file_or_setting_is_refused(tmp_path, tokenizer):
    path = save(tmp_path / "p.jsonl")
    finish(write_pairs([path], tmp_path / "out", tokenizer, "ours"))
    assert finish(write_pairs([path], tmp_path / "out", tokenizer, "ours")).done == 50
    with pytest.raises(DataError, match="another encoder"):
        finish(write_pairs([path], tmp_path / "out", tokenizer, "theirs"))
    path.write_text(path.read_text() + "\n")
    with pytest.raises(DataError, match="another pairs"):
        finish(write_pairs([path], tmp_path / "out", tokenizer, "ours"))


def test_a_second_encoder_can_be_added_to_pairs(tmp_path, tokenizer):
    finish(write_pairs([save(tmp_path / "p.txt")], tmp_path / "out", tokenizer, "ours", shard_size=16))
    finish(write_vectors(tmp_path / "out", HashEncoder("second", 3)))
    assert Dataset(tmp_path / "out", "second").dim == 3
    assert Dataset(tmp_path / "out", "ours").dim == 5
