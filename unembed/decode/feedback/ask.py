"""Asking the encoder: all texts of a round in one call, each different text once, and bad answers kept out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from unembed.errors import EncoderError, UnembedError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Encodes(Protocol):
    """All that a black box must do; `unembed.data.encoders.Encoder` does it."""

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """Embed texts: float32 (n, dim), row i for text i."""


class Asker:
    """Vectors of texts; what was asked once is remembered until `forget`."""

    def __init__(self, encoder: Encodes, dim: int) -> None:
        self._encoder, self._dim = encoder, dim
        self._known: dict[str, NDArray[np.float32]] = {}
        self.texts = 0
        """Texts that were sent to the encoder so far."""

    def vectors(self, texts: Iterable[str]) -> dict[str, NDArray[np.float32]]:
        """The unit vector of every text. One with NaN in its vector is left out; if all are such, that is an error."""
        wanted = list(dict.fromkeys(texts))
        new = [text for text in wanted if text not in self._known]
        if new:
            self.texts += len(new)
            rows = self._encode(new)
            norms = np.linalg.norm(rows, axis=1)
            usable = np.isfinite(norms) & (norms > 0)
            if not usable.any():
                raise EncoderError(f"the encoder gave no usable vector for {len(new)} texts (NaN, infinity or zero)")
            for k in np.flatnonzero(usable):
                self._known[new[k]] = rows[k] / norms[k]
        return {text: self._known[text] for text in wanted if text in self._known}

    def forget(self) -> None:
        """Give the memory back; other vectors have other texts."""
        self._known.clear()

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        try:
            rows = np.asarray(self._encoder.encode(texts), dtype=np.float32)
        except UnembedError:
            raise
        except Exception as error:  # whatever a third party's encoder raises
            raise EncoderError(f"the encoder failed: {error or type(error).__name__}") from error
        if rows.shape != (len(texts), self._dim):
            raise EncoderError(
                f"the encoder gave an array of shape {rows.shape} for {len(texts)} texts and vectors of {self._dim} "
                "dimensions: give the encoder that made the vectors"
            )
        return rows
