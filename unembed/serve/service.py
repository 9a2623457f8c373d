"""What the routes work with: the worker, the encoder, and the checks of what comes in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unembed.errors import DataError
from unembed.serve.embedding import Embedding
from unembed.serve.limits import Limits, Refusal
from unembed.serve.search import Searches
from unembed.serve.worker import Worker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.inverter import Inverter

HERE = Path(__file__).parent
PACKAGES = ("unembed", "torch", "numpy", "tokenizers", "fastapi", "uvicorn")


class Service:
    """What the routes work with."""

    def __init__(self, inverter: Inverter, name: str, encoder: str, limits: Limits) -> None:
        self.inverter, self.name, self.limits = inverter, name, limits
        self.worker = Worker(inverter, limits)
        self.embedding = Embedding(encoder, inverter.artifact, limits, lambda: not self.worker.running)
        self.searches = Searches(inverter, self.embedding, limits)
        self.began = time.monotonic()
        self.examples = (HERE / "examples.txt").read_text(encoding="utf-8").splitlines()

    @property
    def status(self) -> str:
        """In one word."""
        if self.worker.failed:
            return "failed"
        if self.worker.stopping:
            return "stopping"
        return "ready" if self.worker.ready.is_set() and self.embedding.loaded.is_set() else "loading"

    @property
    def card(self) -> str:
        """What is known of the inverter, its scores above all, in Markdown."""
        info = self.inverter.artifact.info
        parts = [f"# {self.name}, an inverter for {self.inverter.encoder.spec}"]
        if metrics := info.get("metrics"):
            rows = "\n".join(f"{name}: {value}" for name, value in metrics.items())
            parts.append(f"## At the end of training, on validation texts\n{rows}")
        parts.append(info.get("notes", "Not measured on test texts yet: run `unembed evaluate`."))
        return "\n\n".join(parts) + "\n"

    def checked(self, vectors: Sequence[Sequence[float]], length: int | None) -> NDArray[np.float32]:
        """float32 (n, d), or a refusal that says which is wrong."""
        if len(vectors) > self.limits.vectors:
            raise bad("too_many_vectors", f"{len(vectors)} vectors, and {self.limits.vectors} is the most: send fewer")
        dim = self.inverter.dim
        for row, vector in enumerate(vectors):
            if len(vector) != dim:
                raise bad(
                    "wrong_dimension",
                    f"vector {row} has {len(vector)} dimensions, this inverter reads {dim} "
                    f"({self.inverter.encoder.spec}): send vectors of that encoder",
                )
        if length is not None and length > self.inverter.max_tokens:
            raise bad("bad_input", f"length: this inverter writes at most {self.inverter.max_tokens} tokens")
        try:
            return np.concatenate([chunk.vectors for chunk in self.inverter.reader(np.asarray(vectors, np.float64))])
        except DataError as error:
            raise bad("bad_vector", str(error)) from None

    async def cosine(self, vector: NDArray[np.float32], text: str) -> float | None:
        """Between the vector and that of the text; None when no encoder is at hand or it is too busy."""
        if not text.strip():
            return None
        try:
            other = await self.embedding.encode(text)
        except Refusal:
            return None
        norms = float(np.linalg.norm(vector) * np.linalg.norm(other))
        return round(float(vector @ other) / norms, 4) if norms else None


def bad(error: str, message: str) -> Refusal:
    """Wrong input."""
    return Refusal(422, error, message)
