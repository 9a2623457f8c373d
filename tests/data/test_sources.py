from __future__ import annotations

import gzip
import json
import lzma
import sys
import types
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unembed.data import sources as module
from unembed.data.sources import Source, find_sources, mix
from unembed.errors import DataError, MissingExtraError

LINES = ["first line", "zweite Zeile äöü", "第三行", "", "last"]


def write(path, lines=LINES):
    """Write lines in the format that the suffixes name."""
    name = path.name
    if ".parquet" in name:
        pq.write_table(pa.table({"text": lines, "other": list(range(len(lines)))}), path, row_group_size=2)
        return path
    rows = [json.dumps({"text": line}, ensure_ascii=False) for line in lines] if ".jsonl" in name else lines
    data = ("\n".join(rows) + "\n").encode()
    if name.endswith(".xz"):
        data = lzma.compress(data)
    elif name.endswith(".gz"):
        data = gzip.compress(data)
    elif name.endswith(".zst"):
        data = pa.compress(data, "zstd", asbytes=True)
    path.write_bytes(data)
    return path


FORMATS = [
    "txt", "txt.xz", "txt.gz", "txt.zst", "jsonl", "jsonl.xz", "jsonl.gz", "jsonl.zst", "parquet",
]  # fmt: skip


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_reads_the_same_from_any_start(tmp_path, suffix):
    (source,) = find_sources([write(tmp_path / f"a.b.{suffix}")])
    assert source.name == "a.b"
    assert [text.rstrip("\n") for text in source.read(0)] == LINES
    for start in range(len(LINES) + 2):
        assert [text.rstrip("\n") for text in source.read(start)] == LINES[start:]


def test_a_byte_order_mark_is_not_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfhello\r\n")
    assert [text.strip() for text in find_sources([path])[0].read(0)] == ["hello"]


def test_a_file_without_line_breaks_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_LINE", 10)
    (tmp_path / "a.txt").write_text("x" * 35)
    source = find_sources([tmp_path])[0]
    assert [len(text) for text in source.read(0)] == [10, 10, 10, 5]
    assert [len(text) for text in source.read(2)] == [10, 5]


def test_folders_are_recursive_sorted_and_name_twins_by_folder(tmp_path):
    for name in ("de/mixed.txt", "en/mixed.txt", "en/news.jsonl", "en/notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name)
    assert [source.name for source in find_sources([tmp_path])] == ["de/mixed", "en/mixed", "news"]
    assert [source.name for source in find_sources([tmp_path], exclude=["mixed"])] == ["news"]
    assert [source.name for source in find_sources([tmp_path], exclude=["de/mixed", "news"])] == ["en/mixed"]
    # A file that is named twice is read once.
    assert len(find_sources([tmp_path, tmp_path / "en" / "news.jsonl"])) == 3


def test_very_many_files_become_one_source_per_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_OPEN", 3)
    for name in "abcd":
        write(tmp_path / f"{name}.txt", [name + "1", name + "2"])
    (source,) = find_sources([tmp_path])
    assert source.name == tmp_path.name
    assert [text.strip() for text in source.read(3)] == ["b2", "c1", "c2", "d1", "d2"]


def test_weights(tmp_path):
    write(tmp_path / "a.txt", ["x" * 99])
    write(tmp_path / "b.txt", ["x" * 399])
    assert [source.weight for source in find_sources([tmp_path])] == [10, 20]
    assert [source.weight for source in find_sources([tmp_path], weights={"b": 5})] == [10, 5]


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_impossible_weights_are_refused(tmp_path, bad):
    write(tmp_path / "a.txt")
    with pytest.raises(DataError, match="weight of a"):
        find_sources([tmp_path], weights={"a": bad})


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=5),
    weights=st.lists(st.floats(0.1, 50), min_size=5, max_size=5),
    cut=st.integers(0, 150),
)
@settings(max_examples=100, deadline=None)
def test_the_mixture_goes_on_from_counts_alone(sizes, weights, cut):
    def make(index: int, size: int) -> Source:
        rows = [f"{index}.{row}" for row in range(size)]
        return Source(str(index), weights[index], "", lambda start: iter(rows[start:]))

    sources = [make(index, size) for index, size in enumerate(sizes)]
    whole = list(mix(sources, [0] * len(sources)))
    assert sorted(text for _, text in whole) == sorted(f"{i}.{r}" for i, size in enumerate(sizes) for r in range(size))
    head = whole[:cut]
    taken = [sum(index == place for place, _ in head) for index in range(len(sources))]
    assert head + list(mix(sources, taken)) == whole


def test_the_mixture_keeps_the_weights_at_every_prefix():
    endless = [Source(name, weight, "", lambda start: iter(lambda: "x", "")) for name, weight in (("a", 3), ("b", 1))]
    first = [index for index, _ in islice(mix(endless, [0, 0]), 400)]
    assert first[:100].count(0) == 75
    assert first.count(0) == 300


def test_bad_files_are_named(tmp_path):
    cases = {
        "cut.txt.xz": lzma.compress(b"hello\n" * 5000)[:-20],
        "cut.txt.gz": gzip.compress(b"hello\n" * 5000)[:-20],
        "cut.txt.zst": pa.compress(b"hello\n" * 5000, "zstd", asbytes=True)[:-5],
        "bad.txt.zst": b"not packed at all",
        "latin.txt": "Zürich".encode("latin-1"),
        "bad.parquet": b"PAR1 no",
        "list.jsonl": b"[1]\n",
        "broken.jsonl": b'{"text": "a"}\n{"text": \n',
        "column.jsonl": b'{"body": "a"}\n',
        "number.jsonl": b'{"text": 3}\n',
    }
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=name) as error:
            list(find_sources([tmp_path / name])[0].read(0))
        assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="row 2"):
        list(find_sources([tmp_path / "broken.jsonl"])[0].read(0))
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="no column 'text'; it has: body"):
        list(find_sources([tmp_path / "other.parquet"])[0].read(0))


def test_bad_requests(tmp_path):
    write(tmp_path / "a.txt")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.pdf").write_bytes(b"")
    for specs, exclude, message in (
        ([tmp_path / "none.txt"], [], "does not exist"),
        ([tmp_path / "a.pdf"], [], "is not .txt"),
        ([tmp_path / "empty"], [], "holds no"),
        ([tmp_path / "a.txt"], ["b"], "no source 'b'; known: a"),
        ([tmp_path / "a.txt"], ["a"], "no source is left"),
        ([], [], "no source is left"),
        (["hf:some/data?langage=en"], [], "unknown option 'langage'"),
        (["hf:some/data?languages=en"], [], "allenai/c4 only"),
    ):
        with pytest.raises(DataError, match=message):
            find_sources(specs, exclude=exclude)


class FakeHub(types.ModuleType):
    """Stands in for `datasets`: streams of numbered texts that know how to skip."""

    class Rows(list):
        def skip(self, n):
            return self[n:]

    def __init__(self) -> None:
        super().__init__("datasets")
        self.calls: list[tuple] = []

    def load_dataset(self, path, name=None, *, data_files, split, streaming, revision):
        assert streaming
        self.calls.append((path, name, data_files, split, revision))
        return self.Rows({"text": f"{name or data_files[split]} {i}", "url": ""} for i in range(5))


def test_hub_datasets_are_streamed(monkeypatch):
    hub = FakeHub()
    monkeypatch.setitem(sys.modules, "datasets", hub)
    (c4,) = find_sources(["hf:allenai/c4"])
    assert (c4.name, c4.weight, list(c4.read(3))) == ("c4-en", 1.0, ["en 3", "en 4"])
    (other,) = find_sources(["hf:me/mine?config=x&split=test&revision=v1"])
    assert next(other.read(0)) == "x 0"
    assert hub.calls == [("allenai/c4", "en", None, "train", None), ("me/mine", "x", None, "test", "v1")]


def test_mc4_is_a_mixture_of_the_papers_languages(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", FakeHub())
    languages = "en,zh,de,fr,ja,es,ru,ko,ar,pt"
    named = find_sources([f"hf:allenai/c4?languages={languages}"], weights={"c4-zh": 2})
    assert [source.name for source in named] == [f"c4-{language}" for language in languages.split(",")]
    assert [source.name for source in find_sources(["hf:allenai/c4?languages=paper"])] == [s.name for s in named]
    first = [named[index].name for index, _ in islice(mix(named, [0] * 10), 22)]
    assert first.count("c4-zh") == 4
    assert first.count("c4-en") == 2
    assert next(named[1].read(0)) == "multilingual/c4-zh.tfrecord-*.json.gz 0"


def test_c4_and_mc4_as_their_repository_has_them(tmp_path, monkeypatch):
    """The real library on a folder with the layout of allenai/c4: mixed by weight, validation files left alone."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "allenai" / "c4"
    for name, texts in {
        "en/c4-train.00000-of-01024": ["english 0", "english 1"],
        "en/c4-validation.00000-of-00008": ["not for training"],
        "multilingual/c4-de.tfrecord-00000-of-02048": ["deutsch 0", "deutsch 1"],
        "multilingual/c4-de.tfrecord-00001-of-02048": ["deutsch 2"],
        "multilingual/c4-de-validation.tfrecord-00000-of-00016": ["nicht zum Lernen"],
        "multilingual/c4-pt.tfrecord-00000-of-00256": [f"português {row}" for row in range(9)],
    }.items():
        path = folder / f"{name}.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [json.dumps({"text": text, "timestamp": "2019-04-25T12:57:54Z", "url": "u"}) for text in texts]
        path.write_bytes(gzip.compress("\n".join(rows).encode()))
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/c4-train.*.json.gz\n"
        "  - split: validation\n    path: en/c4-validation.*.json.gz\n---\n"
    )
    (english,) = find_sources(["hf:allenai/c4"])
    assert list(english.read(0)) == ["english 0", "english 1"]
    both = find_sources(["hf:allenai/c4?languages=de,pt"], weights={"c4-pt": 3})
    mixed = [text for _, text in mix(both, [0, 0])]
    assert [text for text in mixed if "deutsch" in text] == ["deutsch 0", "deutsch 1", "deutsch 2"]
    assert sum("português" in text for text in mixed[:8]) == 6
    assert list(both[0].read(2)) == ["deutsch 2"]


def test_without_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'unembed\[hf\]'"):
        next(find_sources(["hf:allenai/c4"])[0].read(0))


def test_a_real_streaming_dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    pytest.importorskip("datasets")
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "part.jsonl")
    (source,) = find_sources([f"hf:{folder}"])
    assert list(source.read(0)) == LINES
    assert list(source.read(2)) == LINES[2:]
    with pytest.raises(DataError, match="row 1: no 'body'"):
        list(find_sources([f"hf:{folder}?text=body"])[0].read(0))
    with pytest.raises(DataError, match="cannot be read"):
        list(find_sources([f"hf:{folder / 'none'}"])[0].read(0))
