"""FAISS index files: Flat, HNSW, IVF, scalar and product quantisers, with or without an id map.

FAISS maps the file where it can, and only the rows of the sample are decoded. An index keeps no text: give a sidecar.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unembed.audit.stores.base import (
    UNIT_TOLERANCE,
    Description,
    Drawn,
    Field,
    Loss,
    Store,
    StoreOptions,
    choose,
    client,
)
from unembed.audit.stores.safe import guarded, shown
from unembed.audit.stores.sidecar import read_texts
from unembed.errors import DataError

PURPOSE = "reading a FAISS index"
# Bits of each number of a scalar quantiser.
BITS = {"QT_8bit": 8, "QT_8bit_uniform": 8, "QT_6bit": 6, "QT_4bit": 4, "QT_4bit_uniform": 4}


def open_place(place: str, options: StoreOptions) -> Store:
    """Open an index file."""
    path = Path(place)
    if not path.is_file():
        raise DataError(f"there is no FAISS index {shown(place)}: give the file that faiss.write_index wrote")
    if options.table or options.column:
        raise DataError(f"{path} has no tables and no columns: leave them out")
    faiss = client("faiss", "faiss-cpu", "faiss", PURPOSE)
    advice = "give a file that faiss.write_index wrote, and check that you may read it"
    return FaissStore(path, guarded(lambda: _read(faiss, path), f"{path} is no FAISS index", advice), faiss, options)


def _read(faiss: Any, path: Path) -> Any:
    with path.open("rb") as file:  # FAISS's own words on a file without permission are long
        binary = file.read(2) == b"IB"
    if binary:
        return faiss.read_index_binary(str(path))
    # The first maps all arrays, the second those of inverted lists only.
    with contextlib.suppress(RuntimeError):
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
    return faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)


class FaissStore(Store):
    """One index file."""

    kind = "faiss"

    def __init__(self, path: Path, index: Any, faiss: Any, options: StoreOptions) -> None:
        self._path, self._faiss, self._options, self._dim = path, faiss, options, options.dim
        self._outer = index  # owns the memory of what is inside
        self._notes: tuple[str, ...] = ()
        self._ids: Any = None
        self._binary = type(index).__name__.startswith("IndexBinary")
        self._index = self._unwrapped(index)
        self._ivf: Any = None if self._binary else faiss.try_extract_index_ivf(self._index)
        if self._ivf is not None and "FastScan" in type(faiss.downcast_index(self._ivf)).__name__:
            # Its reconstruct_from_offset ends the process (faiss 1.15.1).
            raise DataError(f"{path} is an IVF fast-scan index, whose vectors FAISS cannot give back one by one")
        self._codec = self._find_codec()

    def _unwrapped(self, index: Any) -> Any:
        """The index inside id maps and refinements; of the latter, the part with the better vectors."""
        down = self._faiss.downcast_IndexBinary if self._binary else self._faiss.downcast_index
        index = down(index)
        while True:
            name = type(index).__name__
            if "IDMap" in name:
                self._ids, index = index.id_map, down(index.index)
            elif name.startswith("IndexRefine"):
                self._notes = ("the index keeps better vectors beside its codes, to refine a search: those were read",)
                index = down(index.refine_index)
            else:
                return index

    def _find_codec(self) -> Any:
        """What holds the vectors: a flat or quantised index, behind transforms and graphs."""
        index = self._index
        if self._binary:
            return index
        if type(index).__name__ == "IndexPreTransform":
            index = self._faiss.downcast_index(index.index)
        if hasattr(index, "storage"):  # HNSW, NSG
            index = self._faiss.downcast_index(index.storage)
        return index

    @property
    def place(self) -> str:
        """The path."""
        return str(self._path)

    @property
    def fields(self) -> tuple[Field, ...]:
        """An index keeps vectors only."""
        return ()

    def describe(self) -> Description:
        """What the index is made of."""
        metric = int(self._outer.metric_type)
        names = {self._faiss.METRIC_INNER_PRODUCT: "ip", self._faiss.METRIC_L2: "l2"}
        return Description(
            kind=self.kind,
            place=self.place,
            rows=int(self._index.ntotal),
            rows_exact=True,
            dim=int(self._outer.d),
            dtype=self._dtype(),
            metric="hamming" if self._binary else names.get(metric, f"faiss metric {metric}"),
            normalised=None,
            quantisation=self._quantisation(),
            vector_field=None,
            text_field=str(self._options.texts) if self._options.texts else None,
        )

    def _dtype(self) -> str:
        if self._binary:
            return "binary"
        if "Flat" in type(self._codec).__name__:
            return "float32"
        return {"QT_fp16": "float16", "QT_bf16": "bfloat16"}.get(self._quantiser() or "", "codes")

    def _quantiser(self) -> str | None:
        """Name of the type of a scalar quantiser."""
        if not hasattr(self._codec, "sq"):
            return None
        kind, types = self._codec.sq.qtype, self._faiss.ScalarQuantizer
        return next((name for name in dir(types) if name.startswith("QT_") and getattr(types, name) == kind), None)

    def _quantisation(self) -> str | None:
        if self._binary:
            return "1 bit for each dimension"
        parts = []
        if type(self._index).__name__ == "IndexPreTransform":
            chain = [
                self._faiss.downcast_VectorTransform(self._index.chain.at(i)) for i in range(self._index.chain.size())
            ]
            parts += [f"{type(step).__name__} {step.d_in} -> {step.d_out}" for step in chain if step.d_out < step.d_in]
        if self._quantiser():
            parts.append(f"scalar quantiser {self._quantiser()}")
        elif hasattr(self._codec, "pq"):
            parts.append(f"product quantiser, {self._codec.pq.M} codes of {self._codec.pq.nbits} bits")
        elif "Flat" not in type(self._codec).__name__:
            parts.append(f"codes of {type(self._codec).__name__}")
        return "; ".join(parts) or None

    def _draw(self, n: int, seed: int) -> Drawn:
        rows = int(self._index.ntotal)
        positions = choose(rows, n, seed)
        advice = "this kind of index cannot be audited, build one that can reconstruct its vectors"
        what = f"FAISS cannot give back the vectors of {self.place}"
        found = guarded(lambda: list(self._rows(positions)), what, advice)
        ids, vectors = [str(name) for name, _ in found], [vector for _, vector in found]
        texts: list[str | None] = [None] * len(ids)
        if self._options.texts and ids:
            texts = read_texts(self._options.texts, self._options.text, ids, rows)
        loss = self._loss(np.array(vectors)) if ids else None
        notes = self._notes
        if loss is None and self._quantisation():
            notes = (*notes, f"{self._quantisation()}: what was lost cannot be told from the index")
        return Drawn(ids, vectors, texts, self._dtype(), loss, notes)

    def _rows(self, positions: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """(id, vector) at these positions; those of inverted lists are counted list after list."""
        if self._ivf is None:
            for position in positions.tolist():
                vector = self._index.reconstruct(position)
                yield self._id(position), _signs(vector) if self._binary else vector
            return
        lists = self._ivf.invlists
        ends = np.cumsum([lists.list_size(number) for number in range(self._ivf.nlist)])
        for position in positions.tolist():
            number = int(np.searchsorted(ends, position, side="right"))
            offset = position - (int(ends[number - 1]) if number else 0)
            yield self._id(int(lists.get_single_id(number, offset))), self._of_list(number, offset)

    def _id(self, inner: int) -> int:
        return inner if self._ids is None else int(self._ids.at(inner))

    def _of_list(self, number: int, offset: int) -> NDArray[np.float32]:
        vector = np.empty(self._ivf.d, np.float32)
        self._ivf.reconstruct_from_offset(number, offset, self._faiss.swig_ptr(vector))
        if type(self._index).__name__ != "IndexPreTransform":
            return vector
        whole = np.empty(self._index.d, np.float32)
        self._index.reverse_chain(1, self._faiss.swig_ptr(vector), self._faiss.swig_ptr(whole))
        return whole

    def _loss(self, vectors: NDArray[np.float32]) -> Loss | None:
        """What the codes cost, from the index alone: the vectors that were put in are gone."""
        if self._quantisation() is None or self._binary:
            return None
        squared = np.square(vectors, dtype=np.float64).sum(1)  # (n,)
        quantiser = self._quantiser()
        if quantiser in BITS and type(self._index).__name__ != "IndexPreTransform":
            trained = self._faiss.vector_to_array(self._codec.sq.trained)
            ranges = trained[len(trained) // 2 :]  # per dimension, or one for all
            steps = np.broadcast_to(ranges, vectors.shape[1:]) / (2 ** BITS[quantiser] - 1)
            error = float(np.square(steps, dtype=np.float64).sum() / 12)  # of a number rounded to a step
            # The rounding error is part of what is stored: take it off for the length of the original.
            cosine = np.sqrt(np.clip(squared - error, 0, None) / np.where(squared > 0, squared, 1))
            return Loss(float(cosine.mean()), False, f"from the step widths of {quantiser}")
        if quantiser in ("QT_fp16", "QT_bf16"):
            return Loss(1.0, False, f"{quantiser} rounds each number by less than 1 %")
        norms = np.sqrt(squared)
        # What is left: product quantisers, and vectors cut down by PCA (8 bits change their length by next to nothing).
        means = hasattr(self._codec, "pq") or self._dtype() != "codes" or str(quantiser).startswith("QT_8bit")
        if not means or norms.mean() > 1 + UNIT_TOLERANCE:
            return None
        # Codes are cell means, E[x | code] = x'. For unit x: E[cos(x, x')] = E[<x, x'>] / |x'| = |x'|.
        how = "the mean length of the decoded vectors, which is the cosine if the originals had unit length"
        return Loss(float(min(1.0, norms.mean())), False, how)


def _signs(packed: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bits as numpy.packbits packs them, as -1 and 1."""
    return np.unpackbits(packed).astype(np.float32) * 2 - 1
