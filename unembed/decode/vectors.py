"""Vectors from anywhere, as checked chunks of float32 in bounded memory.

Files: `.npy` (memory-mapped), `.npz`, `.parquet`, `.jsonl`; `-` is JSON lines on standard input. In memory: numpy
arrays, lists, torch tensors. float16, float32, float64 and int8.

For an encoder whose vectors have unit length, rows of another length are brought to it, and `notes` says so.
"""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from unembed.errors import DataError

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

Source: TypeAlias = "NDArray[Any] | Sequence[Any] | torch.Tensor | str | Path"

CHUNK = 1024
# Norms further than this from 1 are no rounding error: float16 and bf16 stay within.
UNIT_TOLERANCE = 1e-2
DTYPES = ("float16", "float32", "float64", "int8")
COLUMNS = ("vector", "embedding", "embeddings", "values")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some vectors that follow each other in the source."""

    first: int
    """Row number of the first, counted from 0."""
    vectors: NDArray[np.float32]  # (n, d)


class VectorReader:
    """Iterate for chunks; afterwards `notes` tells what was done to the vectors."""

    def __init__(
        self, source: Source, *, dim: int, normalized: bool = True, column: str | None = None, chunk: int = CHUNK
    ) -> None:
        self._dim, self._normalized = dim, normalized
        self.name = _name(source)
        self.total, self._parts = _open(source, self.name, column, chunk)
        self._adjusted, self._quantised = 0, 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What was changed in the vectors read so far, in sentences."""
        notes = []
        if self._quantised:
            notes.append(f"{self._quantised} int8 vectors were divided by their norm (their scale is not known)")
        if self._adjusted:
            notes.append(f"{self._adjusted} vectors were not of unit length, as this encoder's are, and were scaled")
        return tuple(notes)

    def __iter__(self) -> Iterator[Chunk]:
        first = 0
        for part in self._parts():
            yield Chunk(first, self._checked(part, first))
            first += len(part)

    def _checked(self, part: NDArray[Any], first: int) -> NDArray[np.float32]:
        """float32 (n, d) of unit length where the encoder's are, or an error that names the row."""
        if part.dtype.name not in DTYPES:
            raise DataError(f"{self.name} holds {part.dtype}: give {', '.join(DTYPES)}")
        if part.shape[1] != self._dim:
            raise DataError(
                f"{self.name}, row {first}: the vector has {part.shape[1]} dimensions, this inverter reads "
                f"{self._dim}: choose the inverter of that encoder or train one (unembed train)"
            )
        with np.errstate(over="ignore"):
            vectors = np.array(part, dtype=np.float32, order="C")
        self._refuse(~np.isfinite(vectors).all(axis=1), first, "the vector has NaN or infinite entries")
        norms = np.sqrt(np.square(vectors, dtype=np.float64).sum(1))
        self._refuse(norms == 0, first, "the vector is zero")
        if part.dtype == np.int8 and not self._normalized:
            raise DataError(f"{self.name} is int8, and the scale is not known: give the vectors as float")
        if not self._normalized:
            return vectors
        off = np.abs(norms - 1) > UNIT_TOLERANCE
        vectors[off] = vectors[off] / norms[off, None]
        if part.dtype == np.int8:
            self._quantised += len(part)
        else:
            self._adjusted += int(off.sum())
        return vectors

    def _refuse(self, bad: Any, first: int, what: str) -> None:
        if bad.any():
            row = first + int(bad.argmax())
            raise DataError(f"{self.name}, row {row}: {what}: remove the row or embed its text again")


Parts: TypeAlias = "Callable[[], Iterator[NDArray[Any]]]"


def _open(source: Source, name: str, column: str | None, chunk: int) -> tuple[int | None, Parts]:
    """(number of rows if it is known, what yields arrays of at most `chunk` rows)."""
    if not isinstance(source, str | Path):
        array = _table(_array(source), name)
        return len(array), lambda: _slices(array, chunk)
    if source == "-":
        return None, lambda: _json_parts(sys.stdin.buffer, name, column, chunk)
    path = Path(source)
    if not path.is_file():
        raise DataError(f"no file {path}: give .npy, .npz, .parquet or .jsonl, or - for standard input")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        mapped = _table(_npy(path), name)
        return len(mapped), lambda: _slices(mapped, chunk)
    if suffix == ".npz":
        return npz(path, column, chunk)
    if suffix in (".parquet", ".pq"):
        return _parquet(path, column, chunk)
    if suffix in (".jsonl", ".ndjson"):
        return None, lambda: _json_file(path, column, chunk)
    raise DataError(f"{path}: vectors cannot be read from {suffix or 'this'}: give .npy, .npz, .parquet or .jsonl")


def _name(source: Source) -> str:
    if not isinstance(source, str | Path):
        return "the array"
    return "standard input" if source == "-" else str(source)


def _slices(array: NDArray[Any], chunk: int) -> Iterator[NDArray[Any]]:
    for first in range(0, len(array), chunk):
        yield array[first : first + chunk]


def _array(source: NDArray[Any] | Sequence[Any] | torch.Tensor) -> NDArray[Any]:
    """The numpy array of what is in memory."""
    if isinstance(source, np.ndarray):
        array = source
    elif hasattr(source, "detach"):
        tensor = cast("torch.Tensor", source).detach().cpu()
        array = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    else:
        try:
            array = np.asarray(source)
        except ValueError:
            raise DataError("the vectors do not all have the same number of dimensions: check the list") from None
        if array.dtype.kind in "iu":  # a Python list of whole numbers
            array = array.astype(np.float64)
    if array.dtype == object:
        raise DataError("the vectors are not all lists of numbers: give an array (rows, dimensions)")
    return array


def _table(array: NDArray[Any], name: str) -> NDArray[Any]:
    """One vector (d,) is a table of one row; the shape is checked here because a chunk of rows hides it."""
    if array.ndim == 1 and len(array):
        return array[None]
    if array.ndim == 2 or array.shape == (0,):
        return array
    raise DataError(f"{name} has the shape {array.shape}: give vectors as (rows, dimensions)")


def _npy(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} is no .npy that can be read ({_first_line(error)}): use numpy.save") from None
    return array


def npz(path: Path, column: str | None, chunk: int) -> tuple[int, Parts]:
    """Rows and chunks of the array of that name, or of the only one, in an .npz file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [member[:-4] for member in archive.namelist() if member.endswith(".npy")]
            name = pick(names, column, path, "array")
            with archive.open(f"{name}.npy") as stream:
                shape, fortran, _ = npy_header(stream)
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise DataError(f"{path} is no .npz that can be read ({_first_line(error)}): use numpy.savez") from None
    if fortran and len(shape) > 1:
        raise DataError(f"{path}: {name} is stored by columns: write numpy.ascontiguousarray of it")
    shape = (1, *shape) if len(shape) == 1 else shape
    if len(shape) != 2:
        raise DataError(f"{path}: {name} has the shape {shape}: give vectors as (rows, dimensions)")
    return shape[0], lambda: _npz_parts(path, name, shape, chunk)


def _npz_parts(path: Path, name: str, shape: tuple[int, ...], chunk: int) -> Iterator[NDArray[Any]]:
    """An array inside a zip cannot be mapped, but it can be read from front to back."""
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as stream:
        dtype = npy_header(stream)[2]
        row = int(np.prod(shape[1:])) * dtype.itemsize
        for first in range(0, shape[0], chunk):
            rows = min(chunk, shape[0] - first)
            try:
                data = stream.read(rows * row)
            except (zipfile.BadZipFile, EOFError) as error:
                raise DataError(f"{path} is damaged ({_first_line(error)}): copy it again") from None
            if len(data) != rows * row:
                raise DataError(f"{path} ends within row {first + len(data) // row}: copy it again")
            yield np.frombuffer(data, dtype).reshape(rows, *shape[1:])


def npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and type; the stream then stands at the data."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, fortran, dtype


def _parquet(path: Path, column: str | None, chunk: int) -> tuple[int, Parts]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is no Parquet file that can be read ({_first_line(error)})") from None
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    names = [field.name for field in file.schema_arrow if any(kind(field.type) for kind in kinds)]
    name = pick(names, column, path, "list column")
    return file.metadata.num_rows, lambda: _parquet_parts(path, name, chunk)


def _parquet_parts(path: Path, name: str, chunk: int) -> Iterator[NDArray[Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    first = 0
    with pq.ParquetFile(path) as file:
        try:
            for batch in file.iter_batches(chunk, columns=[name]):
                column = batch.column(0)
                lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
                values = column.flatten()
                if column.null_count or values.null_count:
                    row = first + int(np.argmax([None in (value or [None]) for value in column.to_pylist()]))
                    raise DataError(f"{path}, row {row}: the vector is missing or has missing entries: remove the row")
                if len(set(lengths.tolist())) > 1:
                    row = first + int((lengths != lengths[0]).argmax())
                    raise DataError(f"{path}, row {row}: the vector has another number of dimensions than row {first}")
                yield values.to_numpy(zero_copy_only=False).reshape(len(column), -1)
                first += len(column)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path} cannot be read after row {first} ({_first_line(error)}): copy it again") from None


def _json_file(path: Path, column: str | None, chunk: int) -> Iterator[NDArray[Any]]:
    with path.open("rb") as lines:
        yield from _json_parts(lines, str(path), column, chunk)


def _json_parts(lines: Iterable[bytes], name: str, column: str | None, chunk: int) -> Iterator[NDArray[Any]]:
    """A list on each line, or an object with a list in it; empty lines do not count."""
    waiting: list[list[float]] = []
    rows = 0
    for line in lines:
        if not line.strip():
            continue
        where = f"{name}, row {rows}"
        vector = _json_vector(line, where, column)
        if waiting and len(vector) != len(waiting[0]):
            raise DataError(f"{where}: the vector has {len(vector)} dimensions, those before have {len(waiting[0])}")
        waiting.append(vector)
        rows += 1
        if len(waiting) == chunk:
            yield np.array(waiting, dtype=np.float64)
            waiting = []
    if waiting:
        yield np.array(waiting, dtype=np.float64)


def _json_vector(line: bytes, where: str, column: str | None) -> list[float]:
    try:
        value = json.loads(line)
    except ValueError:
        raise DataError(f"{where}: not JSON: give a list of numbers, or an object with one, on each line") from None
    if isinstance(value, dict):
        lists = [key for key, item in value.items() if isinstance(item, list)]
        value = value[pick(lists, column, where, "list")]
    if not isinstance(value, list) or not value or any(type(item) not in (int, float) for item in value):
        raise DataError(f"{where}: the vector is not a list of numbers: check the line")
    try:
        return [float(item) for item in value]
    except OverflowError:
        raise DataError(f"{where}: the vector has a number too large for a float: check the line") from None


def pick(names: list[str], wanted: str | None, where: object, kind: str) -> str:
    """The one that was asked for, the only one, or the one with a usual name."""
    if wanted is not None:
        if wanted not in names:
            raise DataError(f"{where} has no {kind} {wanted!r}: it has {', '.join(names) or 'none'}")
        return wanted
    usual = [name for name in COLUMNS if name in names]
    if len(names) == 1 or len(usual) == 1:
        return names[0] if len(names) == 1 else usual[0]
    if not names:
        raise DataError(f"{where} has no {kind}: give a file with vectors")
    raise DataError(f"{where} has more than one {kind} ({', '.join(names)}): say which (column)")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
