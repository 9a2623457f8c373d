"""Vector stores by spec: `open_store("vectors.parquet")`, `open_store("postgresql://...", ...)`; see docs/stores.md.

Members are imported when asked for, so this module needs none of their clients.
"""

from __future__ import annotations

import re
from importlib import import_module, metadata
from pathlib import Path
from typing import cast

from unembed.audit.stores.base import Description, Factory, Field, Loss, Sample, Store, StoreOptions
from unembed.audit.stores.safe import shown
from unembed.errors import DataError

__all__ = [
    "GROUP", "Description", "Field", "Loss", "Sample", "Store", "StoreOptions", "available", "kind_of", "open_store",
    "shown",
]  # fmt: skip

GROUP = "unembed.stores"
"""Entry point group for stores of third parties: `kind = "module:factory"`, a `base.Factory`."""

MEMBERS = {
    "file": "unembed.audit.stores.files",
    "faiss": "unembed.audit.stores.faiss",
    "postgresql": "unembed.audit.stores.postgres",
    "qdrant": "unembed.audit.stores.qdrant",
    "chroma": "unembed.audit.stores.chroma",
    "lancedb": "unembed.audit.stores.lancedb",
    "milvus": "unembed.audit.stores.milvus",
}
"""Kind -> module whose `open_place` is the factory."""

FILES = (".npy", ".npz", ".parquet", ".pq", ".jsonl", ".ndjson")
# The first four bytes of an index: "I", then the family; see index_write.cpp of FAISS.
FAISS_MAGIC = re.compile(rb"I[xHwvNBLSRPlfFr2MmDOcs][A-Za-z0-9]{2}")


def open_store(spec: str, options: StoreOptions | None = None) -> Store:
    """Open a store read-only. Use it in a `with` block: some stores are read through a copy that must go.

    Args:
        spec: a path whose content tells the kind, `kind:place`, or `postgresql://...`.
        options: table, column and text field, where there is a choice.
    """
    kind, place = kind_of(spec)
    try:
        return _factory(kind)(place, options or StoreOptions())
    except OSError as error:
        reason = "no permission" if isinstance(error, PermissionError) else error.strerror or type(error).__name__
    raise DataError(f"{shown(spec)} cannot be opened ({reason}): check the path and that you may read it")


def available() -> list[str]:
    """All kinds of store that `open_store` knows here, those of third parties included."""
    return sorted({*MEMBERS, *(point.name for point in metadata.entry_points(group=GROUP))})


def kind_of(spec: str) -> tuple[str, str]:
    """(kind, place) of a spec."""
    head, colon, place = spec.partition(":")
    if head in ("postgresql", "postgres") and place.startswith("//"):
        return "postgresql", spec
    if colon and head in available() and head != "postgresql":
        return head, place
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", spec):
        raise DataError(f"{shown(spec)} is no store: write postgresql://..., or qdrant:http://host:6333")
    return _sniffed(Path(spec), shown(spec)), spec


def _sniffed(path: Path, name: str) -> str:
    """The kind of store that a path holds."""
    try:
        if path.is_dir():
            return _folder_kind(path, name)
        if not path.is_file():
            raise DataError(
                f"there is no store {name}: give a file, a folder or a URL; kinds: {', '.join(available())}"
            )
        if path.suffix.lower() in FILES:
            return "file"
        with path.open("rb") as file:
            head = file.read(16)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        reason = "no permission" if isinstance(error, PermissionError) else "it is no path"
        raise DataError(f"{name} cannot be opened ({reason}): check it, and that you may read it") from None
    if path.suffix.lower() in (".faiss", ".index") or FAISS_MAGIC.fullmatch(head[:4]):
        return "faiss"
    if head == b"SQLite format 3\0" and path.suffix == ".db":
        return "milvus"  # Milvus Lite before 3.0
    raise DataError(f"{name} is no store that is known: say which (kind:path), one of {', '.join(available())}")


def _folder_kind(path: Path, name: str) -> str:
    if (path / "chroma.sqlite3").is_file():
        return "chroma"
    if (path / "meta.json").is_file() and (path / "collection").is_dir():
        return "qdrant"
    if (path / "collections").is_dir():
        return "milvus"
    if path.suffix == ".lance" or any(path.glob("*.lance")):
        return "lancedb"
    if any(path.rglob("*.parquet")):
        return "file"
    raise DataError(f"the folder {name} holds no store that is known: say which (kind:path), {', '.join(available())}")


def _factory(kind: str) -> Factory:
    if kind in MEMBERS:
        return cast(Factory, import_module(MEMBERS[kind]).open_place)
    for point in metadata.entry_points(group=GROUP):
        if point.name == kind:
            try:
                return cast(Factory, point.load())
            except Exception as error:
                raise DataError(f"the plug-in {point.value} of '{kind}' does not load: {error}") from error
    raise DataError(f"no kind of store '{kind}': there are {', '.join(available())}")
