"""What the stores behind a client library share: one table or collection of it, and calls that may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

from unembed.audit.stores.base import Description, Field, Store, StoreOptions
from unembed.audit.stores.safe import NO_SECRETS, Secrets, guarded

T = TypeVar("T")

BATCH = 256
"""Vectors asked for at a time."""


class CollectionStore(Store):
    """A table or collection; a member sets the attributes below when it opens."""

    advice: ClassVar[str]
    """What to do when the client fails."""
    _secrets: Secrets = NO_SECRETS
    _rows: int
    _size: int | None
    """Dimensions."""
    _text: str | None
    _fields: tuple[Field, ...]

    def __init__(self, where: str, options: StoreOptions) -> None:
        self._where, self._dim, self._name = where, options.dim, options.table or ""

    @property
    def place(self) -> str:
        """Path or URL, and the table."""
        return f"{self.kind} {self._where} {self._name}".rstrip()

    @property
    def fields(self) -> tuple[Field, ...]:
        """What is beside the vector."""
        return self._fields

    def _guarded(self, call: Callable[..., T]) -> T:
        return guarded(call, f"{self.place} cannot be read", self.advice, self._secrets)

    def _texts(self) -> list[str]:
        """Names of the fields that hold text."""
        return [field.name for field in self._fields if field.type == "text"]

    def _described(
        self, dtype: str, metric: str | None, vector: str | None, *, index: str | None = None, unit: bool | None = None
    ) -> Description:
        """`index` names a quantiser of the search index; such a store keeps the vectors themselves as well."""
        return Description(
            kind=self.kind,
            place=self.place,
            rows=self._rows,
            rows_exact=True,
            dim=self._size,
            dtype=dtype,
            metric=metric,
            normalised=unit,
            quantisation=f"{index} for search only, the vectors are kept as they are" if index else None,
            vector_field=vector,
            text_field=self._text,
        )


def seen_fields(rows: Iterable[Mapping[str, Any]]) -> list[Field]:
    """Fields of a store without a schema: those of a few rows show what there is."""
    values = {key: value for row in rows for key, value in row.items()}
    return [Field(key, "text" if isinstance(value, str) else type(value).__name__) for key, value in values.items()]
