"""Milvus Lite: the `.db` of a MilvusClient (a folder since 3.0, one file before), read through a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from unembed.audit.stores.base import (
    Description,
    Drawn,
    Field,
    Store,
    StoreOptions,
    as_text,
    choose,
    client,
    pick_table,
    pick_text,
)
from unembed.audit.stores.collection import BATCH, CollectionStore, seen_fields
from unembed.audit.stores.safe import Copy, guarded, shown
from unembed.decode.vectors import pick
from unembed.errors import DataError

PAGE = 1000
"""Ids asked for at a time."""
DTYPES = {
    "FLOAT_VECTOR": "float32", "FLOAT16_VECTOR": "float16", "BFLOAT16_VECTOR": "bfloat16", "INT8_VECTOR": "int8",
}  # fmt: skip


def open_place(place: str, options: StoreOptions) -> Store:
    """Open a file or folder of Milvus Lite."""
    path = Path(place)
    if not path.exists():
        raise DataError(f"there is no Milvus Lite store {shown(place)}: give the path of MilvusClient (something.db)")
    pymilvus = client("pymilvus", "pymilvus and milvus-lite", "milvus", "reading Milvus Lite")
    lite = client("milvus_lite.server_manager", "pymilvus and milvus-lite", "milvus", "reading Milvus Lite")
    copy = Copy(path, skip=lambda name: name == "LOCK")
    # The client knows Milvus Lite by this ending only.
    local = str(copy.path if copy.path.suffix == ".db" else copy.path.rename(copy.path.with_suffix(".db")))

    def release() -> None:
        # Its server outlives the client, and at the end of the process would write what was removed once more.
        lite.server_manager_instance.release_server(local)
        copy.remove()

    try:
        connection = guarded(lambda: pymilvus.MilvusClient(local), f"{path} is no Milvus Lite store", "check the path")
        return MilvusStore(connection, path, release, options)
    except BaseException:
        release()
        raise


class MilvusStore(CollectionStore):
    """One collection and one of its vectors."""

    kind = "milvus"
    advice = "check that it is the .db of a Milvus Lite"

    def __init__(self, connection: Any, path: Path, release: Callable[[], None], options: StoreOptions) -> None:
        super().__init__(str(path), options)
        self._client, self._release = connection, release
        names = list(self._guarded(connection.list_collections))
        self._name = pick_table(names, options.table, str(path), "collection")
        fields = self._guarded(lambda: connection.describe_collection(self._name))["fields"]
        kinds = {field["name"]: str(field["type"].name) for field in fields}
        wanted = options.column
        if wanted in kinds and kinds[wanted] not in DTYPES:
            raise DataError(f"{self.place}: the field {wanted} is {kinds[wanted]}, no dense vector: name another")
        vectors = [name for name, kind in kinds.items() if kind in DTYPES]
        self._vector = pick(vectors, wanted, self.place, "field of vectors")
        self._type = DTYPES[kinds[self._vector]]
        self._size = next(int(field["params"]["dim"]) for field in fields if field["name"] == self._vector)
        self._key = next(field["name"] for field in fields if field.get("is_primary"))
        self._guarded(lambda: connection.load_collection(self._name))
        stored = [
            Field(name, "text" if kind == "VARCHAR" else kind.lower())
            for name, kind in kinds.items()
            if name != self._vector
        ]
        self._fields = (*stored, *self._dynamic(kinds))
        self._text = pick_text(self._texts(), options.text, self.place)
        self._rows = self._count()

    def _dynamic(self, kinds: dict[str, str]) -> list[Field]:
        """Fields that are in no schema."""
        rows = self._guarded(lambda: self._client.query(self._name, filter="", limit=16, output_fields=["*"]))
        return [field for field in seen_fields(rows) if field.name not in kinds]

    def _count(self) -> int:
        rows = self._guarded(lambda: self._client.query(self._name, filter="", output_fields=["count(*)"]))
        return int(rows[0]["count(*)"])

    def describe(self) -> Description:
        """The collection's schema and index."""
        names = self._guarded(lambda: self._client.list_indexes(self._name, field_name=self._vector))
        index = self._guarded(lambda: self._client.describe_index(self._name, names[0])) if names else {}
        kind = str((index or {}).get("index_type") or "")
        lossy = any(part in kind for part in ("PQ", "SQ", "RABITQ"))
        metric = str((index or {}).get("metric_type") or "").lower() or None
        return self._described(self._type, metric, self._vector, index=kind if lossy else None)

    def close(self) -> None:
        """Close the client, stop its server and remove the copy."""
        self._client.close()
        self._release()

    def _draw(self, n: int, seed: int) -> Drawn:
        wanted = set(choose(self._rows, n, seed).tolist())
        names = [name for position, name in enumerate(self._ids()) if position in wanted]
        columns = list(dict.fromkeys(name for name in (self._key, self._vector, self._text) if name))
        drawn, vectors = Drawn([], [], [], self._type), list[Any]()
        for begin in range(0, len(names), BATCH):
            batch = names[begin : begin + BATCH]
            rows = self._get(batch, columns)
            found = {row[self._key]: row for row in rows}
            drawn.ids += [str(name) for name in batch]
            drawn.texts += [as_text(found[name].get(self._text)) for name in batch]
            vectors += [_array(found[name].get(self._vector), self._type) for name in batch]
        drawn.vectors = vectors
        return drawn

    def _get(self, names: list[Any], columns: list[str]) -> Any:
        return self._guarded(lambda: self._client.get(self._name, ids=names, output_fields=columns))

    def _ids(self) -> Iterator[Any]:
        """Primary keys alone, in one order."""
        pages = self._guarded(
            lambda: self._client.query_iterator(self._name, batch_size=PAGE, filter="", output_fields=[self._key])
        )
        while page := self._guarded(pages.next):
            yield from (row[self._key] for row in page)
        pages.close()


def _array(value: Any, dtype: str) -> Any:
    """A vector as the client gives it: a list, an array, or bytes."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], bytes):
        value = value[0]
    if not isinstance(value, bytes):
        return value
    if dtype == "bfloat16":  # the upper half of a float32
        return (np.frombuffer(value, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(value, np.dtype(dtype))
