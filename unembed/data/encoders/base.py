"""What an encoder is, how its spec is read, and the checks which all members share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from unembed.data.shards import file_sha256
from unembed.errors import EncoderError

Vectors = npt.NDArray[np.float32]
UNIT_TOLERANCE = 1e-3  # wide enough for models that normalise in half precision


@runtime_checkable
class Encoder(Protocol):
    """Texts in, production vectors out."""

    @property
    def name(self) -> str:
        """The spec that `load` turns into this encoder again."""

    @property
    def dim(self) -> int:
        """Length of a vector."""

    @property
    def normalized(self) -> bool:
        """Whether the vectors have length 1."""

    @property
    def fingerprint(self) -> str:
        """A hash of what decides the vectors; "" if that cannot be known."""

    def encode(self, texts: list[str]) -> Vectors:
        """Embed texts: float32 (n, dim), row i for text i."""


@dataclass(frozen=True)
class Spec:
    """A spec taken apart: `kind[:argument][?option=value&...]`."""

    text: str
    kind: str
    argument: str
    options: Mapping[str, str]

    def allow(self, *names: str) -> None:
        """Refuse options other than these."""
        for option in self.options:
            if option not in names:
                known = ", ".join(names) or "none"
                raise EncoderError(f"unknown option '{option}' in encoder '{self.text}': {self.kind} knows {known}")


Factory = Callable[[Spec], Encoder]
"""What a member registers: it makes the encoder that a spec of its kind describes."""


def parse(text: str) -> Spec:
    """Take a spec apart."""
    head, mark, tail = text.strip().rpartition("?")
    if not mark:
        head, tail = tail, ""
    kind, _, argument = head.partition(":")
    options = {}
    for part in filter(None, tail.split("&")):
        key, equals, value = part.partition("=")
        if not (key and equals and value):
            raise EncoderError(f"cannot read '{part}' in encoder '{text}': write options as ?name=value&name=value")
        options[key] = value
    return Spec(text.strip(), kind.strip(), argument.strip(), options)


def check_texts(texts: Sequence[str]) -> None:
    """Refuse what is not a list of strings; a lone string would be read as a list of its letters."""
    if isinstance(texts, str):
        raise EncoderError("encode takes a list of texts, not one string: write encode([text])")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise EncoderError(f"text {row} is {type(text).__name__}, not a string")


def check_vectors(vectors: npt.ArrayLike, rows: int, dim: int | None, name: str) -> Vectors:
    """Return float32 (rows, dim), or say what is wrong with what an encoder gave back."""
    array = np.asarray(vectors, dtype=np.float32)
    if array.ndim != 2 or len(array) != rows:
        raise EncoderError(f"encoder '{name}' gave an array of shape {array.shape} for {rows} texts")
    if dim is not None and array.shape[1] != dim:
        raise EncoderError(f"encoder '{name}' gave vectors of {array.shape[1]} dimensions, before it was {dim}")
    finite = np.isfinite(array).all(axis=1)
    if not finite.all():
        raise EncoderError(f"encoder '{name}' gave a vector with NaN or infinity for text {int(np.argmin(finite))}")
    return array


def encode_checked(texts: list[str], vectors: Callable[[list[str]], npt.ArrayLike], dim: int, name: str) -> Vectors:
    """Embed texts by `vectors`, with the checks before and after; no texts give (0, dim)."""
    check_texts(texts)
    if not texts:
        return np.empty((0, dim), dtype=np.float32)
    return check_vectors(vectors(texts), len(texts), dim, name)


def are_unit(vectors: Vectors) -> bool:
    """Whether all rows have length 1."""
    return bool(np.all(np.abs(np.linalg.norm(vectors, axis=1) - 1) < UNIT_TOLERANCE))


def hash_model(folder: Path, files: Sequence[Path], *extra: str) -> str:
    """Sha256 over the names and contents of a model's files and over settings such as the prompt."""
    lines = [f"{file.relative_to(folder).as_posix()} {file_sha256(file)}" for file in sorted(files)]
    return hashlib.sha256("\n".join([*lines, *(repr(item) for item in extra)]).encode()).hexdigest()
