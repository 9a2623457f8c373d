"""PostgreSQL with pgvector, on a real server."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.audit.stores.conftest import DIM, Rows, fill_postgres, good_rows, pg_execute
from unembed.audit.stores import StoreOptions, open_store
from unembed.errors import DataError

psycopg = pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def docs(pg_uri):
    return fill_postgres(pg_uri, "docs_pg", f"vector({DIM})", good_rows())


def test_cannot_write(docs, pg_uri):
    def contents():
        with psycopg.connect(pg_uri) as connection:
            return connection.execute("SELECT xmin::text, ctid::text, id, text, v::text FROM docs_pg").fetchall()

    before = contents()
    with open_store(docs.spec, docs.options) as store:
        store.sample(20, 0)
        assert store._connection.execute("SHOW transaction_read_only").fetchone() == ("on",)
        assert store._connection.execute("SHOW transaction_isolation").fetchone() == ("repeatable read",)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            store._connection.execute("DELETE FROM docs_pg")
    assert store._connection.closed
    assert contents() == before


def test_holds_no_transaction_between_calls(docs):
    """One that stays open keeps the server from cleaning up."""
    with open_store(docs.spec, docs.options) as store:
        store.describe()
        store.sample(5, 0)
        assert store._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_rows_deleted_while_it_is_read_are_still_read(pg_uri):
    place = fill_postgres(pg_uri, "shrinks", f"vector({DIM})", good_rows(60))
    with open_store(place.spec, place.options) as store:
        pool = store._pool

        def deletes(n, seed):
            found = pool(n, seed)
            pg_execute(pg_uri, "DELETE FROM shrinks", "VACUUM shrinks")
            return found

        store._pool = deletes
        assert len(store.sample(40, 0).ids) == 40
        store._pool = pool
        with pytest.raises(DataError, match="is empty"):
            store.sample(40, 0)
        pg_execute(pg_uri, "DROP TABLE shrinks")
        with pytest.raises(DataError, match=r"cannot be read .*does not exist"):
            store.sample(40, 0)


def test_server_that_goes_away(docs, pg_uri):
    with open_store(docs.spec, docs.options) as store:
        pid = store._connection.info.backend_pid
        pg_execute(pg_uri, f"SELECT pg_terminate_backend({pid})")
        with pytest.raises(DataError, match="cannot be read") as caught:
            store.sample(5, 0)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def large(pg_uri):
    """Some 200 pages; the last third has few rows to a page."""
    rows = good_rows(3000, 64)
    place = fill_postgres(pg_uri, "large", "vector(64)", rows)
    pg_execute(pg_uri, "DELETE FROM large WHERE id >= 2000 AND id % 10 <> 0", "VACUUM ANALYZE large")
    return place


def test_large_table_is_not_read_whole(large, monkeypatch):
    monkeypatch.setattr("unembed.audit.stores.postgres.SMALL", 40)
    with open_store(large.spec, large.options) as store:
        about = store.describe()
        assert not about.rows_exact
        assert about.rows == pytest.approx(2100, rel=0.05)
        clause, pool = store._guarded(lambda: store._pool(5, 0))
        assert "TABLESAMPLE SYSTEM" in clause
        assert 40 < pool < 1500
        sample = store.sample(5, 0)
        assert sample.ids == store.sample(5, 0).ids != store.sample(5, 1).ids
        assert "randomly chosen pages" in sample.notes[0]
        counts = np.zeros(3000)
        for seed in range(100):
            counts[[int(name) for name in store.sample(5, seed).ids]] += 1
    # Rows of full and of sparse pages have the same chance: 100 of 2100 are in the sparse part.
    assert 8 < counts[2000:].sum() < 44  # expected 24, standard deviation 5 (pages come whole: a little more)
    assert counts[:1000].sum() == pytest.approx(counts[1000:2000].sum(), rel=0.35)


def test_null_vectors_do_not_count(pg_uri):
    rows = good_rows(20)
    rows.vectors[::2] = [None] * 10
    place = fill_postgres(pg_uri, "holes", f"vector({DIM})", rows)
    with open_store(place.spec, place.options) as store:
        assert store.describe().rows == 10
        assert sorted(int(name) for name in store.sample(20, 0).ids) == list(range(1, 20, 2))


def test_names_are_quoted_and_schemas_found(pg_uri):
    table = 'We"ird; DROP TABLE docs_pg; --'
    quoted = '"S p"."' + table.replace('"', '""') + '"'
    pg_execute(
        pg_uri, 'CREATE SCHEMA "S p"', f'CREATE TABLE {quoted} ("V e" vector(2), "Te""xt" text)',
        f"INSERT INTO {quoted} VALUES ('[1,2]', 'hello')",
        f'CREATE INDEX ON {quoted} USING hnsw ("V e" vector_cosine_ops)',
    )  # fmt: skip
    with open_store(pg_uri, StoreOptions(table=f"S p.{table}", text='Te"xt')) as store:
        assert store.describe().metric == "cosine"
        sample = store.sample(1, 0)
    assert sample.texts == ["hello"]
    assert sample.ids == ["(0,1)"]


def test_two_vector_columns_or_tables(pg_uri, docs):
    pg_execute(pg_uri, "CREATE TABLE two (a vector(2), b halfvec(3))")
    with pytest.raises(DataError, match=r"more than one column of vectors \(a, b\)"):
        open_store(pg_uri, StoreOptions(table="two"))
    with open_store(pg_uri, StoreOptions(table="two", column="b")) as store:
        assert (store.describe().dtype, store.describe().dim) == ("float16", 3)
    with pytest.raises(DataError, match=r"say which table: .*public\.docs_pg"):
        open_store(pg_uri)


def test_mixed_dimensions(pg_uri):
    rows = Rows([*good_rows(9).vectors, np.ones(3, np.float32)], ["t"] * 10)
    place = fill_postgres(pg_uri, "mixed", "vector", rows)
    with open_store(place.spec, place.options) as store:
        assert store.describe().dim is None
        assert store.sample(10, 0).left_out == {f"with 3 dimensions instead of {DIM}": 1}


def test_no_permission_on_the_table(docs, pg_uri):
    pg_execute(pg_uri, "CREATE ROLE guest LOGIN")
    with pytest.raises(DataError, match=r"permission denied for table docs_pg.*GRANT SELECT"):
        open_store(pg_uri.replace("postgres:", "guest:", 1), docs.options)


def test_wrong_password_database_host(docs, pg_uri):
    with psycopg.connect(pg_uri) as connection:
        hba = connection.execute("SHOW hba_file").fetchone()[0]
        connection.execute("CREATE ROLE strict LOGIN PASSWORD 'right-word'")
        connection.execute("GRANT SELECT ON docs_pg TO strict")
    with open(hba) as file:
        rules = file.read()
    with open(hba, "w") as file:
        file.write("local all strict scram-sha-256\n" + rules)
    pg_execute(pg_uri, "SELECT pg_reload_conf()")
    with pytest.raises(DataError, match="password authentication failed") as caught:
        open_store(pg_uri.replace("postgres:", "strict:wrong-word", 1), docs.options)
    assert "wrong-word" not in str(caught.value)
    with open_store(pg_uri.replace("postgres:", "strict:right-word", 1), docs.options) as store:
        assert store.sample(1, 0).ids
        assert "word" not in repr(store) + str(store.describe())
    with pytest.raises(DataError, match='database "nowhere" does not exist'):
        open_store(pg_uri.replace("/postgres?", "/nowhere?"), docs.options)
    with pytest.raises(DataError, match=r"no connection to postgresql 127\.0\.0\.1:1/db"):
        open_store("postgresql://me@127.0.0.1:1/db", replace(docs.options))


@pytest.mark.parametrize("dsn", [
    "postgresql://u:p@ss@h/db", "postgresql://u:p/ss@h/db", "postgresql://u:p?s@h", "postgresql://h:port/db",
    "postgresql://h/db?nonsense=1", "postgresql://u:%zz@h/db", "postgresql://[::1/db",
])  # fmt: skip
def test_address_that_is_none(dsn):
    with pytest.raises(DataError, match=r"address cannot be read.*%40"):
        open_store(dsn)
