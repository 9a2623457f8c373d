"""What is measured of one recovered text, and how texts add up to one number.

Every metric is a function of sums over texts: a mean is (sum of values) / (number of texts), corpus BLEU a
function of summed n-gram counts, perplexity of summed log-likelihoods. So each text leaves a few numbers
(its columns), and the bootstrap only has to resample rows and add them up again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import LCSseq

Array = npt.NDArray[np.float64]
BLEU_ORDERS = 4
_WORD = re.compile(r"[^\W_]+")


def token_accuracy(reference: Sequence[int], recovered: Sequence[int]) -> float:
    """Share of positions with the right token, of the longer text: a wrong length costs accuracy."""
    longest = max(len(reference), len(recovered))
    return sum(a == b for a, b in zip(reference, recovered, strict=False)) / longest if longest else 1.0


def exact_match(reference: str, recovered: str) -> float:
    """1 if the text came back to the letter."""
    return float(reference == recovered)


def token_f1(reference: Sequence[int], recovered: Sequence[int]) -> float:
    """F1 of the two multisets of tokens: order is ignored, repetition counts."""
    total = len(reference) + len(recovered)
    return 2 * (Counter(reference) & Counter(recovered)).total() / total if total else 1.0


def words(text: str) -> list[str]:
    """Runs of letters and digits in lower case; for ASCII text the same as those of the `rouge-score` package."""
    return _WORD.findall(text.lower())


def rouge_l(reference: str, recovered: str) -> float:
    """ROUGE-L F1: the longest common subsequence of words."""
    a, b = words(reference), words(recovered)
    total = len(a) + len(b)
    return 2 * LCSseq.similarity(a, b) / total if total else 1.0


def length_error(reference: Sequence[int], recovered: Sequence[int]) -> float:
    """Absolute difference of the lengths, in tokens."""
    return float(abs(len(reference) - len(recovered)))


def cosine(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> Array:
    """Cosine of each row of a with the same row of b; (n, d), (n, d) -> (n,). A zero row gives 0."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    dots: Array = (a * b).sum(1)
    cosines: Array = np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)
    return cosines


class Bleu:
    """sacrebleu's corpus BLEU, taken apart into one row of counts for each text."""

    def __init__(self) -> None:
        from sacrebleu.metrics.bleu import BLEU  # here, so that tables can be drawn without it

        self._bleu = BLEU()
        # sacrebleu completes its signature (number of references) with the first score.
        self._bleu.corpus_score(["a"], [["a"]])
        self.signature = str(self._bleu.get_signature())

    def counts(self, references: Sequence[str], recovered: Sequence[str]) -> Array:
        """(n, 10): length, reference length, 4 matched and 4 total n-gram counts."""
        rows = np.zeros((len(references), 2 + 2 * BLEU_ORDERS))
        for row, reference, text in zip(rows, references, recovered, strict=True):
            score = self._bleu.corpus_score([text], [[reference]])
            row[:] = [score.sys_len, score.ref_len, *score.counts, *score.totals]
        return rows


def bleu_of(sums: Array) -> Array:
    """Corpus BLEU (0 to 100) of summed counts, (..., 10) -> (...), with sacrebleu's `exp` smoothing."""
    length, wanted = sums[..., 0], sums[..., 1]
    matched, total = sums[..., 2 : 2 + BLEU_ORDERS], sums[..., 2 + BLEU_ORDERS :]
    # Each order without a match counts half as much as the one before it: 1/2, 1/4, ... of a match.
    misses = np.cumsum(matched == 0, axis=-1)
    smoothed = np.where(matched == 0, 0.5**misses, matched)
    precision = np.exp(np.log(smoothed / np.maximum(total, 1)).mean(-1))
    brevity = np.exp(np.minimum(0.0, 1 - wanted / np.maximum(length, 1)))
    # Too short for an n-gram of every order, or nothing matched at all: BLEU is 0.
    possible = (total > 0).all(-1) & (matched > 0).any(-1)
    return np.where(possible, 100 * brevity * precision, 0.0)


def mean_of(sums: Array) -> Array:
    """(..., 2) of (sum of values, number of values) -> mean."""
    total, count = sums[..., 0], sums[..., 1]
    means: Array = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return means


def perplexity_of(sums: Array) -> Array:
    """(..., 2) of (sum of negative log-likelihoods, number of tokens) -> perplexity, weighted by tokens."""
    return np.exp(mean_of(sums))


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of the results: its name, how it is shown, and how summed columns become it."""

    name: str
    title: str
    combine: Callable[[Array], Array]
    percent: bool = False
    decimals: int = 1
    higher_is_better: bool = True


METRICS = {
    metric.name: metric
    for metric in (
        Metric("token_accuracy", "token acc. %", mean_of, percent=True),
        Metric("exact_match", "exact %", mean_of, percent=True),
        Metric("token_f1", "token F1 %", mean_of, percent=True),
        Metric("rouge_l", "ROUGE-L %", mean_of, percent=True),
        Metric("bleu", "BLEU", bleu_of),
        Metric("bleu_text", "BLEU/text", mean_of),
        Metric("cosine", "cosine", mean_of, decimals=3),
        Metric("length_error", "length error", mean_of, decimals=2, higher_is_better=False),
        Metric("perplexity", "perplexity", perplexity_of, higher_is_better=False),
    )
}


def score_texts(
    references: Sequence[str],
    recovered: Sequence[str],
    reference_tokens: Sequence[Sequence[int]],
    recovered_tokens: Sequence[Sequence[int]],
    bleu: Bleu,
) -> dict[str, Array]:
    """Columns (n, k) of every metric that needs nothing but the texts; tokens are those of the texts."""

    def average(values: list[float]) -> Array:
        return np.stack([np.array(values, dtype=np.float64), np.ones(len(values))], axis=1)

    counts = bleu.counts(references, recovered)
    texts = list(zip(references, recovered, strict=True))
    tokens = list(zip(reference_tokens, recovered_tokens, strict=True))
    return {
        "token_accuracy": average([token_accuracy(a, b) for a, b in tokens]),
        "exact_match": average([exact_match(a, b) for a, b in texts]),
        "token_f1": average([token_f1(a, b) for a, b in tokens]),
        "rouge_l": average([rouge_l(a, b) for a, b in texts]),
        "bleu": counts,
        # What Vec2Text and ALGEN print as BLEU is the mean of the texts' own; about twice that of the corpus.
        "bleu_text": average(bleu_of(counts).tolist()),
        "length_error": average([length_error(a, b) for a, b in tokens]),
    }
