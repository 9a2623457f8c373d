"""What a vector store is to an audit: something read-only that describes itself and gives a uniform sample.

A member subclasses `Store`; what is the same for all (bad rows, float32, notes) is done here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from unembed.errors import ConfigError, DataError, MissingExtraError

if TYPE_CHECKING:
    from typing import Self

    from numpy.typing import NDArray

# Norms further than this from 1 are no rounding error: float16 and bf16 stay within.
UNIT_TOLERANCE = 1e-2
# What the text beside a vector is called: LangChain, LlamaIndex, Haystack, Chroma, plain tables.
TEXT_FIELDS = ("text", "document", "page_content", "content", "chunk", "chunk_text", "passage", "sentence", "body")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Where in the store to look; None lets the store decide, which it does only where there is no choice."""

    table: str | None = None
    """Table or collection."""
    column: str | None = None
    """Column or name of the vector."""
    text: str | None = None
    """Column, payload key or metadata field of the text; by default one with a usual name."""
    texts: Path | None = None
    """Text of each row in a file of its own (.txt, .jsonl, .parquet), for stores without text (FAISS, .npy)."""
    dim: int | None = None
    """Keep vectors of this number of dimensions; by default the number that most of the sample has."""


@dataclass(frozen=True, slots=True)
class Description:
    """A store in words and numbers; holds no credential."""

    kind: str
    place: str
    """Path, or host, port and database; then the table or collection."""
    rows: int
    rows_exact: bool
    """Whether `rows` was counted; otherwise it is the store's own estimate."""
    dim: int | None
    """None: the store does not fix it, or holds nothing."""
    dtype: str
    """As stored: float32, float16, float64, bfloat16, int8, uint8, or "codes" of a quantiser."""
    metric: str | None
    """cosine, l2, ip, ...; None if the store does not say."""
    normalised: bool | None
    """True: the store brings vectors to unit length on write. None: it does not say (`Sample.normalised` measures)."""
    quantisation: str | None
    """How stored vectors differ from those that were put in; None: they do not."""
    vector_field: str | None
    text_field: str | None


@dataclass(frozen=True, slots=True)
class Field:
    """A column, payload key or metadata field beside the vector."""

    name: str
    type: str
    """"text", "number", or the store's own name of the type."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What quantisation cost."""

    cosine: float
    """Mean cosine between the stored vector and the one that was put in."""
    exact: bool
    """True: both were compared. False: worked out from the quantiser."""
    how: str


@dataclass(frozen=True, slots=True)
class Sample:
    """Some rows, each drawn with the same chance and without replacement, in the order of the store."""

    ids: list[str]
    vectors: NDArray[np.float32]  # (n, d), as stored, not scaled
    texts: list[str | None]
    dtype: str
    normalised: bool
    """Whether all vectors are of unit length."""
    left_out: dict[str, int]
    """Reason -> number of drawn rows that cannot be audited."""
    loss: Loss | None
    notes: tuple[str, ...]
    """What a reader of the result must know, in sentences."""


@dataclass(slots=True)
class Drawn:
    """What a member hands over: rows as they are, not checked."""

    ids: list[str]
    vectors: Sequence[Any]
    """Arrays or lists, or one array (n, d); None where a row has no vector."""
    texts: list[str | None]
    dtype: str
    loss: Loss | None = None
    notes: tuple[str, ...] = ()


class Store(ABC):
    """An open store. Nothing in it is ever changed; `close` (or `with`) frees what was opened, copies included."""

    kind: str
    _dim: int | None = None
    """`StoreOptions.dim`."""

    def sample(self, n: int, seed: int) -> Sample:
        """Draw n rows, or all if there are fewer: uniform, without replacement, the same for the same seed."""
        if n < 1:
            raise ConfigError(f"a sample of {n} rows: give at least 1")
        return checked(self._draw(n, seed), self.place, self._dim)

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the store is, without credentials."""

    @abstractmethod
    def describe(self) -> Description:
        """What the store says of itself; reads no vectors."""

    @property
    @abstractmethod
    def fields(self) -> tuple[Field, ...]:
        """What is beside the vector."""

    @abstractmethod
    def _draw(self, n: int, seed: int) -> Drawn:
        """The rows of a sample."""

    def close(self) -> None:  # noqa: B027 (most members have nothing to free)
        """Free what was opened; may be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.place}>"


Factory: TypeAlias = Callable[[str, StoreOptions], Store]
"""What a member's module has as `open_place`: (place without the kind, options) -> an open store."""


def client(module: str, package: str, extra: str, purpose: str) -> Any:
    """Import the library of a store, or say how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(package, extra, purpose) from None


def choose(rows: int, n: int, seed: int) -> NDArray[np.int64]:
    """Positions of n rows out of so many, ascending: uniform, without replacement."""
    if n >= rows:
        return np.arange(rows, dtype=np.int64)
    return np.sort(np.random.default_rng(seed).choice(rows, n, replace=False, shuffle=False)).astype(np.int64)


def pick_table(names: list[str], wanted: str | None, where: str, kind: str) -> str:
    """The table or collection asked for, or the only one."""
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None and names:
        raise DataError(f"{where}: say which {kind} (table): {listed(sorted(names))}")
    if wanted not in names:
        asked = f" {wanted!r}" if wanted else ""
        raise DataError(f"{where} has no {kind}{asked}: it has {listed(sorted(names))}")
    return str(wanted)


def pick_text(names: Sequence[str], wanted: str | None, where: str) -> str | None:
    """The text field asked for, or the first with a usual name."""
    if wanted is None:
        return next((name for name in TEXT_FIELDS if name in names), None)
    if wanted not in names:
        raise DataError(f"{where} has no field {wanted!r}: it has {listed(names)}")
    return wanted


def listed(names: Sequence[str], most: int = 12) -> str:
    """Names for a message, not too many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) + more) or "none"


def as_text(value: object) -> str | None:
    """A stored value as text: bytes and numbers are none, an empty string is none either."""
    return value if isinstance(value, str) and value else None


def checked(drawn: Drawn, place: str, dim: int | None = None) -> Sample:
    """The rows that can be audited, as float32; the others are counted by reason."""
    if not drawn.ids:
        raise DataError(f"{place} is empty: there is nothing to audit")
    arrays = [None if vector is None else np.asarray(vector) for vector in drawn.vectors]
    sizes = Counter(array.size for array in arrays if array is not None and array.ndim == 1 and array.size)
    if dim is None and sizes:
        dim = min(sizes, key=lambda size: (-sizes[size], size))  # the larger group; of two equal ones the shorter
    reasons = [_wrong(array, dim) for array in arrays]
    keep = [row for row, reason in enumerate(reasons) if reason is None]
    left_out = Counter(reason for reason in reasons if reason is not None)
    told = "; ".join(f"{count} {reason}" for reason, count in left_out.most_common())
    if not keep:
        raise DataError(f"{place}: none of {len(arrays)} sampled rows has a vector to audit ({told}): check the column")
    vectors = np.stack([np.asarray(arrays[row], dtype=np.float32) for row in keep])  # (n, d)
    notes = list(drawn.notes)
    if left_out:
        notes.append(f"{sum(left_out.values())} of {len(arrays)} sampled rows were left out: {told}")
    norms = np.sqrt(np.square(vectors, dtype=np.float64).sum(1))
    return Sample(
        ids=[drawn.ids[row] for row in keep],
        vectors=vectors,
        texts=[drawn.texts[row] for row in keep],
        dtype=drawn.dtype,
        normalised=bool((np.abs(norms - 1) <= UNIT_TOLERANCE).all()),
        left_out=dict(left_out),
        loss=drawn.loss,
        notes=tuple(notes),
    )


def _wrong(vector: NDArray[Any] | None, dim: int | None) -> str | None:
    """Why this row cannot be audited."""
    if vector is None or vector.size == 0:
        return "without a vector"
    if vector.ndim != 1 or vector.dtype.kind not in "fiu":
        return "with something that is no vector"
    if vector.size != dim:
        return f"with {vector.size} dimensions instead of {dim}"
    with np.errstate(over="ignore"):
        values = vector.astype(np.float32)
    if not np.isfinite(values).all():
        return "with NaN or infinite entries"
    if not math.sqrt(float(np.square(values, dtype=np.float64).sum())):
        return "with a zero vector"
    return None
