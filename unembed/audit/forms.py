"""How vectors are stored: precision, unit length, bits. Measured on the numbers themselves, not believed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unembed.audit import fingerprint
from unembed.audit.stores.base import UNIT_TOLERANCE
from unembed.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.audit.fingerprint import Fingerprint

# A byte of eight fair bits has a standard deviation of 74; numbers scaled into a byte have 30 to 45, as they leave room
# for their extremes.
PACKED_SPREAD = 58.0
# The same text, encoder and precision give at least this cosine. bfloat16 arithmetic costs 1e-4, int8 a little more;
# of bits, 1 in 200 turns because its number was next to zero.
EXACT = {"float32": 0.9995, "float16": 0.9995, "bfloat16": 0.999, "int8": 0.99, "binary": 0.99}
LOSSY = 0.9  # a quantiser that keeps less leaves nothing that could be called exact
# Of 384 dimensions of MiniLM, 256 / 128 / 64 gave a token F1 of .32 / .23 / .16 when completed; all .41, chance .08.
LEAST_SHARE = 1 / 6
FEW = 8  # rows that tell the mean and spread of a dimension well enough to compare with others of the same texts


@dataclass(frozen=True, slots=True)
class Form:
    """How the vectors are stored, measured on the sample."""

    dim: int
    """Of the vector; bits that are packed into bytes count one by one."""
    dtype: str
    """"float32", "float16" (every value is one), "bfloat16", "int8" or "binary"."""
    unit: bool
    """Whether all are of unit length."""
    truncated: bool | None
    """Cut off from vectors of more dimensions (Matryoshka); None: cannot be told."""
    notes: tuple[str, ...]


def readings(vectors: NDArray[np.float32]) -> list[Form]:
    """Forms that stored vectors, (n, d), may have, the likelier first: bytes are numbers or eight bits each."""
    dim, norms = vectors.shape[1], np.linalg.norm(vectors.astype(np.float64), axis=1)
    if (vectors == np.rint(vectors)).all() and vectors.min() >= -128 and vectors.max() <= 255:
        return _whole_numbers(vectors)
    unit = bool((np.abs(norms - 1) <= UNIT_TOLERANCE).all())
    notes = [] if unit else [f"The vectors are not of unit length: {norms.min():.3g} to {norms.max():.3g}."]
    dtype = "float32"
    if not (np.ascontiguousarray(vectors).view(np.uint32) & 0xFFFF).any():  # a bfloat16 is the upper half of a float32
        dtype = "bfloat16"
    elif np.array_equal(_half(vectors), vectors):
        dtype = "float16"
    if dtype != "float32":
        notes.append(f"Every value is a {dtype}.")
    return [Form(dim, dtype, unit, None, tuple(notes))]


def plain(vectors: NDArray[np.float32], form: Form) -> NDArray[np.float32]:
    """Stored vectors as numbers around zero: bits as -1 and 1, unsigned bytes moved down; floats are as they were."""
    if form.dtype == "binary":
        if form.dim != vectors.shape[1]:
            signed = vectors.min() < 0  # packed bits minus 128, as sentence-transformers writes them
            vectors = np.unpackbits((vectors + (128 if signed else 0)).astype(np.uint8), axis=1).astype(np.float32)
        return np.where(vectors > 0, 1, -1).astype(np.float32)
    if form.dtype == "int8" and vectors.min() >= 0:
        return (vectors - 128).astype(np.float32)
    return vectors


def usable(
    vectors: NDArray[np.float32], form: Form, known: Fingerprint | None, dim: int
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Stored vectors of an encoder, by its fingerprint, as an inverter of `dim` dimensions reads them; and notes."""
    if form.dim > dim:
        raise DataError(f"the store has {form.dim} dimensions, the inverter reads {dim}: choose that encoder's one")
    if form.dim < dim and (known is None or known.dim != dim or form.dim < LEAST_SHARE * dim):
        raise DataError(
            f"the store has {form.dim} dimensions, the inverter reads {dim}: embed the texts again in full, or train "
            f"an inverter for {form.dim} (unembed train)"
        )
    ready, notes = plain(vectors, form), list[str]()
    if form.dtype == "int8" and known is not None and fingerprint.scaled_by_dimension(ready, known):
        ready = fingerprint.rescale(ready, known)
        notes.append(
            "The int8 values were scaled by dimension, by scales that are not known: each dimension was given the "
            f"spread that it has in {known.spec}."
        )
    elif form.dtype == "int8":
        notes.append("The int8 vectors were divided by their norm, as their scale is not known.")
    elif form.dtype == "binary":
        notes.append("Each bit was read as -1 or 1: only the signs are left, and recovery is lower than from numbers.")
    elif not form.unit and known is not None and known.unit:
        notes.append(f"The vectors were not of unit length, as those of {known.spec} are, and were scaled.")
    if form.dim < dim and known is not None:
        ready = fingerprint.complete(unit(ready), known)
        notes.append(
            f"Of {dim} dimensions {dim - form.dim} were cut off. They were filled with what the others let expect; "
            "recovery is lower than from whole vectors."
        )
    return (unit(ready) if notes else ready), tuple(notes)


def as_stored(vectors: NDArray[np.float32], form: Form) -> NDArray[np.float32]:
    """Fresh vectors of an encoder, cut and rounded as those of this form are; the scale of int8 is not known."""
    cut = vectors[:, : form.dim]
    if form.dtype == "binary":
        return np.where(cut > 0, 1, -1).astype(np.float32)
    return _half(cut) if form.dtype == "float16" else cut


@dataclass(frozen=True, slots=True)
class Agreement:
    """How fresh vectors of texts agree with those that are stored beside the texts."""

    count: int
    exact: int
    """Texts that give the stored vector."""
    elsewhere: int
    """Texts that give the vector of another row."""
    median: float
    """Cosine to the vector of the own row."""
    others: float
    """Median cosine to those of the other rows."""
    nearest: float
    """Share of the texts that are nearer to the own row than to any other."""


def agree(
    fresh: NDArray[np.float32], vectors: NDArray[np.float32], rows: list[int], form: Form, kept: float = 1.0
) -> Agreement:
    """Compare fresh vectors of the texts of these rows with all stored ones, in their form.

    Args:
        fresh: of an encoder.
        vectors: stored, as `plain` gives them.
        rows: which of them the texts belong to.
        form: of the stored ones.
        kept: cosine that the store's own quantiser left between a vector and what it stored.
    """
    least = min(EXACT[form.dtype], kept - 0.02) if LOSSY <= kept < 1 else EXACT[form.dtype]
    fresh = as_stored(fresh, form)
    cosines = unit(fresh) @ unit(vectors).T  # (texts, n)
    if form.dtype == "binary":  # the share of equal signs is linear in the angle
        cosines = np.sin(cosines * (math.pi / 2))
    among = cosines[:, rows]  # (texts, texts)
    if form.dtype == "int8" and len(rows) >= FEW:  # it may have been scaled by dimension
        live = fresh.std(0) > 1e-6  # what never changes is noise after such scaling
        standard = unit(_standard(fresh[:, live])) @ unit(_standard(vectors[rows][:, live])).T
        among = max(among, standard, key=lambda one: float(np.median(np.diag(one))))
    own = np.diag(among)
    off = among[~np.eye(len(rows), dtype=bool)].reshape(len(rows), -1)  # (texts, texts - 1)
    is_exact = own >= least
    return Agreement(
        count=len(rows),
        exact=int(is_exact.sum()),
        elsewhere=int((~is_exact & (cosines.max(1) >= least)).sum()),
        median=float(np.median(own)),
        others=float(np.median(off)) if off.size else 0.0,
        nearest=float((own > off.max(1)).mean()) if off.size else 0.0,
    )


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors divided by their norms."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: NDArray[np.float32] = (vectors / np.maximum(norms, np.finfo(np.float32).tiny)).astype(np.float32)
    return scaled


def _standard(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each dimension with mean 0 and spread 1; one that never changes is 0."""
    scaled: NDArray[np.float32] = (vectors - vectors.mean(0)) / np.maximum(vectors.std(0), np.float32(1e-6))
    return scaled


def _whole_numbers(vectors: NDArray[np.float32]) -> list[Form]:
    dim, values = vectors.shape[1], np.unique(vectors)
    if len(values) <= 2 and set(values.tolist()) <= {-1.0, 0.0, 1.0}:
        note = f"Each dimension is one bit, stored as {values[0]:g} or {values[-1]:g}."
        return [Form(dim, "binary", False, None, (note,))]
    numbers = Form(dim, "int8", False, None, ("The values are whole numbers of one byte.",))
    bits = Form(8 * dim, "binary", False, None, (f"{8 * dim} bits are packed into {dim} bytes.",))
    return [bits, numbers] if vectors.std(0).mean() > PACKED_SPREAD else [numbers, bits]


def _half(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return vectors.astype(np.float16).astype(np.float32)
