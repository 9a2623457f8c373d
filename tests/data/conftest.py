"""A little text, the default tokenizer, and an encoder that costs nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from unembed.data import shards as disk
from unembed.data.shards import Progress, load_tokenizer
from unembed.data.tokens import default_tokenizer

SUBJECTS = ["The parcel", "A small dog", "My neighbour", "The committee", "Our teacher", "The old ship", "Nobody"]
VERBS = ["arrived late", "found a key", "read the letter", "crossed the bridge", "lost 42 coins", "was very tired"]
ENDS = ["on Tuesday", "in the rain", "near the station", "without a word", "before dinner", "again"]


def sentence(number: int) -> str:
    """One of many sentences; different for different numbers."""
    parts = [SUBJECTS[number % 7], VERBS[number // 7 % 6], ENDS[number // 42 % 6], f"for {number} days."]
    return " ".join(parts)


class HashEncoder:
    """Vectors that are a function of the text alone."""

    normalized = True
    fingerprint = "f0"

    def __init__(self, name: str = "hashing", dim: int = 8) -> None:
        self.name, self.dim = name, dim
        self.seen: list[str] = []

    def encode(self, texts: list[str]) -> np.ndarray:
        self.seen += texts
        rows = [
            np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])).normal(size=self.dim)
            for text in texts
        ]
        vectors = np.stack(rows).astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def finish(steps: Iterable[Progress]) -> Progress:
    """Run a stage to its end; returns the last progress."""
    return list(steps)[-1]


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder by their relative path; half-written ones of a killed run do not count."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".tmp"
    }


class Crash(BaseException):
    """What a kill looks like from inside."""


@contextmanager
def crash_after(writes: int) -> Iterator[None]:
    """Let so many files be written in the block; the next one is a crash, which the block must meet."""
    real = disk.write_whole

    def failing(path: Path, write: Callable[[Path], object]) -> None:
        nonlocal writes
        writes -= 1
        if writes < 0:
            raise Crash
        real(path, write)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "write_whole", failing)
        with pytest.raises(Crash):
            yield


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer(default_tokenizer())


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two text files with 400 sentences, 40 of them in both."""
    folder = tmp_path / "text"
    folder.mkdir()
    for name, rows in (("news", range(240)), ("mail", range(200, 400))):
        lines = [" ".join(sentence(i) for i in range(row, row + 4)) for row in rows if row % 4 == 0]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder
