"""Doubles that are small but real: a tokenizer, an encoder of word counts, an inverter that knows some answers."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from unembed.data.dataset import Examples
from unembed.data.text import decode
from unembed.data.windows import split_of, text_hash
from unembed.decode import DecodeConfig, Inversion
from unembed.measure.results import Estimate, NearCopies, Results, Sample, SystemResult
from unembed.model.artifact import EncoderInfo

WORDS = [
    "the", "a", "cat", "dog", "bird", "sat", "ran", "flew", "on", "under", "over", "mat", "road", "roof", "and", "then",
    "slowly", "away", ".", "!", "again", "home",
]  # fmt: skip
DIM = 24


def make_tokenizer() -> Tokenizer:
    """Whole words, lower case, BERT's punctuation splitting."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[MASK]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


class WordCounts:
    """An encoder: every word has a direction, a text is their sum, a little tilted by order."""

    name, dim, normalized, fingerprint = "words", DIM, True, "words-1"

    def encode(self, texts: list[str]) -> np.ndarray:
        """Unit vectors (n, DIM)."""
        rows = [sum((self._word(w) * (1 + 0.1 * i) for i, w in enumerate(t.split())), np.zeros(DIM)) for t in texts]
        return np.array([row / np.linalg.norm(row) for row in rows], dtype=np.float32)

    @staticmethod
    @cache
    def _word(word: str) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
        return np.random.default_rng(seed).normal(size=DIM)


def make_texts(split: str, n: int, seed: int = 0) -> list[str]:
    """Different texts that all hash into `split`."""
    rng = np.random.default_rng(seed)
    tokenizer = make_tokenizer()
    texts: list[str] = []
    while len(texts) < n:
        ids = rng.integers(3, tokenizer.get_vocab_size(), size=rng.integers(3, 13)).tolist()
        text = decode(tokenizer, [ids])[0]
        if split_of(text_hash(text)) == split and text not in texts:
            texts.append(text)
    return texts


def make_examples(texts: list[str]) -> Examples:
    """The texts as a dataset gives them, of two sources."""
    tokens = [np.array(make_tokenizer().encode(text).ids, dtype=np.uint16) for text in texts]
    vectors = WordCounts().encode(texts).astype(np.float16)
    return Examples(tokens, texts, vectors, ["wiki" if i % 3 else "news" for i in range(len(texts))])


class CountedNet(torch.nn.Module):
    """Stands where the denoiser stands; its calls are counted."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Nothing."""
        return tokens


@dataclass
class LookupInverter:
    """Recovers the texts it was told, with the last word dropped from every fourth; without a vector says one thing."""

    texts: list[str]
    seen: list[DecodeConfig] = field(default_factory=list)

    def __post_init__(self) -> None:
        info = EncoderInfo("words", DIM, True, "words-1")
        self.artifact: Any = SimpleNamespace(net=CountedNet(), tokenizer=make_tokenizer(), encoder=info, info={})
        self._vectors = WordCounts().encode(self.texts)

    def invert(self, vectors: np.ndarray, config: DecodeConfig) -> list[Inversion]:
        """Two passes for each text."""
        self.seen.append(config)
        for _ in range(2):
            self.artifact.net(torch.zeros(len(vectors), 4))
        return [self._answer(int((self._vectors @ v).argmax()), config) for v in vectors.astype(np.float32)]

    def _answer(self, i: int, config: DecodeConfig) -> Inversion:
        text = self.texts[i] if i % 4 else self.texts[i].rpartition(" ")[0]
        text = "the cat" if config.guidance == 0 else text
        return Inversion(text, (), (), 0.0, steps=2, passes=2)


class ListDataset:
    """Training texts in two shards, by the contract of `Dataset`."""

    def __init__(self, texts: list[str]) -> None:
        self.tokenizer, self.shards, self._examples = make_tokenizer(), 2, make_examples(texts)
        self.reads = 0

    def count(self, split: str) -> int:
        """Only training texts here."""
        return len(self._examples.texts) if split == "train" else 0

    def shard(self, index: int, split: str) -> tuple[list[np.ndarray], np.ndarray, list[str]]:
        """Every second row."""
        assert split == "train"
        self.reads += 1
        e = self._examples
        return e.tokens[index::2], e.vectors[index::2], e.sources[index::2]


def make_results() -> Results:
    """Results as an evaluation could have made them."""

    def scores(accuracy: float, bleu: float, n: int) -> dict[str, Estimate]:
        return {
            "token_accuracy": Estimate(accuracy, accuracy - 0.01, accuracy + 0.01, n),
            "bleu": Estimate(bleu, bleu - 1, bleu + 1, n),
        }

    def system(name: str, kind: str, accuracy: float, bleu: float, passes: float | None) -> SystemResult:
        sources = {source: scores(accuracy, bleu, n) for source, n in (("news", 5), ("wiki", 7))}
        lengths = {length: scores(accuracy, bleu, n) for length, n in (("3-8", 5), ("9-16", 7))}
        samples = [Sample("the cat sat", "the cat ran", "wiki", 2 / 3, 0.9)]
        return SystemResult(name, kind, "", {}, scores(accuracy, bleu, 12), sources, lengths, 0.25, passes, samples)

    return Results(
        split="test", n=12, seed=0, resamples=1000,
        systems=[
            system("original", "reference", 1.0, 100.0, None), system("slow", "inverter", 0.40, 30.0, 24.0),
            system("fast", "inverter", 0.42, 29.0, 24.0), system("nearest", "baseline", 0.10, 5.0, None),
        ],
        near_copies=NearCopies(12, 60, {"0.5": 0.5, "0.95": 0.7}, 0.8, 2),
        notes=["perplexity was left out: no language model was given"],
        bleu_signature="nrefs:1", perplexity_model=None, encoder={}, weights="", dataset="", versions={}, machine={},
        command="unembed evaluate", date="2026-11-16T00:00:00+00:00",
    )  # fmt: skip
