"""Keys, tokens and passwords in text, by their known shapes, by the word before them, and by how random they look.

All shapes are matched without regard to case, for recovered text has none.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from unembed.audit.names import is_common

SHAPES = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "AWS access key": r"\b(?:akia|asia|aroa|aida|agpa|anpa)[a-z0-9]{16}\b",
        "AWS secret key": r"(?<=[\s=:\"'])(?<![\w/+])(?=[^\s/+]{0,39}[/+])(?=[^\s\d]{0,39}\d)[a-z0-9/+]{40}(?![\w/+=])",
        "GitHub token": r"\bgh[pousr]_[a-z0-9]{36,}\b|\bgithub_pat_[a-z0-9_]{40,}\b",
        "GitLab token": r"\bglpat-[\w-]{20,}",
        "Slack token": r"\bxox[abeoprs]-[a-z0-9-]{10,}",
        "Slack webhook": r"(?:hooks\.)?slack\.com/services/[a-z0-9/]{20,}",
        "JSON web token": r"\beyj[\w-]{8,}\.eyj[\w-]{8,}\.[\w-]{5,}",
        "private key": r"-----begin (?:[a-z]{2,10} ){0,3}private key(?: block)?-----",
        "Stripe key": r"\b[prs]k_(?:live|test)_[a-z0-9]{16,}\b",
        "Google key": r"\baiza[\w-]{35}",
        "OpenAI or Anthropic key": r"\bsk-[a-z0-9_-]{20,}",
        "npm token": r"\bnpm_[a-z0-9]{36}\b",
        "PyPI token": r"\bpypi-[\w-]{16,}",
        "SendGrid key": r"\bsg\.[\w-]{16,}\.[\w-]{16,}",
        "Hugging Face token": r"\bhf_[a-z0-9]{30,}\b",
        "Azure account key": r"\baccountkey ?= ?[a-z0-9+/]{40,}={0,2}",
        "address with password": r"\b[a-z][a-z0-9+]{1,20}://[^\s/:@]{1,80}:[^\s/@]{1,80}@[^\s/]{1,200}",
    }.items()
}
# What follows the word is the secret: "password: hunter2", "api key = abc123", "the password is hunter2".
_LABELLED = re.compile(
    r"\b(?P<label>password|passwort|passwd|pwd|passphrase|passcode|pin(?: code| number)?|secret(?: key)?|"
    r"(?:api|access|auth|private|client|account)[ _-]?(?:key|token|secret)|token|credentials?)\b"
    r"(?P<link> ?(?:is|was|=|:|:=|=>) ?)[\"'` ]{0,2}(?P<value>[^\s\"'`,;]{4,})",
    re.IGNORECASE,
)
_RUN = re.compile(r"(?<![\w/+=.:-])[a-z0-9+/_=-]{20,}(?![\w/+=-])", re.IGNORECASE)
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_HEX = re.compile(r"[0-9a-f]+", re.IGNORECASE)
_CHECKSUM = re.compile(r"\b(?:sha-?\d*|md5|commit|hash|checksum|digest|revision)[ :=]{0,3}$", re.IGNORECASE)
MIN_ENTROPY, MIN_HEX_ENTROPY = 3.5, 3.0  # bits a character; English words joined by hyphens stay below with no digit


def find_secrets(text: str) -> Iterator[tuple[int, int, float]]:
    """Start, end and score of everything that looks like a secret; may overlap."""
    for pattern in SHAPES.values():
        for match in pattern.finditer(text):
            yield match.start(), match.end(), 0.95
    for match in _LABELLED.finditer(text):
        value = match.group("value").rstrip(".!?)") or match.group("value")
        if _may_be_secret(match.group("label").lower(), match.group("link").strip(), value):
            yield match.start("value"), match.start("value") + len(value), 0.7
    for match in _RUN.finditer(text):
        if looks_random(match.group()) and not _CHECKSUM.search(text, max(0, match.start() - 20), match.start()):
            yield match.start(), match.end(), 0.5


def _may_be_secret(label: str, link: str, value: str) -> bool:
    """Whether a value after such a word is no plain sentence that goes on."""
    if label.startswith("pin"):
        return value.isdigit() and 4 <= len(value) <= 8
    mixed = any(c.isdigit() for c in value) or any(not c.isalnum() for c in value[:-1])
    return len(value) >= 4 and (mixed or (link not in ("is", "was") and value.isalpha() and not is_common(value)))


def looks_random(run: str) -> bool:
    """Whether a run of letters and digits has the entropy of a key; UUIDs and words joined by hyphens have not."""
    letters, digits = sum(map(str.isalpha, run)), sum(map(str.isdigit, run))
    if not letters or digits < 2 or _UUID.fullmatch(run) or "//" in run:
        return False
    parts = [part for part in re.split(r"[/_=+-]", run) if part]
    if max(map(len, parts)) < 12:  # dates, versions, slugs
        return False
    if _HEX.fullmatch(run):
        return len(run) >= 32 and entropy(run) >= MIN_HEX_ENTROPY
    return entropy(run) >= MIN_ENTROPY


def entropy(run: str) -> float:
    """Bits a character, from the counts of its own characters."""
    return -sum(n / len(run) * math.log2(n / len(run)) for n in Counter(run).values())
