"""End-to-end evaluation: recover unseen texts from their vectors alone and score what comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unembed.data.windows import SPLITS, split_of, text_hash
from unembed.errors import DataError
from unembed.measure import provenance
from unembed.measure.baselines import Advance, Nearest, Strategy, System, Vectors
from unembed.measure.metrics import Array
from unembed.measure.perplexity import LanguageModel
from unembed.measure.recovery import Keeper, Recovery, recover
from unembed.measure.results import NearCopies, Results, SystemResult
from unembed.measure.scorer import Columns, Rows, Scorer, estimate_of
from unembed.model.artifact import check_encoder

if TYPE_CHECKING:
    from unembed.data.dataset import Examples
    from unembed.data.encoders import Encoder
    from unembed.decode import DecodeConfig
    from unembed.inverter import Inverter

Progress = Callable[[str, int, int], None]
"""Called with what is being done, the number of texts done, and of how many."""

HELD_OUT = "held-out"
"""Name of a split that the caller vouches for: texts of a source that was never trained on."""
# A text is a near copy of its nearest training text above either of these.
COPY_F1, COPY_COSINE = 0.8, 0.95


def evaluate(
    inverter: Inverter,
    examples: Examples,
    encoder: Encoder | None,
    strategies: Mapping[str, DecodeConfig],
    baselines: Sequence[System] = (),
    *,
    perplexity: LanguageModel | None = None,
    perplexity_texts: int = 500,
    split: str = "test",
    allow_train: bool = False,
    seed: int = 0,
    resamples: int = 1000,
    samples: int = 10,
    dataset: str = "",
    weights: str = "",
    command: str | None = None,
    notes: Sequence[str] = (),
    keeper: Keeper | None = None,
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
        perplexity_texts: How many of the texts the language model reads; it costs more than all else.
        split: Where the texts come from; checked against the texts themselves.
        allow_train: Accept texts of the training split; the results then say so.
        seed: Decides the bootstrap draws and which samples are kept.
        resamples: Bootstrap draws.
        samples: Number of texts kept in the results with what was recovered of them.
        dataset: Fingerprint of the dataset.
        weights: sha256 of the inverter's weights.
        command: The command line; None takes that of this process.
        notes: More that a reader of the results must know.
        keeper: Keeps what was recovered and scored, so that a stopped evaluation can go on.
        progress: Called as the work goes on.
    """
    notes = list(notes) + _check_split(examples, split, allow_train, inverter.artifact.info)
    vectors = examples.vectors
    check_encoder(inverter.artifact, dim=vectors.shape[1])
    if encoder is None:
        notes.append("cosine was left out: no encoder was given")
    else:
        check_encoder(inverter.artifact, dim=encoder.dim, spec=encoder.name, fingerprint=encoder.fingerprint)
    if perplexity is None:
        notes.append("perplexity was left out: no language model was given")
    elif perplexity_texts < len(vectors):
        notes.append(f"perplexity is that of the first {perplexity_texts:,} texts (they are in random order)")
    scorer = Scorer(examples, inverter.artifact.tokenizer, encoder, perplexity, perplexity_texts)
    shown = sorted(np.random.default_rng(seed).permutation(len(examples.texts))[:samples].tolist())
    keeper = keeper or Keeper()

    ways: list[System] = [Original(examples.texts)]
    ways += [Strategy(name, inverter, config) for name, config in strategies.items()]
    ways += baselines
    _check_names([way.name for way in ways])
    columns: dict[str, Columns] = {}
    recoveries: dict[str, Recovery] = {}
    for way in ways:
        kept = recover(
            way, vectors, inverter.artifact.net, keeper, _advance(progress, f"{way.name}: recovering", len(vectors))
        )
        if not kept.columns:
            found = scorer.columns(kept.texts, _advance(progress, f"{way.name}: scoring", len(vectors)))
            kept.columns = {name: values.tolist() for name, values in found.items()}
            keeper.save()
        recoveries[way.name] = kept
        columns[way.name] = {name: np.array(values) for name, values in kept.columns.items()}
    near_copies, original = None, None
    for way in ways:
        if isinstance(way, Nearest):
            near_copies, original = _near_copies(way, recoveries[way.name], columns[way.name]["token_f1"])
    systems: list[SystemResult] = []
    for number, way in enumerate(ways):
        _advance(progress, "intervals", len(ways))(number)
        kept, rows = recoveries[way.name], columns[way.name]
        overall, by_source, by_length = scorer.estimates(rows, resamples, seed)
        without = None if original is None else estimate_of(rows, original, resamples=resamples, seed=seed)
        systems.append(
            SystemResult(
                way.name, way.kind, way.description, way.settings, overall, by_source, by_length,
                kept.seconds / len(vectors), kept.passes / len(vectors) if kept.passes else None,
                scorer.samples(shown, kept.texts, rows), without,
            )
        )  # fmt: skip
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

    chunk: int | None = None

    def __init__(self, texts: list[str]) -> None:
        self.name, self.kind, self.description = "original", "reference", "the texts themselves"
        self.settings: dict[str, Any] = {}
        self._texts = texts

    def recover(self, vectors: Vectors, advance: Advance) -> list[str]:
        """Nothing to do."""
        return self._texts


def _check_split(examples: Examples, split: str, allow_train: bool, info: dict[str, Any]) -> list[str]:
    """The notes about where the texts come from; the split of a text is a function of the text, so it is checked."""
    texts = examples.texts
    if not texts:
        raise DataError("there are no texts to evaluate on: encode more text or choose another split")
    if split not in (*SPLITS, HELD_OUT):
        raise DataError(f"no split named {split!r}: choose one of {', '.join(SPLITS)}, or {HELD_OUT}")
    if split == HELD_OUT:
        return [_check_held_out(set(examples.sources), trained_sources(info))]
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


def _check_held_out(sources: set[str], trained: set[str] | None) -> str:
    """The note about held-out sources, or the refusal of those that are none."""
    if trained is None:
        return "held-out: the inverter does not name its training sources; that these are others is the caller's word"
    # `de/news` and `news` may be one file, encoded with others or alone.
    bare = {name.rsplit("/", 1)[-1] for name in trained}
    seen = sorted(name for name in sources if name in trained or name.rsplit("/", 1)[-1] in bare)
    if seen:
        raise DataError(
            f"not held out: the inverter was trained on {', '.join(seen)}; encode a dataset from other sources only, "
            "or use the split test"
        )
    return f"held-out: none of these sources is among the {len(trained)} that the inverter was trained on"


def trained_sources(info: dict[str, Any]) -> set[str] | None:
    """The sources that an inverter says it was trained on; None if it says nothing."""
    data = info.get("data")
    named = data.get("sources") if isinstance(data, dict) else None
    if isinstance(named, str):
        named = named.split(", ")
    return {str(name) for name in named} if named else None


def _check_names(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"two systems are named {twice[0]!r}: give each strategy and baseline its own name")


def _near_copies(nearest: Nearest, kept: Recovery, f1: Array) -> tuple[NearCopies, Rows]:
    """How close the texts are to the training texts, and the rows of those that are no near copies."""
    quantiles = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    cosines = np.array(kept.cosines)
    by_tokens, by_cosine = f1[:, 0] > COPY_F1, cosines > COPY_COSINE
    either = by_tokens | by_cosine
    copies = NearCopies(
        n=len(f1),
        training_texts=nearest.training_texts,
        cosine_quantiles={str(q): float(np.quantile(cosines, q)) for q in quantiles},
        f1_threshold=COPY_F1,
        copies=int(by_tokens.sum()),
        cosine_threshold=COPY_COSINE,
        cosine_copies=int(by_cosine.sum()),
        left_out=int(either.sum()),
    )
    return copies, np.flatnonzero(~either)


def _advance(progress: Progress | None, label: str, total: int) -> Advance:
    return lambda done: None if progress is None else progress(label, done, total)
