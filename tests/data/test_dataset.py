from __future__ import annotations

import json

import numpy as np
import pytest

from tests.data.conftest import HashEncoder, finish
from unembed.data.dataset import Dataset
from unembed.data.text import decode
from unembed.data.tokens import write_tokens
from unembed.data.vectors import write_vectors
from unembed.data.windows import SPLITS, split_of, text_hash
from unembed.errors import DataError


@pytest.fixture
def folder(tmp_path, corpus, tokenizer):
    finish(write_tokens([corpus], tmp_path / "data", tokenizer, shard_size=60))
    finish(write_vectors(tmp_path / "data", HashEncoder()))
    return tmp_path / "data"


def change(path, **changes):
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


def test_it_says_what_it_is(folder, tokenizer):
    data = Dataset(folder)
    info = data.encoder_info
    assert (data.dim, data.shards, data.max_tokens) == (8, 7, 32)
    assert (info.spec, info.dim, info.normalized, info.fingerprint) == ("hashing", 8, True, "f0")
    assert data.tokenizer.encode("hello there").ids == tokenizer.encode("hello there").ids
    assert sum(data.count(split) for split in SPLITS) == sum(data.source_counts.values()) == 400


def test_every_row_is_in_one_split_with_its_own_vector(folder):
    data, texts = Dataset(folder), []
    for split in SPLITS:
        for index in range(data.shards):
            tokens, vectors, sources = data.shard(index, split)
            assert len(tokens) == len(vectors) == len(sources)
            some = decode(data.tokenizer, [row.tolist() for row in tokens])
            assert all(split_of(text_hash(text)) == split for text in some)
            assert set(sources) <= {"news", "mail"}
            if some:
                assert np.array_equal(vectors, HashEncoder().encode(some).astype(np.float16))
            texts += some
    assert len(texts) == len(set(texts)) == 400


def test_samples_are_fixed_by_their_seed(folder):
    data = Dataset(folder)
    one, again, other = (data.sample("train", 50, seed) for seed in (1, 1, 2))
    assert one.texts == again.texts != other.texts
    assert np.array_equal(one.vectors, again.vectors)
    assert len(set(one.texts)) == 50
    assert np.array_equal(one.vectors, HashEncoder().encode(one.texts).astype(np.float16))
    assert decode(data.tokenizer, [row.tolist() for row in one.tokens]) == one.texts
    assert len(data.sample("train", 10_000, 0).texts) == data.count("train")


def test_samples_are_uniform(folder):
    data = Dataset(folder)
    hits = dict.fromkeys(data.sample("train", 10_000, 0).texts, 0)
    for seed in range(40):
        for text in data.sample("train", 40, seed).texts:
            hits[text] += 1
    # 1,600 draws over ~392 rows: 4.1 each; a favoured shard would stand out.
    assert max(hits.values()) < 16
    assert sum(count == 0 for count in hits.values()) < 30


def test_all_is_every_split(folder):
    data = Dataset(folder)
    assert data.count("all") == 400
    drawn = data.sample("all", 400, seed=0)
    assert len(set(drawn.texts)) == 400
    assert {split_of(text_hash(text)) for text in drawn.texts} == {split for split in SPLITS if data.count(split)}


def test_token_counts_are_of_the_training_split(folder):
    data = Dataset(folder)
    rows = [row for index in range(data.shards) for row in data.shard(index, "train")[0]]
    counts = data.token_counts()
    assert counts.shape == (30522,)
    assert counts.dtype == np.int64
    assert np.array_equal(counts, np.bincount(np.concatenate(rows), minlength=30522))


def test_the_fingerprint_changes_with_the_data(folder, tmp_path, corpus, tokenizer):
    before = Dataset(folder).fingerprint
    assert Dataset(folder).fingerprint == before
    finish(write_tokens([corpus], tmp_path / "other", tokenizer, shard_size=60, limit=100))
    finish(write_vectors(tmp_path / "other", HashEncoder()))
    assert Dataset(tmp_path / "other").fingerprint != before


def test_the_encoder_must_be_clear(folder, tmp_path, corpus, tokenizer):
    finish(write_vectors(folder, HashEncoder("second")))
    with pytest.raises(DataError, match="hashing, second"):
        Dataset(folder)
    with pytest.raises(DataError, match=r"unembed encode -o .* --stage vectors --encoder minilm"):
        Dataset(folder, "minilm")
    finish(write_tokens([corpus], tmp_path / "bare", tokenizer))
    with pytest.raises(DataError, match="no vectors"):
        Dataset(tmp_path / "bare")


def test_a_folder_that_is_no_dataset(tmp_path):
    with pytest.raises(DataError, match="is not a dataset"):
        Dataset(tmp_path)


@pytest.mark.parametrize("place", ["tokens", "hashing"])
def test_missing_cut_and_altered_shards(folder, place):
    path = folder / place / "00002.parquet"
    whole = path.read_bytes()
    Dataset(folder).verify()
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"00002\.parquet cannot be read"):
        Dataset(folder).shard(2, "train")
    path.write_bytes((folder / place / "00006.parquet").read_bytes())
    with pytest.raises(DataError, match="40 rows, its manifest says 60"):
        Dataset(folder).shard(2, "train")
    path.write_bytes((folder / place / "00003.parquet").read_bytes())
    with pytest.raises(DataError, match="was altered"):
        Dataset(folder).verify()
    path.unlink()
    with pytest.raises(DataError, match=r"00002\.parquet is missing"):
        Dataset(folder)


@pytest.mark.parametrize("place", ["tokens", "hashing"])
def test_manifests_of_another_kind(folder, place):
    path = folder / place / "manifest.json"
    whole = path.read_text()
    change(path, format=2)
    with pytest.raises(DataError, match="upgrade unembed"):
        Dataset(folder)
    for broken in (whole[:50], "[]", "{}", whole.replace('"rows"', '"lines"'), whole.replace('"kind"', '"sort"')):
        path.write_text(broken)
        with pytest.raises(DataError, match=r"manifest\.json is not"):
            Dataset(folder)


def test_vectors_of_other_tokens(folder):
    change(folder / "hashing" / "manifest.json", tokenizer_sha256="0")
    with pytest.raises(DataError, match="another tokenizer"):
        Dataset(folder)


def test_a_changed_tokenizer_and_incomplete_tokens(folder):
    path = folder / "tokens" / "tokenizer.json"
    whole = path.read_bytes()
    path.write_bytes(whole + b" ")
    with pytest.raises(DataError, match=r"tokenizer\.json was altered"):
        Dataset(folder)
    path.unlink()
    with pytest.raises(DataError, match=r"tokenizer\.json is missing"):
        Dataset(folder)
    path.write_bytes(whole)
    change(folder / "tokens" / "manifest.json", complete=False)
    with pytest.raises(DataError, match="not complete"):
        Dataset(folder)


def test_unknown_and_empty_splits(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("Only one sentence is here.\n")
    finish(write_tokens([tmp_path / "a.txt"], tmp_path / "data", tokenizer))
    finish(write_vectors(tmp_path / "data", HashEncoder()))
    data = Dataset(tmp_path / "data")
    (split,) = [split for split in SPLITS if data.count(split)]
    empty = next(name for name in SPLITS if name != split)
    assert data.shard(0, empty)[1].shape == (0, 8)
    with pytest.raises(DataError, match="no rows in the split"):
        data.sample(empty, 1, 0)
    with pytest.raises(DataError, match="no split 'dev'"):
        data.count("dev")
    assert data.token_counts().sum() == (len(data.shard(0, split)[0][0]) if split == "train" else 0)
