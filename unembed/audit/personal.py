"""Personal data in text: Presidio's patterns, secrets, names and places; all offline.

Works on recovered text as well, which is lower-case and has spaces inside addresses (see `spacing`).
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from unembed.audit.names import find_names, is_common, plain
from unembed.audit.secrets import find_secrets
from unembed.audit.spacing import join
from unembed.audit.stores.base import client
from unembed.errors import DataError

# What Presidio calls it -> what we call it, and the score from which it is believed. Its recognisers of bare numbers
# (licences, passports, bank accounts) match any number and are left out.
PRESIDIO = {
    "EMAIL_ADDRESS": ("EMAIL", 0.5),
    "PHONE_NUMBER": ("PHONE", 0.4),
    "CREDIT_CARD": ("CARD", 0.9),
    "IBAN_CODE": ("IBAN", 0.5),
    "US_SSN": ("SSN", 0.5),
    "IP_ADDRESS": ("IP", 0.5),
    "MAC_ADDRESS": ("MAC", 0.5),
    "URL": ("URL", 0.5),
    "DATE_TIME": ("DATE", 0.5),
    "CRYPTO": ("CRYPTO", 0.9),
}
KINDS = {
    "SECRET": "keys, tokens, passwords",
    "EMAIL": "e-mail addresses",
    "CARD": "payment cards",
    "IBAN": "bank accounts (IBAN)",
    "SSN": "US social security numbers",
    "CRYPTO": "wallet addresses",
    "PHONE": "phone numbers",
    "IP": "IP addresses",
    "MAC": "network card addresses",
    "URL": "web addresses",
    "DATE": "full dates",
    "NAME": "names of people",
    "PLACE": "places",
}
"""Every kind with what it means; of two findings at one place the kind that stands first here is kept."""
_WORDS = re.compile(r"[^\W_]+")
_NUMBERS = ("PHONE", "CARD", "SSN", "IBAN", "MAC", "DATE")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something personal in a text."""

    kind: str
    """A key of `KINDS`."""
    start: int
    end: int
    score: float
    """How sure, 0 to 1."""


@dataclass(frozen=True, slots=True)
class KindScore:
    """One kind of personal data over all texts."""

    stored: int
    """Different values in the originals."""
    found: int
    """Different values in the recovered texts."""
    right: int
    """Values that are in a recovered text and in its own original."""
    recall: float | None
    """right / stored; None if nothing of the kind is stored."""
    precision: float | None
    """right / found; None if nothing of the kind was found."""


def find(text: str) -> list[Finding]:
    """All personal data in a text, in order, without overlaps."""
    joined = join(text)
    order = list(KINDS)
    candidates = sorted(
        _candidates(joined.text), key=lambda one: (order.index(one.kind), -one.score, one.start - one.end, one.start)
    )
    kept: list[Finding] = []
    for one in candidates:
        if all(one.end <= other.start or other.end <= one.start for other in kept):
            kept.append(one)
    return [Finding(one.kind, *joined.span(one.start, one.end), one.score) for one in sorted(kept, key=_start)]


def redact(text: str, findings: Sequence[Finding]) -> str:
    """The text with every finding replaced by its kind: "mail [EMAIL] about it"."""
    parts, place = [], 0
    for one in sorted(findings, key=_start):
        if not 0 <= one.start <= one.end <= len(text):
            raise DataError(f"a finding at {one.start} to {one.end} is of another text ({len(text)} characters)")
        if one.start < place:
            place = max(place, one.end)
            continue
        parts += [text[place : one.start], f"[{one.kind}]"]
        place = one.end
    return "".join([*parts, text[place:]])


def compare(originals: Sequence[str], recovered: Sequence[str]) -> dict[str, KindScore]:
    """For each kind what the originals hold, and how much of it is in the recovered texts, text by text.

    A value counts as recovered where it is found as the same kind, and also where it merely stands in the recovered
    text (a rare surname that no list knows), unless it is an everyday word.
    """
    if len(originals) != len(recovered):
        raise DataError(f"{len(originals)} originals for {len(recovered)} recovered texts: give pairs")
    stored, found, right = Counter[str](), Counter[str](), Counter[str]()
    for original, text in zip(originals, recovered, strict=True):
        there, here = values(original), values(text)
        here |= _standing_in(there - here, text)
        stored.update(kind for kind, _ in there)
        found.update(kind for kind, _ in here)
        right.update(kind for kind, _ in there & here)
    return {
        kind: KindScore(
            stored[kind],
            found[kind],
            right[kind],
            right[kind] / stored[kind] if stored[kind] else None,
            right[kind] / found[kind] if found[kind] else None,
        )
        for kind in KINDS
        if stored[kind] or found[kind]
    }


def values(text: str) -> set[tuple[str, str]]:
    """Kind and value of everything found, in a form in which spelling does not matter.

    Each word of a person's name is a value of its own: a surname alone gives a person away.
    """
    found: set[tuple[str, str]] = set()
    for one in find(text):
        value = normalised(one.kind, text[one.start : one.end])
        found.update((one.kind, word) for word in (value.split() if one.kind == "NAME" else [value]) if word)
    return found


def _standing_in(wanted: set[tuple[str, str]], text: str) -> set[tuple[str, str]]:
    """Those of the values that stand in the text, as whole words."""
    if not wanted:
        return set()
    words = f" {' '.join(_WORDS.findall(plain(join(text).text)))} "
    return {
        (kind, value)
        for kind, value in wanted
        if not is_common(value) and len(value) > 2 and f" {' '.join(_WORDS.findall(value))} " in words
    }


def normalised(kind: str, value: str) -> str:
    """A value without case, accents, spaces and, for numbers, punctuation."""
    value = plain(value)
    if kind in _NUMBERS:
        return re.sub(r"[^a-z0-9]", "", value)
    if kind == "URL":
        return re.sub(r"^(?:[a-z]+://)?(?:www\.)?|/$", "", re.sub(r"\s", "", value))
    if kind in ("NAME", "PLACE"):
        return " ".join(re.sub(r"'s\b|[.,]", "", re.sub(r" ?' ?", "'", value)).split())
    return re.sub(r"\s", "", value)


def _candidates(text: str) -> Iterator[Finding]:
    for one in _analyzer().analyze(text, language="en", entities=list(PRESIDIO)):
        kind, least = PRESIDIO[one.entity_type]
        if one.score >= least and _plausible(kind, text[one.start : one.end]):
            yield Finding(kind, one.start, one.end, float(one.score))
    for start, end, score in find_secrets(text):
        yield Finding("SECRET", start, end, score)
    for kind, start, end, score in find_names(text):
        yield Finding(kind, start, end, score)


def _plausible(kind: str, value: str) -> bool:
    """Whether it is no year, number of a bug or version of a program, which Presidio's patterns also match."""
    digits = sum(map(str.isdigit, value))
    if kind == "PHONE":
        return digits >= 9 or (digits >= 7 and not value.isdigit())
    if kind == "DATE":
        return "." not in value or bool(re.search(r"\d{4}", value))
    return True


def _start(finding: Finding) -> int:
    return finding.start


@cache
def _analyzer() -> Any:
    """Presidio without a language model; nothing is fetched."""
    with _without("transformers"):
        presidio = client("presidio_analyzer", "presidio-analyzer", "pii", "finding personal data")
    # Its recogniser of addresses asks tldextract, which would fetch the list of domain endings on first use.
    tldextract = client("tldextract", "presidio-analyzer", "pii", "finding personal data")
    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    engine = client("presidio_analyzer.nlp_engine", "presidio-analyzer", "pii", "finding personal data")
    settings = Path(presidio.__file__).parent / "conf" / "no_op.yaml"
    nlp = engine.NlpEngineProvider(conf_file=str(settings)).create_engine()
    return presidio.AnalyzerEngine(nlp_engine=nlp, supported_languages=["en"])


@contextmanager
def _without(module: str) -> Iterator[None]:
    """As if it were not installed, unless it is loaded already.

    Presidio imports transformers where it finds it, for a language model that is not used here: that takes longer than
    all the rest of it.
    """
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]
