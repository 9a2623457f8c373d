"""PostgreSQL with pgvector: `vector`, `halfvec`, and plain arrays of floats where they are named.

Everything runs in a read-only transaction on one snapshot, so a table that changes is still read as one state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unembed.audit.stores.base import (
    Description,
    Drawn,
    Field,
    Store,
    StoreOptions,
    as_text,
    choose,
    client,
    listed,
    pick_text,
)
from unembed.audit.stores.safe import Secrets, guarded
from unembed.audit.stores.sidecar import ID_FIELDS
from unembed.decode.vectors import pick
from unembed.errors import DataError

# What libpq reads as host and port, it repeats in errors. An @ or / of a password that is not percent-encoded would
# end up there, so a DSN has to be in full order before libpq sees it.
_HOST = r"(?:[A-Za-z0-9._~%-]*|\[[0-9A-Fa-f:.%]*\])(?::\d*)?"
DSN = re.compile(
    rf"postgres(?:ql)?://(?:[A-Za-z0-9._~!$&'()*+,;=%-]*(?::[^@/?#\[\]\s]*)?@)?{_HOST}(?:,{_HOST})*(?:/[^@?#]*)?(?:\?[^@#]*)?"
)
DTYPES = {"vector": "float32", "halfvec": "float16", "_float4": "float32", "_float8": "float64"}
METRICS = {"cosine": "cosine", "l2": "l2", "ip": "ip", "l1": "l1"}
# A table of at most so many pages is looked through whole (row addresses only, no vectors).
SMALL = 2000
BATCH = 256


def open_place(place: str, options: StoreOptions) -> Store:
    """Connect and find the table."""
    psycopg = client("psycopg", "psycopg", "postgres", "reading PostgreSQL")
    target, secrets = _parsed(psycopg, place)
    where = _where(target)

    def connect() -> Any:
        limits = {"connect_timeout": "10", "application_name": "unembed audit"}
        connection = psycopg.connect(**{**limits, **target})
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        return connection

    advice = "check host, database, user and password (PGPASSWORD or ~/.pgpass)"
    connection = guarded(connect, f"no connection to {where}", advice, secrets)
    try:
        return PostgresStore(connection, where, secrets, options)
    except BaseException:
        connection.close()
        raise


def _parsed(psycopg: Any, dsn: str) -> tuple[dict[str, Any], Secrets]:
    """The parts of a DSN; nothing of it is repeated in an error."""
    target: dict[str, Any] | None = None
    if DSN.fullmatch(dsn):
        try:
            target = dict(psycopg.conninfo.conninfo_to_dict(dsn))
        except psycopg.Error:
            target = None
    if target is None:
        raise DataError(
            "the PostgreSQL address cannot be read: write postgresql://user@host:5432/database, with special "
            "characters percent-encoded (@ is %40, / is %2F)"
        )
    userinfo = dsn.partition("//")[2].rpartition("@")[0]
    return target, Secrets([target.get("password"), target.get("sslpassword"), userinfo.partition(":")[2], dsn])


def _where(target: dict[str, Any]) -> str:
    host, port = str(target.get("host") or "local socket"), str(target.get("port") or "")
    return f"postgresql {host}{':' + port if port else ''}/{target.get('dbname') or ''}".rstrip("/")


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    type: str
    """Name in pg_type: vector, halfvec, text, ..."""
    written: str
    """As in CREATE TABLE: vector(384)."""
    size: int
    """Of a vector; -1 if the column does not fix it."""


class PostgresStore(Store):
    """A table or view."""

    kind = "postgresql"

    def __init__(self, connection: Any, where: str, secrets: Secrets, options: StoreOptions) -> None:
        self._connection, self._where, self._secrets, self._dim = connection, where, secrets, options.dim
        self._sql = client("psycopg.sql", "psycopg", "postgres", "reading PostgreSQL")
        self._name = options.table or ""
        self._guarded(lambda: self._find(options))

    def _guarded(self, call: Any) -> Any:
        """Run queries in one read-only transaction, and end it."""

        def run() -> Any:
            try:
                self._connection.execute("SET LOCAL synchronize_seqscans = off")
                self._connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")  # one order of rows
                return call()
            finally:
                if not self._connection.closed:
                    self._connection.rollback()

        advice = "check that the table is still there and that you may read it (GRANT SELECT)"
        return guarded(run, f"{self.place} cannot be read", advice, self._secrets)

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(self._connection.execute(query, values).fetchall())

    def _find(self, options: StoreOptions) -> None:
        tables = self._rows(_TABLES)  # (schema, name, visible without schema, with a vector column)
        wanted = options.table
        if wanted is None:
            names = [f"{schema}.{name}" for schema, name, _, vectors in tables if vectors]
            if len(names) != 1:
                raise DataError(f"{self._where}: say which table: {listed(names)} with a vector column")
            wanted = names[0]
        fits = [row for row in tables if wanted == f"{row[0]}.{row[1]}"]
        fits = fits or [row for row in tables if wanted == row[1] and row[2]]
        if not fits:
            names = [f"{schema}.{name}" for schema, name, _, vectors in tables if vectors]
            raise DataError(f"{self._where} has no table {wanted!r}: tables with a vector column: {listed(names)}")
        self._schema, self._name = fits[0][:2]
        self._oid, self._relkind = self._rows(_TABLE, self._schema, self._name)[0]
        self._columns = [_Column(*row) for row in self._rows(_COLUMNS, self._oid)]
        self._vector = self._vector_column(options.column)
        self._text = pick_text([column.name for column in self._beside() if _is_text(column)], options.text, self.place)
        keys = self._rows(_KEY, self._oid)
        usual = [name for name in ID_FIELDS if name in {column.name for column in self._columns}]
        self._key = keys[0][0] if len(keys) == 1 else next(iter(usual), None)
        opclasses = [row[0] for row in self._rows(_OPCLASS, self._oid, self._vector.name)]
        self._metric = next((METRICS[part] for name in opclasses for part in name.split("_") if part in METRICS), None)
        self._pages, self._estimate = self._rows(_SIZE, self._oid, self._oid)[0]
        self._exact = self._relkind in "vf" or self._pages <= SMALL
        if self._exact:
            self._estimate = self._count("")

    def _vector_column(self, wanted: str | None) -> _Column:
        by_name = {column.name: column for column in self._columns}
        if wanted in by_name and by_name[wanted].type not in DTYPES:
            raise DataError(
                f"{self.place}: the column {wanted} is {by_name[wanted].written}, no vector: name a column of vector, "
                "halfvec or real[]"
            )
        usual = [column.name for column in self._columns if column.type in ("vector", "halfvec")]
        names = [column.name for column in self._columns if column.type in DTYPES] if wanted or not usual else usual
        return by_name[pick(names, wanted, self.place, "column of vectors")]

    def _beside(self) -> list[_Column]:
        return [column for column in self._columns if column.name != self._vector.name]

    @property
    def place(self) -> str:
        """Host, port, database and table."""
        return f"{self._where} {self._name}".rstrip()

    @property
    def fields(self) -> tuple[Field, ...]:
        """Columns beside the vector."""
        return tuple(Field(column.name, "text" if _is_text(column) else column.written) for column in self._beside())

    def describe(self) -> Description:
        """Table, column and index."""
        return Description(
            kind=self.kind,
            place=self.place,
            rows=int(self._estimate),
            rows_exact=self._exact,
            dim=self._vector.size if self._vector.size > 0 else None,
            dtype=DTYPES[self._vector.type],
            metric=self._metric,
            normalised=None,
            quantisation=None,
            vector_field=self._vector.name,
            text_field=self._text,
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _draw(self, n: int, seed: int) -> Drawn:
        rows = list(
            self._guarded(lambda: list(self._viewed(n, seed) if self._relkind in "vf" else self._found(n, seed)))
        )
        notes = () if self._exact else ("rows were drawn from randomly chosen pages of the table",)
        return Drawn(
            [str(row[0]) for row in rows], [row[1] for row in rows], [as_text(row[2]) for row in rows],
            DTYPES[self._vector.type], notes=notes,
        )  # fmt: skip

    def _from(self, sampled: str) -> Any:
        sql, name = self._sql, self._vector.name
        table = sql.Identifier(self._schema, self._name)
        return sql.SQL("FROM {} {} WHERE {} IS NOT NULL").format(table, sql.SQL(sampled), sql.Identifier(name))

    def _count(self, sampled: str) -> int:
        count = self._connection.execute(self._sql.SQL("SELECT count(*) {}").format(self._from(sampled))).fetchone()
        return int(count[0])

    def _selected(self) -> Any:
        """id, vector, text."""
        sql = self._sql
        key = sql.SQL("{}::text").format(sql.Identifier(self._key)) if self._key else sql.SQL("NULL")
        text = sql.SQL("{}::text").format(sql.Identifier(self._text)) if self._text else sql.SQL("NULL")
        kind = sql.SQL("float8[]" if self._vector.type == "_float8" else "real[]")
        return sql.SQL("{}, {}::{}, {}").format(key, sql.Identifier(self._vector.name), kind, text)

    def _stream(self, query: Any, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        with self._connection.cursor("unembed", binary=True) as cursor:
            cursor.itersize = BATCH
            cursor.execute(query, values)
            yield from cursor

    def _found(self, n: int, seed: int) -> Iterator[tuple[Any, ...]]:
        """Row addresses first, then the vectors of the drawn ones."""
        sampled, count = self._pool(n, seed)
        wanted, drawn = set(choose(count, n, seed).tolist()), list[tuple[int, str]]()
        query = self._sql.SQL("SELECT tableoid::bigint, ctid::text {}").format(self._from(sampled))
        for position, address in enumerate(self._stream(query)):
            if position in wanted:
                drawn.append((address[0], address[1]))
        query = self._sql.SQL("SELECT tableoid::bigint, ctid::text, {} FROM {} WHERE ctid = ANY(%s::tid[])").format(
            self._selected(), self._sql.Identifier(self._schema, self._name)
        )
        for begin in range(0, len(drawn), BATCH):
            batch = drawn[begin : begin + BATCH]
            # In a partitioned table two partitions can have the same ctid, so tableoid decides.
            found = {(row[0], row[1]): row[2:] for row in self._stream(query, [[address for _, address in batch]])}
            for address in batch:
                key, vector, text = found[address]
                yield key if key is not None else address[1], vector, text

    def _pool(self, n: int, seed: int) -> tuple[str, int]:
        """(TABLESAMPLE clause, rows in it): of a large table, random pages that hold many times the sample."""
        pages = max(SMALL, 2 * n)
        while not self._exact and pages < self._pages / 2:
            sampled = f"TABLESAMPLE SYSTEM ({100 * pages / self._pages:.6f}) REPEATABLE ({seed % 2**31})"
            count = self._count(sampled)
            if count >= 2 * n:
                return sampled, count
            pages *= 8
        return "", self._count("")

    def _viewed(self, n: int, seed: int) -> Iterator[tuple[Any, ...]]:
        """A view has no row addresses: the server counts through it and sends the drawn rows only."""
        query = self._sql.SQL("SELECT {} {}").format(self._selected(), self._from(""))
        with self._connection.cursor("unembed", binary=True) as cursor:
            cursor.execute(query)
            cursor.itersize = 1
            for position in choose(self._count(""), n, seed).tolist():
                cursor.scroll(position, mode="absolute")
                key, vector, text = cursor.fetchone()
                yield key if key is not None else position, vector, text


def _is_text(column: _Column) -> bool:
    return column.type in ("text", "varchar", "bpchar", "citext")


_VISIBLE = "c.relkind = ANY('{r,p,v,m,f}') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
_TABLES = f"""
SELECT n.nspname, c.relname, pg_table_is_visible(c.oid), EXISTS (
  SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  WHERE a.attrelid = c.oid AND NOT a.attisdropped AND t.typname IN ('vector', 'halfvec'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE {_VISIBLE} AND NOT c.relispartition ORDER BY 1, 2"""
_TABLE = """
SELECT c.oid::bigint, c.relkind::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s"""
_COLUMNS = """
SELECT a.attname, t.typname, format_type(a.atttypid, a.atttypmod), a.atttypmod
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_KEY = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = %s AND i.indisprimary"""
_OPCLASS = """
SELECT o.opcname FROM pg_index i JOIN pg_opclass o ON o.oid = ANY(i.indclass)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = %s AND a.attname = %s"""
_SIZE = """
SELECT coalesce(sum(pg_relation_size(p.oid)) / current_setting('block_size')::bigint, 0)::bigint,
       coalesce(sum(greatest(p.reltuples, 0)), 0)::bigint
FROM pg_class p WHERE p.oid = %s::oid OR p.oid IN (SELECT relid FROM pg_partition_tree(%s::oid::regclass))"""
