"""Two texts side by side: which words came back, with personal data covered up.

Words are compared before anything is covered, so that a wrong address never looks like a right one only because both
read [EMAIL]. What is written down is the list of pieces, never the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from unembed.audit.personal import Finding

Piece = tuple[str, bool | None, str | None]
"""(what is shown, whether the other text has it or None for spaces and signs, kind of personal data or None)."""

# Half a name is still half a name; half an account number is none.
BY_WORD = ("NAME", "PLACE")
_WORD = re.compile(r"\w+")
# Parts of a value that are no secret of their own.
_COMMON = frozenset(("the", "and", "for", "von", "van", "der", "com", "org", "net", "www", "http", "https", "mail"))


@dataclass(frozen=True, slots=True)
class _Unit:
    """A word, a value of personal data, or what is between them (no key)."""

    text: str
    key: str | None
    kind: str | None = None


def side_by_side(
    original: str, recovered: str, found: Sequence[Finding], found_again: Sequence[Finding], *, reveal: bool
) -> tuple[list[Piece], list[Piece]]:
    """Pieces of both texts.

    Args:
        original: the stored text.
        recovered: what came back.
        found: personal data in the original.
        found_again: personal data in what came back.
        reveal: show personal data as it is.
    """
    first = _units(original, found, {})
    second = _units(recovered, found_again, known_parts(original, found))
    shared = Counter(unit.key for unit in first if unit.key) & Counter(unit.key for unit in second if unit.key)
    return _pieces(first, shared, reveal), _pieces(second, shared, reveal)


def covered(text: str, findings: Sequence[Finding], parts: dict[str, str], *, reveal: bool) -> str:
    """The text with [KIND] in place of personal data; `parts` as `known_parts` gives them."""
    return text if reveal else "".join(_shown(unit, reveal) for unit in _units(text, findings, parts))


def known_parts(text: str, findings: Sequence[Finding]) -> dict[str, str]:
    """Words of the personal data in a text -> its kind.

    In a recovered text such a word is personal data even where nobody would take it for that.
    """
    parts: dict[str, str] = {}
    for finding in findings:
        for word in _WORD.findall(text[finding.start : finding.end].casefold()):
            if (len(word) >= 3 or word.isdigit()) and word not in _COMMON:
                parts.setdefault(word, finding.kind)
    return parts


def _units(text: str, findings: Sequence[Finding], parts: dict[str, str]) -> list[_Unit]:
    units: list[_Unit] = []
    end = 0
    for finding in sorted(findings, key=lambda one: (one.start, -one.end)):
        if finding.end <= end:
            continue
        start = max(finding.start, end)  # of two that overlap, what is left of the second
        units += _words(text[end:start], parts)
        value = text[start : finding.end]
        if finding.kind in BY_WORD:
            units += _words(value, dict.fromkeys(_WORD.findall(value.casefold()), finding.kind))
        else:
            units.append(_Unit(value, " ".join(_WORD.findall(value.casefold())) or value, finding.kind))
        end = finding.end
    return units + _words(text[end:], parts)


def _words(text: str, parts: dict[str, str]) -> list[_Unit]:
    units: list[_Unit] = []
    end = 0
    for match in _WORD.finditer(text):
        word = match.group().casefold()
        if between := text[end : match.start()]:
            units.append(_Unit(between, None))
        units.append(_Unit(match.group(), word, parts.get(word)))
        end = match.end()
    return [*units, _Unit(text[end:], None)] if text[end:] else units


def _shown(unit: _Unit, reveal: bool) -> str:
    return unit.text if reveal or unit.kind is None else f"[{unit.kind}]"


def _pieces(units: list[_Unit], shared: Counter[str], reveal: bool) -> list[Piece]:
    left = Counter(shared)
    pieces: list[Piece] = []
    for unit in units:
        back = None
        if unit.key is not None:
            back = left[unit.key] > 0
            left[unit.key] -= back
        pieces.append((_shown(unit, reveal), back, unit.kind))
    return pieces
