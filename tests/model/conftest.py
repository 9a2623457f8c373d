"""A language of a few words, its tokenizer and an encoder that a tiny net can learn to invert."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from unembed.data.dataset import Dataset
from unembed.data.tokens import write_tokens
from unembed.data.vectors import write_vectors

WHO = ["the cat", "a dog", "my friend", "the old man", "our teacher", "nobody", "the king"]
DOES = ["sees", "likes", "forgets", "finds", "hears", "paints"]
WHAT = ["the house", "a red bird", "the sea", "an apple", "the long road", "music"]
WHEN = ["today", "at night", "in the rain", "every single day", "again"]


class BagEncoder:
    """Unit vectors that are the sum of a random vector for each (word, position)."""

    name, dim, normalized, fingerprint = "bag", 24, True, "bag-1"

    def encode(self, texts: list[str]) -> np.ndarray:
        vectors = np.stack([sum(self._word(w, i) for i, w in enumerate(t.split())) for t in texts])
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    def _word(self, word: str, place: int) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(f"{word} {place}".encode()).digest()[:8])
        return np.random.default_rng(seed).normal(size=self.dim)


def small_tokenizer() -> Tokenizer:
    words = sorted({w for part in (WHO, DOES, WHAT, WHEN) for phrase in part for w in phrase.split()})
    vocab = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words])}
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    tokenizer.decoder = WordPieceDecoder()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """About 1,300 different texts of 4 to 11 tokens with their vectors."""
    folder = tmp_path_factory.mktemp("language")
    lines = [" ".join(parts) + "." for parts in itertools.product(WHO, DOES, WHAT, WHEN)]
    (folder / "all.txt").write_text("\n".join(lines))
    out = Path(folder / "data")
    for _ in write_tokens([folder / "all.txt"], out, small_tokenizer(), max_tokens=16, shard_size=400):
        pass
    for _ in write_vectors(out, BagEncoder()):
        pass
    return Dataset(out)
