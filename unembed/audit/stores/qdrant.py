"""Qdrant: a server by its URL, or the folder of the client's local mode (read through a copy: the client locks it).

The key of a server comes from QDRANT_API_KEY, or before the host: https://:key@host:6333.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unembed.audit.stores.base import (
    Description,
    Drawn,
    Store,
    StoreOptions,
    as_text,
    choose,
    client,
    listed,
    pick_table,
    pick_text,
)
from unembed.audit.stores.collection import BATCH, CollectionStore, seen_fields
from unembed.audit.stores.safe import NO_SECRETS, Copy, Secrets, guarded, shown, split_url
from unembed.errors import DataError

PAGE = 10_000
"""Ids, without vectors and payload, asked for at a time."""
METRICS = {"Cosine": "cosine", "Euclid": "l2", "Dot": "ip", "Manhattan": "l1"}


def open_place(place: str, options: StoreOptions) -> Store:
    """Open a server or a folder."""
    qdrant = client("qdrant_client", "qdrant-client", "qdrant", "reading Qdrant")
    if place.startswith(("http://", "https://")):
        url, found = split_url(place, "Qdrant")
        key = os.environ.get("QDRANT_API_KEY") or (found[-1] if found else None)
        secrets = Secrets([*found, key])
        make = lambda: qdrant.QdrantClient(url=url, api_key=key, timeout=60, check_compatibility=False)  # noqa: E731
        server = guarded(make, f"no connection to {url}", "check the URL", secrets)
        return _opened(server, url, secrets, None, options)
    path = Path(place)
    if not (path / "meta.json").is_file():
        raise DataError(f"there is no Qdrant folder {shown(place)}: give the path of QdrantClient(path=...), or a URL")
    copy = Copy(path, skip=lambda name: name == ".lock")
    try:
        make = lambda: qdrant.QdrantClient(path=str(copy.path))  # noqa: E731
        local = guarded(make, f"{path} is no Qdrant folder", "check the path")
        return _opened(local, str(path), NO_SECRETS, copy, options)
    except BaseException:
        copy.remove()
        raise


def _opened(connection: Any, where: str, secrets: Secrets, copy: Copy | None, options: StoreOptions) -> Store:
    try:
        return QdrantStore(connection, where, secrets, copy, options)
    except BaseException:
        connection.close()
        raise


class QdrantStore(CollectionStore):
    """One collection and one of its vectors."""

    kind = "qdrant"
    advice = "check the URL, the key (QDRANT_API_KEY) and that the collection is still there"

    def __init__(self, connection: Any, where: str, secrets: Secrets, copy: Copy | None, options: StoreOptions) -> None:
        super().__init__(where, options)
        self._client, self._secrets, self._copy = connection, secrets, copy
        names = [row.name for row in self._guarded(lambda: connection.get_collections().collections)]
        self._name = pick_table(names, options.table, where, "collection")
        params = self._guarded(lambda: connection.get_collection(self._name)).config
        self._vector, self._params = self._pick_vector(params.params.vectors, options.column)
        self._size = int(self._params.size)
        self._quantised = self._params.quantization_config or params.quantization_config
        self._rows = int(self._guarded(lambda: connection.count(self._name, exact=True).count))
        first = self._guarded(lambda: connection.scroll(self._name, limit=16, with_payload=True)[0])
        self._fields = tuple(seen_fields(point.payload or {} for point in reversed(first)))
        self._text = pick_text(self._texts(), options.text, self.place) if first else None

    def _pick_vector(self, vectors: Any, wanted: str | None) -> tuple[str, Any]:
        """(name, "" for the unnamed one; its parameters)."""
        if not isinstance(vectors, dict):
            vectors = {"": vectors} if vectors is not None else {}
        if wanted is None and len(vectors) == 1:
            wanted = next(iter(vectors))
        if wanted is None or wanted not in vectors:
            what = "say which vector (column)" if wanted is None and vectors else f"there is no dense vector {wanted!r}"
            raise DataError(f"{self.place}: {what}: it has {listed([name or '(unnamed)' for name in vectors])}")
        if vectors[wanted].multivector_config is not None:
            raise DataError(f"{self.place}: {wanted!r} has many vectors for each point: name one with a single vector")
        return wanted, vectors[wanted]

    def describe(self) -> Description:
        """The collection's configuration."""
        distance = str(self._params.distance.value)
        kind = type(self._quantised).__name__.removesuffix("Quantization").lower() if self._quantised else None
        dtype = str(self._params.datatype.value) if self._params.datatype else "float32"
        # A server brings vectors of cosine collections to unit length, the local mode does not.
        unit = True if self._copy is None and distance == "Cosine" else None
        metric = METRICS.get(distance, distance.lower())
        return self._described(dtype, metric, self._vector or None, index=kind, unit=unit)

    def close(self) -> None:
        """Close the connection and remove the copy."""
        self._client.close()
        if self._copy is not None:
            self._copy.remove()

    def _draw(self, n: int, seed: int) -> Drawn:
        # Qdrant's own random sample has no seed. Its ids alone are small: they are looked through, and nothing else.
        count = int(self._guarded(lambda: self._client.count(self._name, exact=True).count))
        wanted = set(choose(count, n, seed).tolist())
        names = [name for position, name in enumerate(self._ids()) if position in wanted]
        points = [
            point for begin in range(0, len(names), BATCH) for point in self._points(names[begin : begin + BATCH])
        ]
        gone = len(wanted) - len(points)
        notes = (f"{gone} sampled points were deleted while the store was read",) if gone else ()
        return Drawn(
            [str(point.id) for point in points], [self._vector_of(point) for point in points],
            [as_text((point.payload or {}).get(self._text)) for point in points], self.describe().dtype, notes=notes,
        )  # fmt: skip

    def _ids(self) -> Iterator[Any]:
        offset = None
        while True:
            points, offset = self._guarded(lambda start=offset: self._client.scroll(
                self._name, limit=PAGE, offset=start, with_payload=False, with_vectors=False
            ))  # fmt: skip
            yield from (point.id for point in points)
            if offset is None:
                return

    def _points(self, names: list[Any]) -> list[Any]:
        vectors: Any = [self._vector] if self._vector else True
        payload: Any = [self._text] if self._text else False
        found = self._guarded(
            lambda: self._client.retrieve(self._name, names, with_vectors=vectors, with_payload=payload)
        )
        by_id = {point.id: point for point in found}
        return [by_id[name] for name in names if name in by_id]

    def _vector_of(self, point: Any) -> Any:
        return point.vector.get(self._vector) if isinstance(point.vector, dict) else point.vector
