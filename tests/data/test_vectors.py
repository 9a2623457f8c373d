from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.data.conftest import HashEncoder, contents, finish
from unembed.data import shards as disk
from unembed.data.dataset import Dataset
from unembed.data.encoders.minilm import MiniLM
from unembed.data.text import decode
from unembed.data.tokens import write_tokens
from unembed.data.vectors import write_vectors
from unembed.errors import DataError, EncoderError


@pytest.fixture
def tokens(tmp_path, corpus, tokenizer) -> Path:
    """A dataset folder with 400 texts in 7 shards and no vectors."""
    finish(write_tokens([corpus], tmp_path / "data", tokenizer, shard_size=60))
    return tmp_path / "data"


def stored(folder: Path, name: str) -> tuple[list[list[int]], np.ndarray]:
    """All tokens and vectors, straight from the files."""
    paths = sorted((folder / "tokens").glob("*.parquet"))
    ids = [row for path in paths for row in pq.read_table(path)["tokens"].to_pylist()]
    vectors = [np.stack(pq.read_table(folder / name / path.name)["vector"].to_numpy()) for path in paths]
    return ids, np.concatenate(vectors)


def test_a_vector_is_of_exactly_the_text_of_its_tokens(tokens, tokenizer):
    encoder = HashEncoder()
    steps = list(write_vectors(tokens, encoder, batch=16))
    ids, vectors = stored(tokens, "hashing")
    texts = decode(tokenizer, ids)
    assert vectors.dtype == np.float16
    assert np.array_equal(vectors, HashEncoder().encode(texts).astype(np.float16))
    assert sorted(encoder.seen) == sorted(texts)
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert (steps[-1].done, steps[-1].total) == (400, 400)
    Dataset(tokens).verify()


def test_the_real_encoder_too(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("The Parcel - it's late, 3.5 days. An even longer sentence, (well-known) to all.\n")
    finish(write_tokens([tmp_path / "a.txt"], tmp_path / "data", tokenizer))
    encoder = MiniLM()
    finish(write_vectors(tmp_path / "data", encoder))
    ids, vectors = stored(tmp_path / "data", "minilm")
    assert len(ids) == 2
    expected = encoder.encode(decode(tokenizer, ids))
    assert np.abs(vectors - expected).max() < 2e-3


def test_texts_come_to_the_encoder_by_length(tokens):
    lengths: list[list[int]] = []

    class Watching(HashEncoder):
        def encode(self, texts):
            lengths.append([len(text.split()) for text in texts])
            return super().encode(texts)

    finish(write_vectors(tokens, Watching(), batch=20))
    assert [len(some) for some in lengths[:3]] == [20, 20, 20]
    assert np.mean(lengths[0]) < np.mean(lengths[2])


def test_a_second_encoder_uses_the_same_tokens(tokens):
    before = contents(tokens / "tokens")
    finish(write_vectors(tokens, HashEncoder("one", 4)))
    finish(write_vectors(tokens, HashEncoder("st:me/two", 6)))
    assert contents(tokens / "tokens") == before
    assert (Dataset(tokens, "one").dim, Dataset(tokens, "st:me/two").dim, Dataset(tokens, "st-me-two").dim) == (4, 6, 6)


def test_parts_make_the_same_files_as_one_run(tokens, tmp_path):
    finish(write_vectors(tokens, HashEncoder("whole")))
    for part in (2, 0, 1):
        done = finish(write_vectors(tokens, HashEncoder("parts"), part=(part, 3)))
        assert done.done == done.total
        if part != 1:
            with pytest.raises(DataError, match="lacks"):
                Dataset(tokens, "parts")
    assert done.total == 60 + 60
    Dataset(tokens, "parts").verify()
    one, two = (
        {name: data for name, data in contents(tokens / folder).items() if "parquet" in name}
        for folder in ("whole", "parts")
    )
    assert one.keys() == two.keys()
    assert np.array_equal(stored(tokens, "whole")[1], stored(tokens, "parts")[1])


def test_parts_at_the_same_time_lose_no_record(tokens):
    def work(part: int) -> None:
        finish(write_vectors(tokens, HashEncoder(), part=(part, 7)))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(7)]
    original = disk.write_whole
    try:
        # In threads the process number does not keep the temporary names apart.
        disk.write_whole = lambda path, write: _write_by_thread(path, write)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        disk.write_whole = original
    Dataset(tokens).verify()


def _write_by_thread(path, write):
    part = path.with_name(f".{path.name}.{threading.get_ident()}.tmp")
    write(part)
    time.sleep(0.002)
    part.replace(path)


def test_interrupted_anywhere_it_goes_on_with_the_same_bytes(tokens, tmp_path):
    finish(write_vectors(tokens, HashEncoder("whole"), batch=16))
    for stop in range(1, 30, 3):
        steps = write_vectors(tokens, HashEncoder(), batch=16)
        for _ in zip(range(stop), steps, strict=False):
            pass
        steps.close()
        encoder = HashEncoder()
        finish(write_vectors(tokens, encoder, batch=16))
        assert len(encoder.seen) < 400 or stop <= 4
        found = contents(tokens / "hashing")
        if stop == 1:
            first = found
        assert found == first
        for path in list((tokens / "hashing").glob("*"))[: stop % 5]:  # lost files are made again
            path.unlink()


SCRIPT = """
import sys
from tests.data.conftest import HashEncoder
from unembed.data.vectors import write_vectors
for step in write_vectors(sys.argv[1], HashEncoder(), batch=4):
    print(step.done, flush=True)
"""


def test_kill_9(tokens):
    for wanted in (1, 9, 30):
        with subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tokens)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        ) as child:
            assert child.stdout is not None
            for _ in range(wanted):
                child.stdout.readline()
            child.send_signal(signal.SIGKILL)
    finish(write_vectors(tokens, HashEncoder(), batch=4))
    interrupted = contents(tokens / "hashing")
    for path in (tokens / "hashing").iterdir():
        path.unlink()
    finish(write_vectors(tokens, HashEncoder(), batch=4))
    assert contents(tokens / "hashing") == interrupted


def change(path: Path, **changes) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **changes}))


def test_vectors_of_something_else_are_refused(tokens):
    finish(write_vectors(tokens, HashEncoder()))
    other = HashEncoder()
    other.fingerprint = "f1"
    with pytest.raises(DataError, match="holds vectors of"):
        finish(write_vectors(tokens, other))
    with pytest.raises(DataError, match="holds vectors of"):
        finish(write_vectors(tokens, HashEncoder(dim=9)))
    change(tokens / "hashing" / "manifest.json", tokenizer_sha256="0")
    with pytest.raises(DataError, match="another tokenizer"):
        finish(write_vectors(tokens, HashEncoder()))


def test_files_of_other_tokens_are_made_again(tokens, tmp_path, corpus, tokenizer):
    finish(write_vectors(tokens, HashEncoder()))
    finish(write_tokens([corpus], tmp_path / "other", tokenizer, shard_size=60, exclude=["mail"]))
    (tokens / "hashing").rename(tmp_path / "other" / "hashing")
    (tmp_path / "other" / "hashing" / "manifest.json").unlink()
    finish(write_vectors(tmp_path / "other", HashEncoder()))
    ids, vectors = stored(tmp_path / "other", "hashing")
    assert np.array_equal(vectors, HashEncoder().encode(decode(tokenizer, ids)).astype(np.float16))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda v: v[:, :-1], "shape"),
        (lambda v: v[:-1], "shape"),
        (lambda v: np.where(np.arange(len(v))[:, None] == 3, np.nan, v), "NaN or infinite for row"),
        (lambda v: np.where(np.arange(len(v))[:, None] == 3, -np.inf, v), "NaN or infinite for row"),
        (lambda v: v * 1e6, "too large for float16 for row"),
    ],
)
def test_a_broken_encoder_is_caught(tokens, spoil, message):
    class Broken(HashEncoder):
        def encode(self, texts):
            return spoil(super().encode(texts))

    with pytest.raises(EncoderError, match=message) as error:
        finish(write_vectors(tokens, Broken()))
    assert "00000.parquet" in str(error.value)
    assert not list((tokens / "hashing").glob("*.parquet"))


def test_a_bad_row_is_named_by_its_place_in_the_shard(tokens, tokenizer):
    table = pq.read_table(tokens / "tokens" / "00001.parquet")
    bad = decode(tokenizer, table["tokens"].to_pylist())[17]

    class Broken(HashEncoder):
        def encode(self, texts):
            return np.where([[text == bad] for text in texts], np.nan, super().encode(texts))

    with pytest.raises(EncoderError, match=r"row 17 of .*00001\.parquet"):
        finish(write_vectors(tokens, Broken()))


def test_tokens_must_be_there(tokens, tmp_path):
    with pytest.raises(DataError, match="has no tokens"):
        finish(write_vectors(tmp_path, HashEncoder()))
    change(tokens / "tokens" / "manifest.json", complete=False)
    with pytest.raises(DataError, match="incomplete"):
        finish(write_vectors(tokens, HashEncoder()))


@pytest.mark.parametrize("part", [(1, 1), (-1, 2), (0, 0)])
def test_impossible_parts(tokens, part):
    with pytest.raises(DataError, match="impossible"):
        finish(write_vectors(tokens, HashEncoder(), part=part))


def test_tokens_is_no_name_for_vectors(tokens):
    with pytest.raises(DataError, match="cannot name a folder"):
        finish(write_vectors(tokens, HashEncoder("tokens")))
