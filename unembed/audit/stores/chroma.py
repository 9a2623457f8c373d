"""Chroma: the folder of a PersistentClient, read through a copy, because the client opens to write and may migrate.

Telemetry is off and no embedding function is loaded: nothing leaves the machine.
"""

from __future__ import annotations

from pathlib import Path
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
    pick_table,
    pick_text,
)
from unembed.audit.stores.collection import BATCH, CollectionStore, seen_fields
from unembed.audit.stores.safe import Copy, guarded, shown
from unembed.errors import DataError

PAGE = 10_000
"""Ids asked for at a time."""
DOCUMENT = "document"


def open_place(place: str, options: StoreOptions) -> Store:
    """Open a folder."""
    path = Path(place)
    if not (path / "chroma.sqlite3").is_file():
        raise DataError(f"there is no Chroma folder {shown(place)}: give the path of PersistentClient")
    if options.column is not None:
        raise DataError(f"{path}: a Chroma collection has one vector: leave the column out")
    chroma = client("chromadb", "chromadb", "chroma", "reading Chroma")
    config = client("chromadb.config", "chromadb", "chroma", "reading Chroma")
    copy, connection = Copy(path), None
    try:
        settings = config.Settings(anonymized_telemetry=False, is_persistent=True)
        make = lambda: chroma.PersistentClient(str(copy.path), settings)  # noqa: E731
        connection = guarded(make, f"{path} is no Chroma folder", "check the path")
        return ChromaStore(connection, path, copy, options)
    except BaseException:
        if connection is not None:
            connection.close()
        copy.remove()
        raise


class ChromaStore(CollectionStore):
    """One collection."""

    kind = "chroma"
    advice = "check that it is the folder of a Chroma that this version reads (pip install -U chromadb)"

    def __init__(self, connection: Any, path: Path, copy: Copy, options: StoreOptions) -> None:
        super().__init__(str(path), options)
        self._client, self._copy = connection, copy
        names = [collection.name for collection in self._guarded(connection.list_collections)]
        self._name = pick_table(names, options.table, str(path), "collection")
        self._collection = self._guarded(lambda: connection.get_collection(self._name, embedding_function=None))
        self._rows = int(self._guarded(self._collection.count))
        first = self._get(limit=16, include=["metadatas", "embeddings", "documents"])
        vectors = first["embeddings"]
        self._size = len(vectors[0]) if vectors is not None and len(vectors) else None
        metadata = seen_fields(row or {} for row in first["metadatas"] or [])
        self._fields = (Field(DOCUMENT, "text"), *(field for field in metadata if field.name != DOCUMENT))
        names = self._texts()
        if options.text is None:  # a collection without documents may keep its texts in the metadata
            names = [DOCUMENT] if any(first["documents"] or []) else [name for name in names if name != DOCUMENT]
        self._text = pick_text(names, options.text, self.place)

    def _get(
        self, include: list[str], ids: list[str] | None = None, limit: int | None = None, offset: int | None = None
    ) -> Any:
        return self._guarded(lambda: self._collection.get(ids=ids, include=include, limit=limit, offset=offset))

    def describe(self) -> Description:
        """The collection's configuration."""
        configuration = self._guarded(lambda: self._collection.configuration_json) or {}
        space = (configuration.get("hnsw") or configuration.get("spann") or {}).get("space")
        return self._described("float32", space, None)

    def close(self) -> None:
        """Close the client and remove the copy."""
        self._client.close()
        self._copy.remove()

    def _draw(self, n: int, seed: int) -> Drawn:
        names: list[str] = []
        positions = choose(self._rows, n, seed)
        for begin in range(0, self._rows, PAGE):  # ids only; pages without a drawn row are not read
            inside = positions[(positions >= begin) & (positions < begin + PAGE)] - begin
            if len(inside):
                page = self._get([], limit=PAGE, offset=begin)["ids"]
                names += [page[position] for position in inside.tolist()]
        drawn = Drawn([], [], [], "float32")
        vectors: list[Any] = []
        kind = "documents" if self._text == DOCUMENT else "metadatas"
        for begin in range(0, len(names), BATCH):
            batch = names[begin : begin + BATCH]
            found = self._get(["embeddings", kind], ids=batch)
            where = {name: row for row, name in enumerate(found["ids"])}
            for name in batch:
                row = where[name]
                drawn.ids.append(name)
                vectors.append(found["embeddings"][row])
                value = found[kind][row]
                drawn.texts.append(as_text(value if kind == "documents" else (value or {}).get(self._text)))
        drawn.vectors = vectors
        return drawn
