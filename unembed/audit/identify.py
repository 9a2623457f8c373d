"""Which encoder made these vectors? By stored text if there is any, else by fingerprint, at last by a round trip."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from unembed.audit import fingerprint, forms, roundtrip
from unembed.audit.forms import Agreement, Form
from unembed.data.encoders import Encoder, load
from unembed.errors import DataError, EncoderError, UnembedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.audit.stores.base import Sample
    from unembed.inverter import Inverter

__all__ = ["Form", "Identity", "identify", "usable"]

TEXTS = 16  # stored texts that are embedded again
POOL = 64  # half of them are the shortest of so many: encoders differ in where they cut long texts
PROMPTS = ("", "passage: ", "query: ", "search_document: ", "title: none | text: ", "Represent this sentence: ")
# A stored text is taken for part of what was embedded when the median cosine to its own vector is at least this, and
# when this share of the texts is nearer to the own vector than to those of the other rows.
ALIKE, NEAREST = 0.5, 0.75
FEW_TEXTS = 4  # with fewer, one that is exact decides, and nothing else does

# Measured: vectors of an encoder score .2 to .8 on its own fingerprint whatever the texts, others at most .1 from 32
# vectors on.
THRESHOLD = 0.12
BEYOND_CHANCE = 5.0  # times what shuffled dimensions score: of few vectors or dimensions a score says little
MIRRORED = -0.2  # cosine of the mean vectors below which the signs are turned; 9 kinds of text gave .09 to .76

PAIRS = 100_000  # pairs that the advice names when no inverter tells of how many it was made

ALIASES = {
    name + model.lower(): spec
    for model, spec in (("all-MiniLM-L6-v2", "minilm"), ("all-mpnet-base-v2", "all-mpnet-base-v2"))
    for name in ("", "sentence-transformers/", "st:sentence-transformers/")
}
"""What owners call an encoder that comes with a spec of its own."""
HUB = {"qwen3-embedding-0.6b": 1024, "jina-embeddings-v3": 1024, "embeddinggemma-300m": 768}
"""Known encoders without a fingerprint. They come from a hub, which an audit does not call unasked."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which encoder, how sure, and why."""

    encoder: str | None
    """Spec for `unembed.encoder`; None: unknown."""
    sure: str
    """"certain", "likely" or "unknown"; with an encoder that was told, "unknown" means that the vectors contradict."""
    how: str
    """"told", "text", "fingerprint", "round trip" or "none"."""
    confidence: float
    why: tuple[str, ...]
    form: Form
    candidates: tuple[tuple[str, float], ...]
    """Spec and score of the fingerprint, best first."""
    advice: str | None


@dataclass(frozen=True, slots=True)
class _Candidate:
    spec: str
    dim: int
    match: fingerprint.Match | None

    @property
    def score(self) -> float:
        return self.match.score if self.match else 0.0

    @property
    def fits(self) -> bool:
        m = self.match
        return m is not None and m.score >= max(THRESHOLD, BEYOND_CHANCE * m.chance) and not self.vetoed

    @property
    def vetoed(self) -> bool:
        """Correlations cannot see that all signs are turned, nor what dimensions do that never change."""
        m = self.match
        return m is not None and (m.dead_fit is False or (m.mean is not None and m.mean < MIRRORED))

    @property
    def excluded(self) -> bool:
        """The fingerprint was compared and says no."""
        return self.match is not None and not self.fits


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What one way to find out says of one candidate."""

    how: str
    candidate: _Candidate
    sure: str
    confidence: float
    why: str


def identify(
    sample: Sample,
    *,
    told: str | None = None,
    inverter: Inverter | None = None,
    seed: int = 0,
    encoder: Callable[[str], Encoder] = load,
) -> Identity:
    """Work out the encoder of a sample's vectors.

    Args:
        sample: vectors as stored, with their texts where there are any.
        told: the encoder's spec, if the owner knows it: then this one is checked and no other.
        inverter: its encoder is a candidate, and it makes the round trips.
        seed: decides which texts and vectors are taken.
        encoder: makes an encoder of a spec; one that cannot be made is left out, and `why` says so.
    """
    told = ALIASES.get(told.lower(), told) if told else None
    at_hand = _AtHand(encoder, told)
    form, vectors, candidates = _read(sample, told, inverter, at_hand)
    verdicts: list[_Verdict] = []
    for candidate in candidates:
        # To load a model of more dimensions for a text that its fingerprint rules out would be a waste.
        if told or candidate.dim == form.dim or not candidate.excluded:
            verdicts += _by_text(vectors, sample, form, candidate, at_hand, np.random.default_rng(seed))
        if verdicts and verdicts[-1].sure == "certain":
            break
    if not any(one.sure == "certain" for one in verdicts):
        verdicts += [_by_fingerprint(one) for one in candidates if one.match]
    if inverter is not None and not any(one.how == "text" and one.sure != "unknown" for one in verdicts):
        spec = inverter.encoder.spec
        its = next((one for one in candidates if one.spec == spec and one.dim == form.dim), None)
        own = at_hand(spec) if its else None
        if its is not None and own is not None and own.dim == form.dim and len(sample.vectors) > 1:
            trip = roundtrip.travel(sample.vectors, form, inverter, own, np.random.default_rng(seed))
            verdicts = [_doubted(one, its, trip) for one in verdicts]
            if all(one.sure == "unknown" for one in verdicts):
                verdicts.append(_by_round_trip(its, trip))
    return _conclude(form, candidates, verdicts, at_hand, told, inverter)


def usable(vectors: NDArray[np.float32], identity: Identity, dim: int) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Stored vectors as the inverter of `dim` dimensions reads them, and what was done to them, in sentences.

    Give all vectors of the sample at once: int8 that was scaled by dimension is undone by their statistics.
    """
    return forms.usable(vectors, identity.form, fingerprint.find(identity.encoder), dim)


class _AtHand:
    """Encoders by spec, each made once; those that cannot be made, with the reason."""

    def __init__(self, make: Callable[[str], Encoder], told: str | None) -> None:
        self._make, self._told, self._made = make, told, dict[str, Encoder | None]()
        self.missing: dict[str, str] = {}

    def __call__(self, spec: str) -> Encoder | None:
        if spec not in self._made:
            try:
                if spec.startswith("openai:") and spec != self._told:
                    raise EncoderError("stored texts are sent to a service only if you name it (--encoder)")
                self._made[spec] = self._make(spec)
            except UnembedError as error:
                self._made[spec], self.missing[spec] = None, str(error)
        return self._made[spec]


def _read(
    sample: Sample, told: str | None, inverter: Inverter | None, at_hand: _AtHand
) -> tuple[Form, NDArray[np.float32], list[_Candidate]]:
    """The form that fits an encoder, or else the likeliest; the vectors read so, and the candidates."""
    tries = []
    for form in forms.readings(sample.vectors):
        vectors = forms.plain(sample.vectors, form)
        tries.append((form, vectors, _candidates(vectors, form, told, inverter, at_hand)))
    fitting = [one for one in tries if any(candidate.fits for candidate in one[2])]
    possible = [one for one in tries if one[2]]
    if told and not possible:
        dim = tries[0][0].dim
        raise DataError(f"the store has {dim} dimensions, more than '{told}' gives: it is another encoder")
    return [*fitting, *possible, *tries][0]


def _candidates(
    vectors: NDArray[np.float32], form: Form, told: str | None, inverter: Inverter | None, at_hand: _AtHand
) -> list[_Candidate]:
    """Encoders of at least these dimensions; first those of exactly these, then by score."""
    dims = {one.spec: one.dim for one in fingerprint.known()}
    if inverter is not None:
        dims[inverter.encoder.spec] = inverter.dim
    if told is not None:
        if told not in dims:
            made = at_hand(told)
            dims[told] = form.dim if made is None else made.dim
        dims = {told: dims[told]}
    found = []
    for spec, dim in dims.items():
        known = fingerprint.find(spec)
        if dim >= form.dim:
            match = None if known is None else fingerprint.match(vectors, known, form.dtype)
            found.append(_Candidate(spec, dim, match))
    return sorted(found, key=lambda one: (one.dim != form.dim, -one.score))


def _by_text(
    vectors: NDArray[np.float32],
    sample: Sample,
    form: Form,
    candidate: _Candidate,
    at_hand: _AtHand,
    rng: np.random.Generator,
) -> list[_Verdict]:
    """Embed stored texts again and compare; nothing if there are none or the encoder is not at hand."""
    texts, kept = sample.texts, sample.loss.cosine if sample.loss else 1.0
    rows = _choose(texts, rng)
    encoder = at_hand(candidate.spec) if rows else None
    if encoder is None or encoder.dim < form.dim:
        return []
    chosen = [text for row in rows if (text := texts[row])]
    tries: list[Agreement] = []
    for prompt in PROMPTS:
        if tries and max(tries[0].nearest, tries[0].median) < ALIKE:
            break  # without its prompt a text is still near its own vector: no prompt will help
        found = forms.agree(encoder.encode([prompt + text for text in chosen]), vectors, rows, form, kept)
        if max(found.exact, found.elsewhere) >= (1 if len(rows) < FEW_TEXTS else 2):
            return [_Verdict("text", candidate, "certain", 1.0, _exactly(candidate.spec, prompt, found))]
        tries.append(found)
    best = max(tries, key=lambda one: one.median)
    told = f"(median cosine {best.median:.2f}; {best.others:.2f} to other rows)"
    alike = best.median >= ALIKE and best.nearest >= NEAREST and len(rows) >= FEW_TEXTS
    if alike and not candidate.vetoed:
        why = (
            f"The stored texts, embedded again by {candidate.spec}, are near their vectors but not equal {told}: "
            "what was embedded was longer or had a prefix, the vectors were changed, or it is a near relative."
        )
        return [_Verdict("text", candidate, "likely", 0.9, why)]
    why = f"The stored texts, embedded again by {candidate.spec}, do not give the vectors {told}."
    return [_Verdict("text", candidate, "unknown", 0.0, why)]


def _choose(texts: list[str | None], rng: np.random.Generator) -> list[int]:
    """Rows of different texts of at least three words (or of any, if there are no such); half of them short ones."""
    first = {text: row for row, text in reversed(list(enumerate(texts))) if text and text.strip()}
    wordy = [row for text, row in first.items() if len(text.split()) >= 3] or list(first.values())
    pool = rng.choice(sorted(wordy), min(POOL, len(wordy)), replace=False).tolist() if wordy else []
    short = sorted(pool, key=lambda row: len(texts[row] or ""))[: TEXTS // 2]
    return sorted([*short, *[row for row in pool if row not in short][: TEXTS - len(short)]])


def _exactly(spec: str, prompt: str, found: Agreement) -> str:
    behind = f" behind '{prompt}'" if prompt else ""
    if found.elsewhere > found.exact:
        return (
            f"{found.elsewhere} of {found.count} stored texts, embedded again{behind} by {spec}, give exactly the "
            "vector of another row: texts and vectors of the store are not in the same order."
        )
    rest = f" The other {found.count - found.exact} were cut, changed or are another part of the document."
    return (
        f"{found.exact} of {found.count} stored texts, embedded again{behind} by {spec}, give the stored vector "
        f"(median cosine {found.median:.4f}; {found.others:.2f} to other rows)."
    ) + rest * (found.exact < found.count)


def _by_fingerprint(candidate: _Candidate) -> _Verdict:
    m = candidate.match
    assert m is not None  # the caller has looked
    told = f"{m.count} vectors score {m.score:.2f} ± {m.error:.2f} on the fingerprint of {candidate.spec}"
    if not candidate.fits:
        reason = ", and dimensions that never change in it do change here" if m.dead_fit is False else ""
        return _Verdict(
            "fingerprint",
            candidate,
            "unknown",
            0.0,
            f"{told} (needed: {max(THRESHOLD, BEYOND_CHANCE * m.chance):.2f}){reason}.",
        )
    # Scores of other encoders spread by about .03 around 0, besides the error of this sample.
    sure = 1 / (1 + math.exp(-(m.score - THRESHOLD) / math.hypot(0.03, m.error, m.chance)))
    known = "(its own vectors: .2 to .8, others: below .1 from 32 vectors on)"
    note = f"{told} {known}. A model fine-tuned from it may look the same."
    return _Verdict("fingerprint", candidate, "likely", min(sure, 0.98), note)


def _by_round_trip(candidate: _Candidate, trip: roundtrip.Trip) -> _Verdict:
    """What the round trip says where nothing else says anything."""
    if trip.gap < roundtrip.GAP:
        return _Verdict("round trip", candidate, "unknown", 0.0, f"{trip.told}: too little above the controls.")
    return _Verdict("round trip", candidate, "likely", min(0.5 + trip.gap, 0.95), f"{trip.told}.")


def _doubted(one: _Verdict, candidate: _Candidate, trip: roundtrip.Trip) -> _Verdict:
    """A fingerprint's verdict after the round trip; an inverter that brings nothing back tells nothing."""
    if one.how != "fingerprint" or one.sure != "likely" or one.candidate != candidate or trip.share is None:
        return one
    if trip.share < roundtrip.FOREIGN:
        why = f"{one.why} But {trip.told}: another encoder that shares its axes."
        return replace(one, sure="unknown", confidence=0.0, why=why)
    if trip.share < roundtrip.DOUBTFUL:
        why = f"{one.why} {trip.told}: long texts do that, and near relatives of the encoder."
        return replace(one, confidence=min(one.confidence, roundtrip.DOUBT), why=why)
    return replace(one, why=f"{one.why} {trip.told}.")


def _conclude(
    form: Form,
    candidates: list[_Candidate],
    verdicts: list[_Verdict],
    at_hand: _AtHand,
    told: str | None,
    inverter: Inverter | None,
) -> Identity:
    order = ("certain", "likely", "unknown")
    best = min(verdicts, key=lambda one: (order.index(one.sure), -one.confidence), default=None)
    scores = sorted(((one.spec, round(one.score, 3)) for one in candidates if one.match), key=lambda pair: -pair[1])
    why = [one.why for one in verdicts if best is None or best.sure == "unknown" or one.candidate == best.candidate]
    why += [f"{spec} could not be tried: {reason}." for spec, reason in at_hand.missing.items()]
    found = best if best is not None and best.sure != "unknown" else None
    if told is not None:
        sure, confidence = ("likely", 0.5) if best is None else (best.sure, best.confidence)
        why = [f"You said that it is {told}.", *why, *(["Nothing could be checked."] if best is None else [])]
        form = replace(form, truncated=candidates[0].dim > form.dim)
        return Identity(told, sure, "told", confidence, tuple(why), form, tuple(scores), None)
    if found is not None:
        form = replace(form, truncated=found.candidate.dim > form.dim)
        spec = found.candidate.spec
        return Identity(spec, found.sure, found.how, found.confidence, tuple(why), form, tuple(scores), None)
    hub = [spec for spec, dim in HUB.items() if dim == form.dim]
    if hub:
        why.append(f"Not tried, since they come from a hub: {', '.join(hub)}. Name one to have it checked.")
    if candidates and not scores:
        why.append(f"A fingerprint needs {fingerprint.FEWEST} different vectors.")
    if not candidates:
        why.append(f"No known encoder has {form.dim} dimensions or more.")
    return Identity(None, "unknown", "none", 0.0, tuple(why), form, tuple(scores), _advice(inverter))


def _advice(inverter: Inverter | None) -> str:
    data = inverter.artifact.info.get("data", {}) if inverter is not None else {}
    pairs = data.get("train texts", PAIRS)
    return (
        f"If you know the encoder, name it (--encoder). Or train an inverter from {pairs:,} pairs of text and vector: "
        "unembed encode pairs.parquet -o data/mine --pairs --encoder-name mine && unembed train data/mine -o mine"
    )
