"""End-to-end evaluation: recover unseen texts from their vectors alone and score what comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from unembed.data.windows import SPLITS, split_of, text_hash
from unembed.errors import DataError
from unembed.measure import provenance
from unembed.measure.baselines import Advance, Nearest, Strategy, System, Vectors
from unembed.measure.bootstrap import estimate
from unembed.measure.metrics import Array, Bleu, cosine, score_texts
from unembed.measure.perplexity import LanguageModel
from unembed.measure.results import NearCopies, Results, Sample, Scores, SystemResult
from unembed.model.artifact import check_encoder

if TYPE_CHECKING:
    from unembed.data.dataset import Examples
    from unembed.data.encoders import Encoder
    from unembed.decode import DecodeConfig
    from unembed.inverter import Inverter

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the number of texts done, and of how many."""

LENGTHS = ((1, 2), (3, 8), (9, 16), (17, 24), (25, 32), (33, 1 << 30))
"""Buckets of the number of tokens of the original; empty ones are left out of the results."""
HELD_OUT = "held-out"
"""Name of a split that the caller vouches for: texts of a source that was never trained on."""
COPY_F1 = 0.8
_CHUNK = 1024


def evaluate(
    inverter: Inverter,
    examples: Examples,
    encoder: Encoder | None,
    strategies: Mapping[str, DecodeConfig],
    baselines: Sequence[System] = (),
    *,
    perplexity: LanguageModel | None = None,
    split: str = "test",
    allow_train: bool = False,
    seed: int = 0,
    resamples: int = 1000,
    samples: int = 10,
    dataset: str = "",
    weights: str = "",
    command: str | None = None,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Results:
    """Score every strategy and every baseline on the same texts.

    Args:
        inverter: The inverter under test.
        examples: The texts, their vectors and sources.
        encoder: Re-embeds what was recovered; None leaves the cosine out.
        strategies: Decoding settings by the name they get in the results.
        baselines: Systems from `baselines.baseline`.
        perplexity: Language model from `perplexity.load`; None leaves perplexity out.
        split: Where the texts come from; checked against the texts themselves.
        allow_train: Accept texts of the training split; the results then say so.
        seed: Decides the bootstrap draws and which samples are kept.
        resamples: Bootstrap draws.
        samples: Number of texts kept in the results with what was recovered of them.
        dataset: Fingerprint of the dataset.
        weights: sha256 of the inverter's weights.
        command: The command line; None takes that of this process.
        notes: More that a reader of the results must know.
        progress: Called as the work goes on.
    """
    notes = list(notes) + _check_split(examples.texts, split, allow_train)
    vectors = examples.vectors
    check_encoder(inverter.artifact, dim=vectors.shape[1])
    if encoder is None:
        notes.append("cosine was left out: no encoder was given")
    else:
        check_encoder(inverter.artifact, dim=encoder.dim, spec=encoder.name, fingerprint=encoder.fingerprint)
    if perplexity is None:
        notes.append("perplexity was left out: no language model was given")
    scorer = Scorer(examples, inverter.artifact.tokenizer, encoder, perplexity)
    shown = sorted(np.random.default_rng(seed).permutation(len(examples.texts))[:samples].tolist())

    systems: list[SystemResult] = []
    near_copies: NearCopies | None = None
    ways: list[System] = [Original(examples.texts)]
    ways += [Strategy(name, inverter, config) for name, config in strategies.items()]
    ways += baselines
    _check_names([way.name for way in ways])
    for way in ways:
        with count_passes(inverter.artifact.net) as passes:
            started = time.perf_counter()
            recovered = way.recover(vectors, _advance(progress, f"{way.name}: recovering", len(vectors)))
            seconds = time.perf_counter() - started
        columns = scorer.columns(recovered, _advance(progress, f"{way.name}: scoring", len(vectors)))
        overall, by_source, by_length = scorer.estimates(columns, resamples, seed)
        systems.append(
            SystemResult(
                way.name, way.kind, way.description, way.settings, overall, by_source, by_length,
                seconds / len(vectors), passes.rows / len(vectors) if passes.rows else None,
                scorer.samples(shown, recovered, columns),
            )
        )  # fmt: skip
        if isinstance(way, Nearest):
            near_copies = _near_copies(way, columns["token_f1"])
    ceiling = systems[0].overall.get("cosine")
    if ceiling is not None and ceiling.value < 0.99:
        notes.append(
            f"the encoder does not reproduce the stored vectors (mean cosine {ceiling.value:.3f} on the originals): "
            "no cosine here can be trusted"
        )
    return Results(
        split=split, n=len(vectors), seed=seed, resamples=resamples, systems=systems, near_copies=near_copies,
        notes=notes, bleu_signature=scorer.bleu.signature,
        perplexity_model=None if perplexity is None else perplexity.name,
        encoder={} if encoder is None else {"name": encoder.name, "fingerprint": encoder.fingerprint},
        weights=weights, dataset=dataset, versions=provenance.versions(), machine=provenance.machine(),
        command=provenance.command_line() if command is None else command, date=provenance.now(),
    )  # fmt: skip


class Original:
    """The texts themselves: the ceiling of every metric, and a check that the encoder still gives these vectors."""

    def __init__(self, texts: list[str]) -> None:
        self.name, self.kind, self.description = "original", "reference", "the texts themselves"
        self.settings: dict[str, Any] = {}
        self._texts = texts

    def recover(self, vectors: Vectors, advance: Advance) -> list[str]:
        """Nothing to do."""
        return self._texts


class Scorer:
    """Scores recovered texts against fixed originals, overall and by group."""

    def __init__(
        self, examples: Examples, tokenizer: Tokenizer, encoder: Encoder | None, language_model: LanguageModel | None
    ) -> None:
        self.bleu = Bleu()
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

    def columns(self, recovered: list[str], advance: Advance) -> dict[str, Array]:
        """Columns (n, k) of every metric."""
        if len(recovered) != len(self._examples.texts):
            raise DataError(f"{len(recovered)} texts came back for {len(self._examples.texts)} vectors")
        parts: list[dict[str, Array]] = []
        for start in range(0, len(recovered), _CHUNK):
            parts.append(self._score(slice(start, start + _CHUNK), recovered[start : start + _CHUNK]))
            advance(min(start + _CHUNK, len(recovered)))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def estimates(
        self, columns: dict[str, Array], resamples: int, seed: int
    ) -> tuple[Scores, dict[str, Scores], dict[str, Scores]]:
        """Scores over all texts, by source and by length."""

        def over(rows: Any) -> Scores:
            return estimate({name: c[rows] for name, c in columns.items()}, resamples=resamples, seed=seed)

        by_source = {name: over(rows) for name, rows in self._sources.items()}
        by_length = {name: over(rows) for name, rows in self._lengths.items() if len(rows)}
        return over(slice(None)), by_source, by_length

    def samples(self, rows: Sequence[int], recovered: list[str], columns: dict[str, Array]) -> list[Sample]:
        """What was recovered of these texts."""
        cosines = columns.get("cosine")
        return [
            Sample(
                self._examples.texts[i], recovered[i], self._examples.sources[i],
                float(columns["token_accuracy"][i, 0]), None if cosines is None else float(cosines[i, 0]),
            )
            for i in rows
        ]  # fmt: skip

    def _score(self, rows: slice, recovered: list[str]) -> dict[str, Array]:
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
            columns["perplexity"] = self._language_model.log_likelihoods(recovered)
        return columns

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


@dataclass(slots=True)
class Passes:
    """Rows that went through the net."""

    rows: int = 0


@contextmanager
def count_passes(net: Any) -> Iterator[Passes]:
    """Count texts times forward passes while the block runs; a guided step counts twice, a candidate once more."""
    passes = Passes()

    def count(_: Any, inputs: tuple[Any, ...]) -> None:
        passes.rows += inputs[0].shape[0]

    hook = net.register_forward_pre_hook(count)
    try:
        yield passes
    finally:
        hook.remove()


def _check_split(texts: list[str], split: str, allow_train: bool) -> list[str]:
    """The notes about where the texts come from; the split of a text is a function of the text, so it is checked."""
    if not texts:
        raise DataError("there are no texts to evaluate on: encode more text or choose another split")
    if split not in (*SPLITS, HELD_OUT):
        raise DataError(f"no split named {split!r}: choose one of {', '.join(SPLITS)}, or {HELD_OUT}")
    if split == HELD_OUT:
        return ["held-out: that these texts were never trained on is the caller's word"]
    strangers = sum(split_of(text_hash(text)) != split for text in texts)
    if strangers:
        raise DataError(
            f"{strangers} of {len(texts)} texts are not of the split {split!r}: draw them from it, "
            f"or call texts of a source that was never trained on {HELD_OUT!r}"
        )
    if split != "train":
        return []
    if not allow_train:
        raise DataError("these are training texts, which measure memory and not inversion: use the split test")
    return ["TRAINING TEXTS: the inverter was trained on these texts; the numbers measure memory, not inversion"]


def _check_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two systems are named {twice[0]!r}: give each strategy and baseline its own name")


def _near_copies(nearest: Nearest, f1: Array) -> NearCopies:
    quantiles = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    values = np.quantile(nearest.cosines.astype(np.float64), quantiles)
    return NearCopies(
        n=len(f1),
        training_texts=nearest.training_texts,
        cosine_quantiles={str(q): float(value) for q, value in zip(quantiles, values, strict=True)},
        f1_threshold=COPY_F1,
        copies=int((f1[:, 0] > COPY_F1).sum()),
    )


def _advance(progress: Progress | None, label: str, total: int) -> Advance:
    return lambda done: None if progress is None else progress(label, done, total)
