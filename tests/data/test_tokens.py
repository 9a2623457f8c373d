from __future__ import annotations

import functools
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.data.conftest import contents, crash_after, finish, sentence
from unembed.data import shards as disk
from unembed.data import tokens as module
from unembed.data.dedupe import HashSet
from unembed.data.text import decode
from unembed.data.tokens import default_tokenizer, write_tokens
from unembed.data.windows import split_of, text_hash
from unembed.errors import DataError


def rows(folder):
    """All rows of a tokens folder, in order."""
    paths = sorted((folder / "tokens").glob("*.parquet"))
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_shards_hold_each_text_once(tmp_path, corpus, tokenizer):
    done = finish(write_tokens([corpus], tmp_path / "out", tokenizer, shard_size=64))
    found = rows(tmp_path / "out")
    assert (done.done, done.total, done.left_out) == (400, 400, {"duplicate": 40})
    assert len(found) == len({row["hash"] for row in found}) == 400
    texts = decode(tokenizer, [row["tokens"] for row in found])
    assert {text_hash(sentence(number)) for number in range(400)} == {row["hash"] for row in found}
    assert [text_hash(text) for text in texts] == [row["hash"] for row in found]
    assert {row["source"] for row in found} == {"news", "mail"}


def test_manifest_and_files_follow_the_contract(tmp_path, corpus, tokenizer):
    finish(write_tokens([corpus], tmp_path, tokenizer, shard_size=150, max_tokens=10))
    manifest = json.loads((tmp_path / "tokens" / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert manifest["max_tokens"] == 10
    sizes = [shard["rows"] for shard in manifest["shards"]]
    assert sizes == [150, 150, 76]  # cut to 10 tokens, some sentences are the same
    assert sizes == [sum(shard["splits"].values()) for shard in manifest["shards"]]
    assert sum(manifest["counts"]["sources"].values()) == sum(sizes)
    copy = tmp_path / "tokens" / "tokenizer.json"
    assert disk.file_sha256(copy) == manifest["tokenizer_sha256"]
    assert disk.load_tokenizer(copy).truncation is None
    table = pq.read_table(tmp_path / "tokens" / "00000.parquet")
    assert [str(field.type) for field in table.schema] == ["list<element: uint16>", "string", "uint64"]
    assert max(len(row) for row in table["tokens"].to_pylist()) == 10


def test_a_big_vocabulary_needs_wider_tokens(tmp_path):
    vocabulary = {f"w{i}": i for i in range(70_000)} | {"[UNK]": 70_000}
    words = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    (tmp_path / "a.txt").write_text("w69999 w1 w2\nw1 unknown w2\n")
    finish(write_tokens([tmp_path / "a.txt"], tmp_path / "out", words))
    table = pq.read_table(tmp_path / "out" / "tokens" / "00000.parquet")
    assert str(table.schema.field("tokens").type) == "list<element: uint32>"
    assert table["tokens"].to_pylist() == [[69999, 1, 2]]


def test_limit_takes_a_mixture(tmp_path, corpus, tokenizer):
    done = finish(write_tokens([corpus], tmp_path / "out", tokenizer, limit=100, weights={"news": 3, "mail": 1}))
    found = [row["source"] for row in rows(tmp_path / "out")]
    assert (done.done, done.total, len(found)) == (100, 100, 100)
    assert found.count("news") == 72
    held_out = finish(write_tokens([corpus], tmp_path / "held", tokenizer, exclude=["news"]))
    assert held_out.done == 200
    assert {row["source"] for row in rows(tmp_path / "held")} == {"mail"}


def test_one_split_alone(tmp_path, corpus, tokenizer):
    finish(write_tokens([corpus], tmp_path / "all", tokenizer, shard_size=16))
    last = finish(write_tokens([corpus], tmp_path / "one", tokenizer, shard_size=16, split="train"))
    every, some = rows(tmp_path / "all"), rows(tmp_path / "one")
    assert some == [row for row in every if split_of(row["hash"]) == "train"]
    assert last.left_out["of another split"] == len(every) - len(some) > 0
    with pytest.raises(DataError, match="no split 'tests'"):
        finish(write_tokens([corpus], tmp_path / "x", tokenizer, split="tests"))


def test_a_finished_folder_is_left_alone(tmp_path, corpus, tokenizer):
    finish(write_tokens([corpus], tmp_path / "out", tokenizer))
    before = contents(tmp_path / "out")
    assert finish(write_tokens([corpus], tmp_path / "out", tokenizer)).done == 400
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"max_tokens": 16}, "max_tokens"),
        ({"limit": 7}, "limit"),
        ({"shard_size": 3}, "shard_size"),
        ({"exclude": ["mail"]}, "sources"),
        ({"weights": {"mail": 3}}, "sources"),
    ],
)
def test_other_settings_are_refused(tmp_path, corpus, tokenizer, changed, named):
    finish(write_tokens([corpus], tmp_path / "out", tokenizer))
    with pytest.raises(DataError, match=f"begun with another {named}"):
        finish(write_tokens([corpus], tmp_path / "out", tokenizer, **changed))


def test_other_sources_or_tokenizers_are_refused(tmp_path, corpus, tokenizer):
    finish(write_tokens([corpus], tmp_path / "out", tokenizer))
    other = disk.load_tokenizer(tokenizer)
    other.add_tokens(["parcel"])
    with pytest.raises(DataError, match="another tokenizer"):
        finish(write_tokens([corpus], tmp_path / "out", other))
    with (corpus / "news.txt").open("a") as file:
        file.write("One more line here.\n")
    with pytest.raises(DataError, match="another sources"):
        finish(write_tokens([corpus], tmp_path / "out", tokenizer))


@pytest.mark.parametrize(
    "bad", [{"min_tokens": 0}, {"min_tokens": 9, "max_tokens": 8}, {"limit": 0}, {"shard_size": 0}]
)
def test_impossible_settings(tmp_path, corpus, tokenizer, bad):
    with pytest.raises(DataError, match="impossible settings"):
        finish(write_tokens([corpus], tmp_path / "out", tokenizer, **bad))


def test_no_text_and_no_tokenizer(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("\n\nno\n")
    with pytest.raises(DataError, match="no text is left"):
        finish(write_tokens([tmp_path / "a.txt"], tmp_path / "out", tokenizer))
    with pytest.raises(DataError, match=r"is not a tokenizer\.json"):
        finish(write_tokens([tmp_path / "a.txt"], tmp_path / "out", tmp_path / "a.txt"))


def test_shards_without_a_manifest_are_not_overwritten(tmp_path, corpus, tokenizer):
    finish(write_tokens([corpus], tmp_path / "out", tokenizer))
    (tmp_path / "out" / "tokens" / "manifest.json").unlink()
    with pytest.raises(DataError, match="no manifest"):
        finish(write_tokens([corpus], tmp_path / "out", tokenizer))


def test_a_crash_at_any_write_leaves_a_state_to_go_on_from(tmp_path, corpus, tokenizer, monkeypatch):
    monkeypatch.setattr(module, "GROUP_RECORDS", 7)
    finish(write_tokens([corpus], tmp_path / "whole", tokenizer, shard_size=60))
    whole = contents(tmp_path / "whole")
    # From here on with the hashes of most texts in files, where a crash loses them.
    monkeypatch.setattr(module, "HashSet", functools.partial(HashSet, slots=64))
    # Tokenizer, manifest, then shard and manifest for each of 7 shards: 16 writes.
    for survive in range(16):
        out = tmp_path / str(survive)
        with crash_after(survive):
            finish(write_tokens([corpus], out, tokenizer, shard_size=60))
        steps = write_tokens([corpus], out, tokenizer, shard_size=60)
        for _ in zip(range(survive % 4), steps, strict=False):  # and stopped once more, between two writes
            pass
        steps.close()
        finish(write_tokens([corpus], out, tokenizer, shard_size=60))
        assert contents(out) == whole


def test_a_folder_without_shards_can_begin_anew(tmp_path, corpus, tokenizer):
    (tmp_path / "broken.jsonl").write_text("{")
    with pytest.raises(DataError, match="row 1"):
        finish(write_tokens([tmp_path / "broken.jsonl"], tmp_path / "out", tokenizer, max_tokens=9))
    assert finish(write_tokens([corpus], tmp_path / "out", tokenizer)).done == 400
    assert disk.load_manifest(tmp_path / "out" / "tokens", disk.TokensManifest).max_tokens == 32


SCRIPT = """
import sys
from unembed.data.tokens import write_tokens
print("begin", flush=True)
for step in write_tokens([sys.argv[1]], sys.argv[2], sys.argv[3], shard_size=8):
    pass
"""


def test_kill_9_at_random_moments(tmp_path, corpus, tokenizer):
    command = [sys.executable, "-c", SCRIPT, str(corpus)]
    file = str(default_tokenizer())
    finish(write_tokens([corpus], tmp_path / "whole", file, shard_size=8))
    rng, killed, out = random.Random(0), 0, tmp_path / "out"
    for _ in range(4):
        root = Path(__file__).parents[2]
        with subprocess.Popen([*command, str(out), file], stdout=subprocess.PIPE, cwd=root) as child:
            assert child.stdout is not None
            child.stdout.readline()
            started = time.monotonic()
            shards = len(list(out.glob("tokens/*.parquet")))
            # Let it write a few more shards, then strike at some moment.
            while len(list(out.glob("tokens/*.parquet"))) < shards + 3 and child.poll() is None:
                assert time.monotonic() - started < 60
                time.sleep(0.001)
            time.sleep(rng.random() * 0.02)
            child.send_signal(signal.SIGKILL)
        killed += child.returncode == -signal.SIGKILL
    assert killed
    finish(write_tokens([corpus], out, file, shard_size=8))
    assert contents(out) == contents(tmp_path / "whole")


def test_a_lost_shard_is_named_when_going_on(tmp_path, corpus, tokenizer):
    steps = write_tokens([corpus], tmp_path / "out", tokenizer, shard_size=60)
    next(steps)
    steps.close()
    shard = tmp_path / "out" / "tokens" / "00000.parquet"
    assert shard.exists()
    shard.unlink()
    with pytest.raises(DataError, match=r"00000\.parquet is missing"):
        finish(write_tokens([corpus], tmp_path / "out", tokenizer, shard_size=60))
