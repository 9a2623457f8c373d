"""LanceDB: a folder of tables, or one `.lance` table; one version of it is read, whatever is written meanwhile."""

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
from unembed.audit.stores.collection import BATCH, CollectionStore
from unembed.audit.stores.files import arrow_type, is_vector, number_type
from unembed.audit.stores.safe import shown
from unembed.audit.stores.sidecar import ID_FIELDS
from unembed.decode.vectors import pick
from unembed.errors import DataError


def open_place(place: str, options: StoreOptions) -> Store:
    """Open a folder."""
    path = Path(place)
    # The client would make a folder that is not there.
    if not path.is_dir():
        raise DataError(f"there is no LanceDB folder {shown(place)}: give the path of lancedb.connect")
    lancedb = client("lancedb", "lancedb", "lancedb", "reading LanceDB")
    return LanceStore(lancedb, path, options)


class LanceStore(CollectionStore):
    """One table, at one version."""

    kind = "lancedb"
    advice = "check the path, that you may read it, and that old versions are not cleaned up meanwhile"

    def __init__(self, lancedb: Any, path: Path, options: StoreOptions) -> None:
        super().__init__(str(path), options)
        folder, wanted = (path.parent, path.stem) if path.suffix == ".lance" else (path, options.table)
        names = [entry.stem for entry in sorted(folder.glob("*.lance"))]
        self._name = pick_table(names, wanted, str(folder), "table")
        self._table = self._guarded(lambda: lancedb.connect(str(folder)).open_table(self._name))
        self._guarded(lambda: self._table.checkout(self._table.version))
        schema = self._guarded(lambda: self._table.schema)
        if options.column in schema.names and not is_vector(schema.field(options.column).type):
            kind = schema.field(options.column).type
            raise DataError(f"{self.place}: the column {options.column} is {kind}, no vector: name another")
        vectors = [field.name for field in schema if is_vector(field.type)]
        self._vector = pick(vectors, options.column, self.place, "column of vectors")
        self._type = schema.field(self._vector).type
        self._fields = tuple(
            Field(field.name, arrow_type(field.type)) for field in schema if field.name != self._vector
        )
        self._text = pick_text(self._texts(), options.text, self.place)
        self._size = self._type.list_size if hasattr(self._type, "list_size") else None
        self._id = next((name for name in ID_FIELDS if name in schema.names), None)
        self._rows = int(self._guarded(self._table.count_rows))

    def describe(self) -> Description:
        """The table's schema and index."""
        indices = [index for index in self._guarded(self._table.list_indices) if self._vector in index.columns]
        kinds = [str(index.index_type) for index in indices]
        stats = self._guarded(lambda: self._table.index_stats(indices[0].name)) if indices else None
        quantised = next((kind for kind in kinds if any(part in kind.upper() for part in ("PQ", "SQ", "RQ"))), None)
        metric = getattr(stats, "distance_type", None)
        return self._described(number_type(self._type), metric, self._vector, index=quantised)

    def _draw(self, n: int, seed: int) -> Drawn:
        positions = choose(self._rows, n, seed).tolist()
        columns = list(dict.fromkeys(name for name in (self._vector, self._text, self._id) if name))
        drawn, vectors = Drawn([], [], [], number_type(self._type)), list[Any]()
        for begin in range(0, len(positions), BATCH):
            batch = positions[begin : begin + BATCH]
            rows = self._guarded(lambda wanted=batch: self._table.take_offsets(wanted).select(columns).to_arrow())
            if len(rows) != len(batch):
                raise DataError(f"{self.place} gave {len(rows)} of {len(batch)} rows: audit a snapshot of the folder")
            scalars = rows.column(self._vector)
            vectors += [one.values.to_numpy(zero_copy_only=False) if one.is_valid else None for one in scalars]
            drawn.texts += [
                as_text(text) for text in (rows.column(self._text).to_pylist() if self._text else [None] * len(batch))
            ]
            drawn.ids += [str(name) for name in (rows.column(self._id).to_pylist() if self._id else batch)]
        drawn.vectors = vectors
        return drawn
