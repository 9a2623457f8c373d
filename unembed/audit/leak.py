"""What came back of each vector, and how much of it is right: measured where the text is stored, else estimated.

The estimate is token F1. It comes from what recovery knows without the original (how sure the network was, the
length, and the cosine between the vector and the recovered text where the encoder is at hand), through a line fitted
on held-out texts. Its interval is conformal: residuals of texts that the line was not fitted on, scaled by how far
off it usually is at that value. It holds for texts like those it was fitted on, which are no longer than the
inverter's window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from unembed.audit.calibration import Calibration
from unembed.data.text import decode
from unembed.decode import Inversion
from unembed.errors import DataError
from unembed.measure.metrics import Array, cosine, exact_match, rouge_l, token_f1

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from unembed.data.encoders import Encoder
    from unembed.decode import DecodeConfig
    from unembed.inverter import Inverter

__all__ = ["Calibration", "Recovered", "features", "longer_than_window", "recover", "tokens_of"]

ALONE = 5
"""Of the features, so many do without the encoder."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of one vector."""

    text: str
    score: float
    """As the inverter gives it."""
    confidence: tuple[float, ...]
    """For each token the probability it had when it was chosen."""
    cosine: float | None
    """Of the vector and the recovered text; None without the encoder."""
    estimate: float | None
    """Token F1, estimated without the original; None without a calibration."""
    low: float | None
    """95 % prediction interval of `estimate`."""
    high: float | None
    truth: dict[str, float] | None
    """Where the text is stored: exact_match, token_f1, rouge_l and, with the encoder, cosine of both texts.

    Compared is the text as the inverter's tokenizer writes it (no case), with all its tokens: what lies beyond the
    inverter's window counts as not recovered.
    """


def recover(
    inverter: Inverter,
    vectors: NDArray[np.float32],
    texts: Sequence[str | None],
    *,
    encoder: Encoder | None,
    calibration: Calibration | None,
    config: DecodeConfig | None = None,
) -> list[Recovered]:
    """Invert every vector, and say how good each result is.

    Args:
        inverter: of the encoder that made the vectors.
        vectors: (n, d), as the inverter reads them.
        texts: the stored text of each vector, or None.
        encoder: re-embeds what was recovered; it is not asked on the way (that is `Inverter.search`).
        calibration: of this inverter and these settings; None leaves the estimates out.
        config: settings of decoding.
    """
    if len(texts) != len(vectors):
        raise DataError(f"{len(texts)} texts for {len(vectors)} vectors: give one, or None, for each")
    if not len(vectors):
        return []
    config = inverter.decoding(config)
    if calibration is not None:
        calibration.check(config)
    found = inverter.invert(vectors, config)
    again = None if encoder is None else embed(encoder, [one.text for one in found])
    cosines = None if again is None else cosine(again, vectors)
    truths = truth(inverter.artifact.tokenizer, texts, found, encoder, again)
    guesses = [(None, None, None)] * len(found)
    if calibration is not None:
        table = calibration.fit_for(encoder is not None).interval(features(found, cosines))
        guesses = [tuple(row) for row in table.tolist()]
    return [
        Recovered(
            text=one.text,
            score=one.score,
            confidence=one.confidence,
            cosine=None if cosines is None else float(cosines[row]),
            estimate=guesses[row][0],
            low=guesses[row][1],
            high=guesses[row][2],
            truth=truths[row],
        )
        for row, one in enumerate(found)
    ]


def features(found: Sequence[Inversion], cosines: Array | None) -> Array:
    """What the estimate is made from, (n, ALONE) without the encoder, two more with it."""
    rows = []
    for one in found:
        confidence = np.clip(np.array(one.confidence or (1e-9,)), 1e-9, 1)
        logs = np.log(confidence)
        rows.append([logs.mean(), np.sort(logs)[len(logs) // 2], confidence.mean(), np.log(len(logs)), one.score])
    table = np.array(rows, dtype=np.float64).reshape(len(rows), ALONE)
    if cosines is None:
        return table
    return np.column_stack([table, cosines, np.square(cosines)])


def truth(
    tokenizer: Tokenizer,
    texts: Sequence[str | None],
    found: Sequence[Inversion],
    encoder: Encoder | None,
    again: NDArray[np.float32] | None,
) -> list[dict[str, float] | None]:
    """Scores of the recovered texts, where the original is stored; `again` are the vectors of the recovered."""
    there = [row for row, text in enumerate(texts) if text]
    originals = [str(texts[row]) for row in there]
    tokens = tokens_of(tokenizer, originals)
    written = decode(tokenizer, tokens)
    recovered_tokens = tokens_of(tokenizer, [found[row].text for row in there])
    scores: list[dict[str, float] | None] = [None] * len(texts)
    for place, row in enumerate(there):
        scores[row] = {
            "exact_match": exact_match(written[place], found[row].text),
            "token_f1": token_f1(tokens[place], recovered_tokens[place]),
            "rouge_l": rouge_l(written[place], found[row].text),
        }
    if encoder is not None and again is not None and there:
        for row, value in zip(there, cosine(embed(encoder, originals), again[there]).tolist(), strict=True):
            scores[row]["cosine"] = value  # type: ignore[index]
    return scores


def longer_than_window(inverter: Inverter, texts: Sequence[str | None]) -> int:
    """How many stored texts the inverter cannot write in full."""
    tokens = tokens_of(inverter.artifact.tokenizer, [text for text in texts if text])
    return sum(len(row) > inverter.max_tokens for row in tokens)


def tokens_of(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """All tokens of each text."""
    return [row.ids for row in whole(tokenizer).encode_batch_fast(list(texts), add_special_tokens=False)]


def whole(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer without padding and truncation; a copy only where it has them."""
    if tokenizer.truncation is None and tokenizer.padding is None:
        return tokenizer
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


def embed(encoder: Encoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of texts, (n, d); an empty text, which some encoders refuse, has the zero vector."""
    there = [row for row, text in enumerate(texts) if text.strip()]
    vectors = np.zeros((len(texts), encoder.dim), dtype=np.float32)
    if there:
        vectors[there] = encoder.encode([texts[row] for row in there])
    return vectors
