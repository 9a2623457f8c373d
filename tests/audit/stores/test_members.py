"""What only one store has: quantisers of FAISS, sidecars, versions of Lance, locks, telemetry."""

from __future__ import annotations

import json
import socket

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.audit.stores.conftest import (
    DIM,
    Rows,
    fill_chroma,
    fill_faiss,
    fill_jsonl,
    fill_lancedb,
    fill_milvus,
    fill_npy,
    fill_parquet,
    fill_qdrant,
    good_rows,
    hashes,
)
from unembed.audit.stores import StoreOptions, open_store
from unembed.errors import DataError


def clustered(rows: int = 600, dim: int = 32) -> Rows:
    """Vectors with structure, as embeddings have."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((rows, 6)) @ rng.standard_normal((6, dim)) + 0.5 * rng.standard_normal((rows, dim))
    return Rows(list((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)), ["t"] * rows)


class TestFaiss:
    @pytest.mark.parametrize(
        ("factory", "off"),
        [
            ("SQ8", 1e-4),
            ("SQ4", 1e-3),
            ("IVF8,SQ4", 2e-3),
            ("HNSW8,SQ4", 1e-3),
            ("SQfp16", 1e-4),
            ("PQ8x4", 0.01),
            ("IVF8,PQ8x4", 0.01),
            ("PCA16,Flat", 1e-3),
            ("PCA16,IVF8,SQ8", 2e-3),
        ],
    )
    def test_loss_from_the_index_alone_is_the_true_one(self, factory, off, tmp_path):
        rows = clustered()
        place = fill_faiss(factory)(tmp_path, rows)
        with open_store(place.spec) as store:
            assert store.describe().quantisation
            sample = store.sample(600, 0)
        true = np.stack([rows.vectors[int(name)] for name in sample.ids])
        cosines = (true * sample.vectors).sum(1) / np.linalg.norm(sample.vectors, axis=1)
        assert sample.loss.cosine == pytest.approx(float(cosines.mean()), abs=off)
        assert not sample.loss.exact

    @pytest.mark.parametrize("factory", ["Flat", "HNSW8", "IVF8,Flat", "PQ8x4,RFlat", "IDMap2,IVF8,Flat"])
    def test_no_loss(self, factory, tmp_path):
        rows = clustered()
        place = fill_faiss(factory)(tmp_path, rows)
        with open_store(place.spec) as store:
            assert store.describe().quantisation is None
            sample = store.sample(50, 0)
        assert sample.loss is None
        np.testing.assert_array_equal(sample.vectors, np.stack([rows.vectors[int(name)] for name in sample.ids]))
        assert ("refine" in "".join(sample.notes)) == ("RFlat" in factory)

    @pytest.mark.parametrize("factory", ["LSH", "RQ2x4"])
    def test_loss_that_is_unknown_is_said(self, factory, tmp_path):
        place = fill_faiss(factory)(tmp_path, clustered())
        with open_store(place.spec) as store:
            sample = store.sample(50, 0)
        assert sample.loss is None
        assert "cannot be told" in sample.notes[0]

    def test_fast_scan_is_refused_and_does_not_end_the_process(self, tmp_path):
        place = fill_faiss("IVF8,PQ8x4fs")(tmp_path, clustered())
        with pytest.raises(DataError, match="fast-scan"):
            open_store(place.spec)

    def test_binary(self, tmp_path):
        faiss = pytest.importorskip("faiss")
        signs = np.random.default_rng(0).standard_normal((40, 64)) > 0
        index = faiss.IndexBinaryFlat(64)
        index.add(np.packbits(signs, axis=1))
        faiss.write_index_binary(index, str(tmp_path / "b.faiss"))
        with open_store(str(tmp_path / "b.faiss")) as store:
            assert store.describe().dtype == "binary"
            np.testing.assert_array_equal(store.sample(40, 0).vectors, np.where(signs, 1.0, -1.0))

    def test_own_ids(self, tmp_path):
        faiss = pytest.importorskip("faiss")
        index = faiss.IndexIDMap(faiss.IndexFlatIP(DIM))
        index.add_with_ids(np.stack(good_rows(5).vectors), np.array([7, 99, 12, 3, 5]))
        faiss.write_index(index, str(tmp_path / "i.faiss"))
        texts = tmp_path / "t.jsonl"
        texts.write_text("".join(json.dumps({"id": name, "text": f"t{name}"}) + "\n" for name in (3, 99, 7, 1000)))
        with open_store(str(tmp_path / "i.faiss"), StoreOptions(texts=texts)) as store:
            assert store.describe().metric == "ip"
            sample = store.sample(5, 0)
        assert sample.ids == ["7", "99", "12", "3", "5"]
        assert sample.texts == ["t7", "t99", None, "t3", None]

    def test_cut_off(self, tmp_path):
        place = fill_faiss("Flat")(tmp_path, good_rows(50))
        path = tmp_path / "v.faiss"
        path.write_bytes(path.read_bytes()[:500])
        with pytest.raises(DataError, match="no FAISS index") as caught:
            open_store(place.spec)
        assert "\n" not in str(caught.value)


class TestTexts:
    def open(self, tmp_path, name, content, **options):
        np.save(tmp_path / "v.npy", np.eye(3, dtype=np.float16))
        (tmp_path / name).write_text(content)
        return open_store(str(tmp_path / "v.npy"), StoreOptions(texts=tmp_path / name, **options)).sample(3, 0)

    def test_json_and_names(self, tmp_path):
        assert self.open(tmp_path, "t.jsonl", '"a"\n"b"\n\n"c"\n').texts == ["a", "b", "c"]
        sample = self.open(tmp_path, "t.jsonl", '{"q": "a"}\n{"q": null}\n{"q": ""}\n', text="q")
        assert sample.texts == ["a", None, None]
        assert sample.dtype == "float16"

    def test_parquet(self, tmp_path):
        pq.write_table(pa.table({"id": [2, 1, 0], "content": ["c", "b", "a"]}), tmp_path / "t.parquet")
        np.save(tmp_path / "v.npy", np.eye(3))
        with open_store(str(tmp_path / "v.npy"), StoreOptions(texts=tmp_path / "t.parquet")) as store:
            assert store.sample(3, 0).texts == ["a", "b", "c"]

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("t.txt", "a\nb\n", "2 texts for 3 vectors"),
            ("t.jsonl", '"a"\nnot json\n', "row 1: not JSON"),
            ("t.jsonl", '{"url": "a"}\n', "usual name"),
            ("t.jsonl", '{"id": 77, "text": "a"}\n', "no text of the sampled ids"),
            ("t.csv", "a", "cannot be read from"),
            ("t.parquet", "a", "no Parquet"),
        ],
    )
    def test_bad_sidecar(self, name, content, message, tmp_path):
        with pytest.raises(DataError, match=message):
            self.open(tmp_path, name, content)


class TestFiles:
    @pytest.mark.parametrize("fill", [fill_npy, fill_parquet, fill_jsonl])
    def test_a_file_that_changes_while_it_is_read(self, fill, tmp_path):
        place = fill(tmp_path, good_rows(30))
        path = next(file for file in tmp_path.iterdir() if file.stem == "v")
        with open_store(place.spec, place.options) as store:
            with path.open("ab") as file:
                file.write(b"\n")
            with pytest.raises(DataError, match="changed while it was read"):
                store.sample(5, 0)

    @pytest.mark.parametrize("fill", [fill_npy, fill_parquet])
    def test_cut_off(self, fill, tmp_path):
        place = fill(tmp_path, good_rows(30))
        path = next(file for file in tmp_path.iterdir() if file.stem == "v")
        with open_store(place.spec, place.options) as store:
            path.write_bytes(path.read_bytes()[:700])
            with pytest.raises(DataError, match=r"cut|cannot be read|changed"):
                store.sample(30, 0)
        with pytest.raises(DataError, match=r"cut off|cannot be read"):
            open_store(place.spec, place.options)

    @pytest.mark.parametrize(
        "array", [np.zeros((2, 2, 2)), np.zeros(3), np.array([["a"]]), np.asfortranarray(np.eye(4))]
    )
    def test_arrays_that_are_none(self, array, tmp_path):
        np.save(tmp_path / "v.npy", array)
        with pytest.raises(DataError, match=r"give vectors|by columns"):
            open_store(str(tmp_path / "v.npy"))

    def test_pickle_is_refused(self, tmp_path):
        np.save(tmp_path / "v.npy", np.array([[{}]]), allow_pickle=True)
        with pytest.raises(DataError, match="Python objects"):
            open_store(str(tmp_path / "v.npy"))

    def test_types_are_told(self, tmp_path):
        vectors = np.arange(12, dtype=np.int8).reshape(3, 4) - 5
        kind = pa.list_(pa.int8(), 4)
        pq.write_table(pa.table({"v": pa.array(vectors.tolist(), kind)}), tmp_path / "v.parquet")
        with open_store(str(tmp_path / "v.parquet")) as store:
            sample = store.sample(3, 0)
            assert (store.describe().dtype, store.describe().dim, store.describe().text_field) == ("int8", 4, None)
        np.testing.assert_array_equal(sample.vectors, vectors)
        assert not sample.normalised


def test_lance_is_read_at_one_version(tmp_path):
    lancedb = pytest.importorskip("lancedb")
    place = fill_lancedb(tmp_path, good_rows(30))
    with open_store(place.spec, place.options) as store:
        table = lancedb.connect(place.spec).open_table("docs")
        table.delete("id < 20")
        assert len(store.sample(30, 0).ids) == 30
    with open_store(f"{place.spec}/docs.lance") as store:
        assert store.sample(30, 0).ids == [str(row) for row in range(20, 30)]


def test_qdrant_while_its_writer_is_open(tmp_path):
    qdrant = pytest.importorskip("qdrant_client")
    place = fill_qdrant(tmp_path, good_rows(10))
    writer = qdrant.QdrantClient(path=place.spec)
    before = hashes(tmp_path)
    with open_store(place.spec, place.options) as store:
        assert len(store.sample(10, 0).ids) == 10
    assert hashes(tmp_path) == before
    writer.close()
    with pytest.raises(DataError, match="say which vector"):
        open_store(place.spec)


def test_milvus_while_its_writer_is_open(tmp_path):
    pymilvus = pytest.importorskip("pymilvus")
    place = fill_milvus(tmp_path, good_rows(10))
    writer = pymilvus.MilvusClient(place.spec)
    before = hashes(tmp_path)
    with open_store(place.spec, place.options) as store:
        assert len(store.sample(10, 0).ids) == 10
        assert "extra" in [field.name for field in store.fields]
    assert hashes(tmp_path) == before
    writer.close()


def test_chroma_asks_nobody(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: asked.append(address))
    place = fill_chroma(tmp_path, good_rows(10))
    with open_store(place.spec, place.options) as store:
        store.sample(10, 0)
        assert store._client.get_settings().anonymized_telemetry is False
        assert store.describe().metric == "cosine"
    assert not asked


def test_chroma_text_in_the_metadata(tmp_path):
    chroma = pytest.importorskip("chromadb")
    client = chroma.PersistentClient(str(tmp_path), chroma.config.Settings(anonymized_telemetry=False))
    collection = client.create_collection("docs", embedding_function=None)
    collection.add(["a", "b"], embeddings=[[1.0, 0], [0, 2.0]], metadatas=[{"content": "x"}, {"content": "y"}])
    client.close()
    with open_store(str(tmp_path)) as store:
        sample = store.sample(2, 0)
    assert sample.texts == ["x", "y"]
    assert not sample.normalised
