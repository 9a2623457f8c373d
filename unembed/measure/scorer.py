"""Scores of recovered texts against their originals: columns of every metric, and estimates overall and by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from unembed.errors import ConfigError
from unembed.measure.baselines import Advance
from unembed.measure.bootstrap import estimate
from unembed.measure.metrics import Array, Bleu, cosine, score_texts
from unembed.measure.perplexity import LanguageModel
from unembed.measure.results import Sample, Scores

if TYPE_CHECKING:
    from unembed.data.dataset import Examples
    from unembed.data.encoders import Encoder

Columns = dict[str, Array]
Rows = npt.NDArray[np.intp]

LENGTHS = ((1, 2), (3, 8), (9, 16), (17, 24), (25, 32), (33, 1 << 30))
"""Buckets of the number of tokens of the original; empty ones are left out of the results."""
_CHUNK = 1024


class Scorer:
    """Scores recovered texts against fixed originals, overall and by group."""

    def __init__(
        self,
        examples: Examples,
        tokenizer: Tokenizer,
        encoder: Encoder | None,
        language_model: LanguageModel | None,
        perplexity_texts: int,
    ) -> None:
        if perplexity_texts < 1:
            raise ConfigError(f"perplexity over {perplexity_texts} texts: give at least 1")
        self.bleu = Bleu()
        self._perplexity_texts = perplexity_texts
        self._likelihoods: dict[str, Array] = {}
        self._examples, self._encoder, self._language_model = examples, encoder, language_model
        # A copy of the tokenizer, for its padding and truncation are settings of the object.
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokens = self._tokenize(examples.texts)
        lengths = np.array([len(row) for row in self._tokens])
        sources = np.array(examples.sources)
        self._sources = {str(name): np.flatnonzero(sources == name) for name in np.unique(sources)}
        self._lengths = {
            f"{low}-{high}" if high <= 32 else f"{low}+": np.flatnonzero((lengths >= low) & (lengths <= high))
            for low, high in LENGTHS
        }

    def columns(self, recovered: list[str], advance: Advance) -> Columns:
        """Columns (n, k) of every metric."""
        parts: list[Columns] = []
        for start in range(0, len(recovered), _CHUNK):
            parts.append(self._score(slice(start, start + _CHUNK), recovered[start : start + _CHUNK]))
            advance(min(start + _CHUNK, len(recovered)))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def estimates(
        self, columns: Columns, resamples: int, seed: int
    ) -> tuple[Scores, dict[str, Scores], dict[str, Scores]]:
        """Scores over all texts, by source and by length."""

        def by(groups: dict[str, Rows]) -> dict[str, Scores]:
            return {
                name: estimate_of(columns, rows, resamples=resamples, seed=seed)
                for name, rows in groups.items()
                if len(rows)
            }

        return estimate(columns, resamples=resamples, seed=seed), by(self._sources), by(self._lengths)

    def samples(self, rows: Sequence[int], recovered: list[str], columns: Columns) -> list[Sample]:
        """What was recovered of these texts."""
        cosines = columns.get("cosine")
        return [
            Sample(
                self._examples.texts[i], recovered[i], self._examples.sources[i],
                float(columns["token_accuracy"][i, 0]), None if cosines is None else float(cosines[i, 0]),
            )
            for i in rows
        ]  # fmt: skip

    def _score(self, rows: slice, recovered: list[str]) -> Columns:
        tokens = self._tokenize(recovered)
        columns = score_texts(self._examples.texts[rows], recovered, self._tokens[rows], tokens, self.bleu)
        if self._encoder is not None:
            # Some encoders refuse an empty text; an empty recovery has cosine 0.
            there = [i for i, text in enumerate(recovered) if text]
            values = np.zeros((len(recovered), 2))
            values[:, 1] = 1
            if there:
                again = self._encoder.encode([recovered[i] for i in there])
                values[there, 0] = cosine(again, self._examples.vectors[rows][there])
            columns["cosine"] = values
        if self._language_model is not None:
            columns["perplexity"] = np.zeros((len(recovered), 2))
            read = max(0, self._perplexity_texts - rows.start)
            if recovered[:read]:
                columns["perplexity"][:read] = self._log_likelihoods(self._language_model, recovered[:read])
        return columns

    def _log_likelihoods(self, model: LanguageModel, texts: list[str]) -> Array:
        """As the model gives them, but each different text is read once, whichever system it came from."""
        new = [text for text in dict.fromkeys(texts) if text not in self._likelihoods]
        self._likelihoods.update(zip(new, model.log_likelihoods(new), strict=True))
        return np.stack([self._likelihoods[text] for text in texts])

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def estimate_of(columns: Columns, rows: Rows, *, resamples: int, seed: int) -> Scores:
    """The estimates over some of the texts; none if there are no texts."""
    if not len(rows):
        return {}
    return estimate({name: values[rows] for name, values in columns.items()}, resamples=resamples, seed=seed)
