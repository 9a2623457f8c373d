"""The ways to recover texts that are compared: the inverter under each strategy, and what it must beat.

Every way is a `System`; a baseline is one that the registry can make by name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from unembed.data.text import decode
from unembed.decode.config import AUTO, WRITER
from unembed.errors import ConfigError, DataError

if TYPE_CHECKING:
    from unembed.data.dataset import Dataset
    from unembed.decode import DecodeConfig
    from unembed.inverter import Inverter

Vectors = npt.NDArray[np.floating]
Advance = Callable[[int], None]
"""Called with the number of texts that are done."""

# Vectors handed to the inverter at once: enough to fill its batches of every length, and no more than can be lost.
CHUNK = 512
# Similarities held at once by the search for nearest neighbours: 2**23 are 32 MB.
_SIMILARITIES = 2**23


class System(Protocol):
    """Vectors in, texts out."""

    name: str
    kind: str
    description: str
    settings: dict[str, Any]
    chunk: int | None
    """How many vectors to hand over at once; None: all."""

    def recover(self, vectors: Vectors, advance: Advance) -> list[str]:
        """One text for each vector of (n, d), in order."""


class Strategy:
    """The inverter, from nothing but masks."""

    chunk: int | None = CHUNK

    def __init__(self, name: str, inverter: Inverter, config: DecodeConfig) -> None:
        self.name, self.kind, self.description = name, "inverter", "the inverter, from 100 % mask"
        self.settings = dataclasses.asdict(config)
        self._inverter, self._config = inverter, config

    def recover(self, vectors: Vectors, advance: Advance) -> list[str]:
        """Invert them."""
        texts = [inversion.text for inversion in self._inverter.invert(vectors.astype(np.float32), self._config)]
        advance(len(texts))
        return texts


class Unconditional(Strategy):
    """The same net and strategy with no vector: what it says from knowing the language alone."""

    def __init__(self, inverter: Inverter, config: DecodeConfig) -> None:
        # Guidance w gives u + w (c - u): at 0 nothing of the vector is left, in tokens and in length.
        strategy = "confidence" if config.strategy in (AUTO, WRITER) else config.strategy  # a writer has no guidance
        super().__init__("unconditional", inverter, dataclasses.replace(config, strategy=strategy, guidance=0.0))
        self.kind, self.description = "baseline", "the inverter with no vector"


class RandomTokens:
    """Tokens drawn by their frequency in training, as many as a training text has."""

    chunk: int | None = None

    def __init__(self, dataset: Dataset, seed: int, limit: int | None = None) -> None:
        self.name, self.kind = "random", "baseline"
        self._tokenizer: Tokenizer = dataset.tokenizer
        self._seed = seed
        counts = np.zeros(dataset.tokenizer.get_vocab_size(), dtype=np.int64)
        lengths = np.zeros(1, dtype=np.int64)
        for rows, _ in training_rows(dataset, limit):
            counts += np.bincount(np.concatenate(rows), minlength=len(counts))
            lengths = _add(lengths, np.bincount([len(row) for row in rows]))
        self._token_shares, self._length_shares = counts / counts.sum(), lengths / lengths.sum()
        self.settings = {"training_texts": int(lengths.sum()), "seed": seed}
        self.description = f"tokens and lengths drawn as in {lengths.sum():,} training texts"

    def recover(self, vectors: Vectors, advance: Advance) -> list[str]:
        """Draw; the vectors only say how many texts are wanted."""
        rng = np.random.default_rng(self._seed)
        lengths = rng.choice(len(self._length_shares), size=len(vectors), p=self._length_shares)
        tokens = rng.choice(len(self._token_shares), size=lengths.sum(), p=self._token_shares)
        rows = np.split(tokens, np.cumsum(lengths)[:-1])
        texts = decode(self._tokenizer, [row.tolist() for row in rows])
        advance(len(texts))
        return texts


class Nearest:
    """The training text whose vector is nearest, one shard in memory at a time."""

    chunk: int | None = None

    def __init__(self, dataset: Dataset, limit: int | None = None) -> None:
        self.name, self.kind = "nearest", "baseline"
        self._dataset, self._limit = dataset, limit
        self.training_texts = min(dataset.count("train"), limit or dataset.count("train"))
        self.settings: dict[str, Any] = {"training_texts": self.training_texts}
        self.description = f"nearest of {self.training_texts:,} training texts, by cosine"
        self.cosines: npt.NDArray[np.float32] = np.empty(0, dtype=np.float32)
        """Cosine of each vector to its nearest training text, after `recover`."""

    def recover(self, vectors: Vectors, advance: Advance) -> list[str]:
        """Search all training vectors for all the vectors at once, so that each shard is read once."""
        wanted = unit(vectors)  # (n, d)
        cosines = np.full(len(wanted), -np.inf, dtype=np.float32)
        tokens: list[list[int]] = [[] for _ in wanted]
        searched = 0
        for rows, trained in training_rows(self._dataset, self._limit):
            there = unit(trained).T  # (d, rows)
            block = max(1, _SIMILARITIES // len(rows))
            for start in range(0, len(wanted), block):
                similarity = wanted[start : start + block] @ there  # (block, rows)
                place = similarity.argmax(1)
                best = similarity[np.arange(len(place)), place]
                for i in np.flatnonzero(best > cosines[start : start + block]):
                    cosines[start + i], tokens[start + i] = best[i], rows[place[i]].tolist()
            searched += len(rows)
            advance(len(wanted) * searched // self.training_texts)
        self.cosines = cosines
        return decode(self._dataset.tokenizer, tokens)


@dataclass(frozen=True, slots=True)
class Context:
    """What a baseline may be made of."""

    inverter: Inverter
    config: DecodeConfig
    dataset: Dataset
    seed: int = 0
    training_texts: int | None = None
    """How many training texts to look at; None: all."""


BASELINES: dict[str, Callable[[Context], System]] = {
    "random": lambda context: RandomTokens(context.dataset, context.seed, context.training_texts),
    "unconditional": lambda context: Unconditional(context.inverter, context.config),
    "nearest": lambda context: Nearest(context.dataset, context.training_texts),
}


def baseline(name: str, context: Context) -> System:
    """The baseline of that name."""
    if name not in BASELINES:
        raise ConfigError(f"no baseline named {name!r}: choose one of {', '.join(BASELINES)}")
    return BASELINES[name](context)


def training_rows(dataset: Dataset, limit: int | None) -> Iterator[tuple[list[npt.NDArray[Any]], Vectors]]:
    """Tokens and vectors of the first `limit` training texts, shard by shard."""
    left = dataset.count("train") if limit is None else limit
    if left < 1 or not dataset.count("train"):
        raise DataError("there are no training texts to compare with: give a dataset with a training split")
    for index in range(dataset.shards):
        rows, vectors, _ = dataset.shard(index, "train")
        rows, vectors = rows[:left], vectors[:left]
        left -= len(rows)
        if rows:
            yield rows, vectors
        if left <= 0:
            return


def unit(vectors: Vectors) -> npt.NDArray[np.float32]:
    """Rows scaled to length 1, float32; a zero row stays zero."""
    rows = vectors.astype(np.float32)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: npt.NDArray[np.float32] = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return scaled


def _add(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sum of two histograms of different lengths."""
    size = max(len(a), len(b))
    return np.pad(a, (0, size - len(a))) + np.pad(b, (0, size - len(b)))
