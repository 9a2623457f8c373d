"""model2vec static models: a table of token vectors and a mean, numpy only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from unembed.data.encoders.base import Spec, Vectors, encode_checked, hash_model
from unembed.data.encoders.hub import model_folder
from unembed.errors import EncoderError, MissingExtraError

FILES = ("*.safetensors", "*.json")


def create(spec: Spec) -> StaticEncoder:
    """Make the encoder of a spec `model2vec:<hub id or folder>[?revision=<commit>]`."""
    spec.allow("revision")
    return StaticEncoder(model_folder(spec, spec.argument, FILES), name=spec.text)


class StaticEncoder:
    """A static model in a folder."""

    def __init__(self, folder: Path, *, name: str) -> None:
        try:
            from model2vec import StaticModel
        except ImportError:
            raise MissingExtraError("model2vec", "model2vec", "a static model as encoder") from None
        try:
            self._model = StaticModel.from_pretrained(folder)
        except Exception as error:
            raise EncoderError(f"{folder} is not a model2vec model: {error}") from error
        self.name = name
        self.fingerprint = hash_model(folder, [file for pattern in FILES for file in folder.glob(pattern)])
        self.dim = int(self._model.dim)
        self.normalized = bool(self._model.normalize)  # a text without a known token still gets a zero vector

    def encode(self, texts: list[str]) -> Vectors:
        """Embed texts."""
        return encode_checked(texts, self._vectors, self.dim, self.name)

    def _vectors(self, texts: list[str]) -> Vectors:
        # One process: the library would fork for long lists, which is unsafe beside torch's threads.
        return np.asarray(self._model.encode(texts, use_multiprocessing=False), dtype=np.float32)
