"""Vectors in files: .npy, .npz, .jsonl, and .parquet (one, or a folder of them).

Only the rows of the sample are kept in memory, a row group or a line is read at a time.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unembed.audit.stores.base import (
    Description,
    Drawn,
    Field,
    Store,
    StoreOptions,
    as_text,
    choose,
    listed,
    pick_text,
)
from unembed.audit.stores.safe import NO_SECRETS, shown
from unembed.audit.stores.sidecar import ID_FIELDS, read_texts
from unembed.decode.vectors import npy_header, npz, pick
from unembed.errors import DataError

BATCH = 1024


def open_place(place: str, options: StoreOptions) -> Store:
    """Open the files at a path."""
    path = Path(place)
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise DataError(
            f"there is no file {shown(place)}: give .npy, .npz, .parquet or .jsonl, or a folder of .parquet"
        )
    if options.table is not None:
        raise DataError(f"{path} has no tables: leave the table out")
    suffix = files[0].suffix.lower()
    kinds: dict[str, Callable[[list[Path], StoreOptions], _Table]] = {
        ".npy": _Npy, ".npz": _Npz, ".parquet": _Parquet, ".pq": _Parquet, ".jsonl": _Json, ".ndjson": _Json,
    }  # fmt: skip
    if suffix not in kinds:
        raise DataError(f"{path}: vectors cannot be read from {suffix or 'this'}: give .npy, .npz, .parquet or .jsonl")
    try:
        return FileStore(path, files, kinds[suffix](files, options), options)
    except PermissionError:
        raise DataError(f"no permission to read {path}: ask its owner") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(_unreadable(path, error)) from None


def _unreadable(path: str | Path, error: Exception) -> str:
    return f"{path} cannot be read{NO_SECRETS.first_line(error)}: copy it again"


class FileStore(Store):
    """Files of vectors."""

    kind = "file"

    def __init__(self, path: Path, files: list[Path], table: _Table, options: StoreOptions) -> None:
        self._path, self._files, self._table, self._options = path, files, table, options
        self._dim = options.dim
        self._state = _state(files)

    @property
    def place(self) -> str:
        """The path."""
        return str(self._path)

    def describe(self) -> Description:
        """Shape and columns."""
        table = self._table
        return Description(
            kind=self.kind,
            place=self.place,
            rows=table.rows,
            rows_exact=True,
            dim=table.dim,
            dtype=table.dtype,
            metric=None,
            normalised=None,
            quantisation=None,
            vector_field=table.vector_field,
            text_field=str(self._options.texts) if self._options.texts else table.text_field,
        )

    @property
    def fields(self) -> tuple[Field, ...]:
        """Columns beside the vector."""
        return self._table.fields

    def _draw(self, n: int, seed: int) -> Drawn:
        positions = choose(self._table.rows, n, seed)
        failure = None
        try:
            rows = list(self._table.take(positions)) if len(positions) else []
        except (OSError, pa.ArrowException, DataError) as error:
            failure = str(error) if isinstance(error, DataError) else _unreadable(self.place, error)
        if _state(self._files) != self._state:
            failure = f"{self.place} changed while it was read: audit a copy, or stop what writes to it"
        if failure:
            raise DataError(failure)
        ids = [str(row[0]) for row in rows]
        texts = [as_text(row[2]) for row in rows]
        if self._options.texts and rows:
            texts = read_texts(self._options.texts, self._options.text, ids, self._table.rows)
        return Drawn(ids, [row[1] for row in rows], texts, self._table.dtype)


def _state(files: Sequence[Path]) -> list[tuple[int, int, int]]:
    try:
        return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in (file.stat() for file in files)]
    except OSError:
        return []


Row = tuple[Any, Any, Any]
"""Id, vector and text, as found."""


class _Table(ABC):
    """A format; the constructor finds out the shape, `take` gives rows at ascending positions."""

    rows: int
    dim: int | None
    dtype: str
    vector_field: str | None = None
    text_field: str | None = None
    fields: tuple[Field, ...] = ()

    @abstractmethod
    def take(self, positions: NDArray[np.int64]) -> Iterator[Row]:
        """Rows at these positions."""


class _Npy(_Table):
    """Rows are read one by one: a mapped file that shrinks would kill the process."""

    def __init__(self, files: list[Path], options: StoreOptions) -> None:
        self._path = files[0]
        try:
            with self._path.open("rb") as stream:
                shape, fortran, self._type = npy_header(stream)
                self._begin = stream.tell()
        except (ValueError, EOFError) as error:
            raise DataError(f"{self._path} is no .npy{NO_SECRETS.first_line(error)}: use numpy.save") from None
        if len(shape) != 2 or self._type.kind not in "fiu":
            raise DataError(f"{self._path} holds {self._type} {shape}: give vectors as numbers (rows, dimensions)")
        if fortran and shape[0] > 1:
            raise DataError(f"{self._path} is stored by columns: save numpy.ascontiguousarray of it")
        self.rows, self.dim, self.dtype = shape[0], shape[1], self._type.name
        if self._path.stat().st_size < self._begin + self.rows * shape[1] * self._type.itemsize:
            raise DataError(f"{self._path} is cut off: copy it again")

    def take(self, positions: NDArray[np.int64]) -> Iterator[Row]:
        """Rows at these positions."""
        size = int(self.dim or 0) * self._type.itemsize
        with self._path.open("rb") as stream:
            for position in positions.tolist():
                data = os.pread(stream.fileno(), size, self._begin + position * size)
                if len(data) != size:
                    raise DataError(f"{self._path} ends before row {position}: it was cut while it was read")
                yield position, np.frombuffer(data, self._type), None


class _Npz(_Table):
    def __init__(self, files: list[Path], options: StoreOptions) -> None:
        self.rows, self._parts = npz(files[0], options.column, BATCH)
        self.vector_field = options.column
        first = next(self._parts(), np.zeros((0, 0), np.float32))
        self.dim, self.dtype = first.shape[1] or None, first.dtype.name

    def take(self, positions: NDArray[np.int64]) -> Iterator[Row]:
        """Rows at these positions; a packed array is read from front to back."""
        first = 0
        for part in self._parts():
            for position in _within(positions, first, len(part)):
                yield position, part[position - first].copy(), None
            first += len(part)


class _Json(_Table):
    """A list on each line, or an object with a list in it; lines are counted first, then only the drawn are parsed."""

    dtype = "float64"

    def __init__(self, files: list[Path], options: StoreOptions) -> None:
        self._path, self._column, self._text = files[0], options.column, options.text
        self.rows, self.dim = sum(1 for _ in self._lines()), None
        if self.rows:
            record = self._record(next(self._lines()), 0)
            vector = self._vector(record, 0)
            self.dim = len(vector) if isinstance(vector, list) else None
            if isinstance(record, dict):
                self.fields = tuple(_json_field(key, value) for key, value in record.items() if value is not vector)
                self.vector_field = next((key for key, value in record.items() if value is vector), None)
            self.text_field = pick_text([field.name for field in self.fields], options.text, str(self._path))

    def _lines(self) -> Iterator[bytes]:
        with self._path.open("rb") as lines:
            yield from (line for line in lines if line.strip())

    def _record(self, line: bytes, row: int) -> Any:
        try:
            return json.loads(line)
        except ValueError:
            raise DataError(f"{self._path}, row {row}: not JSON: give a list or an object on each line") from None

    def _vector(self, record: Any, row: int) -> Any:
        where = f"{self._path}, row {row}"
        if isinstance(record, list):
            return record
        if not isinstance(record, dict):
            raise DataError(f"{where}: no vector: give a list of numbers, or an object with one")
        name = self._column or self.vector_field
        if name in record and not isinstance(record[name], list):
            return None  # such as null: a row without a vector
        lists = [key for key, value in record.items() if isinstance(value, list)]
        return record[pick(lists, name, where, "list")]

    def take(self, positions: NDArray[np.int64]) -> Iterator[Row]:
        """Rows at these positions."""
        wanted = set(positions.tolist())
        for row, line in enumerate(self._lines()):
            if row in wanted:
                record = self._record(line, row)
                keys = record if isinstance(record, dict) else {}
                name = next((keys[key] for key in ID_FIELDS if key in keys), row)
                yield name, _numbers(self._vector(record, row)), keys.get(self.text_field)


def _json_field(name: str, value: Any) -> Field:
    return Field(name, "text" if isinstance(value, str) else "number" if isinstance(value, int | float) else "json")


def _numbers(values: Any) -> Any:
    """An array if it is a vector; anything else is left for `checked` to refuse."""
    if not isinstance(values, list) or any(type(value) not in (int, float) for value in values):
        return None if values is None else np.array("no vector")
    return np.array(values, dtype=np.float64)


class _Parquet(_Table):
    """Of each row group that has a drawn row, three columns are read, a batch at a time."""

    def __init__(self, files: list[Path], options: StoreOptions) -> None:
        self._files = files
        self._counts = [pq.read_metadata(file).num_rows for file in files]
        self.rows = sum(self._counts)
        schema = pq.read_schema(files[0])
        where = str(files[0])
        if options.column in schema.names and not is_vector(schema.field(options.column).type):
            kind = schema.field(options.column).type
            raise DataError(f"{where}: the column {options.column} is {kind}, no list of numbers: name another")
        vectors = [field.name for field in schema if is_vector(field.type)]
        self.vector_field = pick(vectors, options.column, where, "column of vectors")
        kind = schema.field(self.vector_field).type
        self.dim = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        self.dtype = number_type(kind)
        self.fields = tuple(Field(field.name, arrow_type(field.type)) for field in schema if field.name not in vectors)
        names = [field.name for field in self.fields if field.type == "text"]
        self.text_field = pick_text(names, options.text, where)
        self._id = next((name for name in ID_FIELDS if name in schema.names), None)

    def take(self, positions: NDArray[np.int64]) -> Iterator[Row]:
        """Rows at these positions."""
        begin = 0
        for path, count in zip(self._files, self._counts, strict=True):
            inside = _within(positions, begin, count)
            if inside:
                yield from self._take(path, begin, np.array(inside, dtype=np.int64))
            begin += count

    def _take(self, path: Path, begin: int, positions: NDArray[np.int64]) -> Iterator[Row]:
        columns = list(dict.fromkeys(name for name in (self.vector_field, self.text_field, self._id) if name))
        with pq.ParquetFile(path, buffer_size=1 << 20) as file:
            missing = [name for name in columns if name not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{path} has no column {listed(missing)}, unlike {self._files[0].name}: leave it out")
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                first = begin
                for batch in file.iter_batches(BATCH, [group], columns) if _within(positions, begin, rows) else ():
                    yield from self._rows(batch, first, _within(positions, first, len(batch)))
                    first += len(batch)
                begin += rows

    def _rows(self, batch: pa.RecordBatch, first: int, positions: list[int]) -> Iterator[Row]:
        for position in positions:
            offset = position - first
            scalar = batch.column(self.vector_field)[offset]
            # A copy: a view would keep its whole batch in memory.
            vector = scalar.values.to_numpy(zero_copy_only=False).copy() if scalar.is_valid else None
            text = batch.column(self.text_field)[offset].as_py() if self.text_field else None
            yield batch.column(self._id)[offset].as_py() if self._id else position, vector, text


def is_vector(kind: pa.DataType) -> bool:
    """Whether a column of this type can hold vectors."""
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return lists and (pa.types.is_floating(kind.value_type) or kind.value_type in (pa.int8(), pa.uint8()))


def number_type(kind: pa.DataType) -> str:
    """The type of the numbers in a list, as numpy calls it."""
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return names.get(str(kind.value_type), str(kind.value_type))


def arrow_type(kind: pa.DataType) -> str:
    """The type as in `Field.type`."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text"
    return "number" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else str(kind)


def _within(positions: NDArray[np.int64], first: int, count: int) -> list[int]:
    """Those of the ascending positions that lie in [first, first + count)."""
    begin, end = np.searchsorted(positions, [first, first + count])
    return [int(position) for position in positions[begin:end]]
