"""Undo the spaces that an uncased WordPiece tokenizer leaves in addresses and keys, and keep track of places.

Recovered text reads "john. smith @ example. com" and "ghp _ 16c7e4"; patterns want "john.smith@example.com". Spaces
are taken out only where the pieces around them make an address, a key or a number: sentences keep theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from unembed.audit.names import is_common

# Enough to tell the end of an address from the next word; only the first kind is believed without @ or http before it.
_SURE_ENDS = "com|org|net|edu|gov|io|info|biz"
_ENDS = (
    f"{_SURE_ENDS}|mil|int|co|me|us|uk|ca|de|fr|es|it|nl|eu|ch|at|be|se|no|fi|dk|pl|ru|cn|jp|kr|in|au|nz|br|mx|za|ie|"
    "pt|gr|cz|hu|tr|il|ai|app|dev|tv|online|store|tech|example|test|local|internal"
)
# Pieces are bounded and do not overlap with what joins them: no text may make the search slow.
_WORD = r"[^\W_]{1,80}"
_HOST = rf"(?:[a-z0-9-]{{1,63}} ?\. ?){{1,4}}?(?:{_ENDS})(?: ?\. ?(?:uk|au|nz|jp|br|in|za))?\b"
_PATH = (
    r"(?: ?: ?\d{2,5}\b)?(?: ?/ ?(?:[\w%~+-]+(?:\. ?(?:html?|php|pdf|aspx?|jsp|txt|json|xml|png|jpe?g)\b)?)?)*"
    r"(?: ?\? ?[\w-]+ ?= ?[\w%-]+(?: ?& ?[\w-]+ ?= ?[\w%-]+)*)?"
)
_JOINED = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?<![^\W_]){_WORD}(?: ?[_+-] ?{_WORD}){{0,5}} ?@ ?{_HOST}",
        rf"\b[a-z][a-z+]{{1,20}} ?: ?/ ?/ ?(?:[\w.-]{{1,64}} ?: ?\S{{1,64}} ?@ ?)?{_HOST}{_PATH}",
        rf"\bwww ?\. ?{_HOST}{_PATH}",
        r"\+ ?\d",
        r"\d ?/ ?\d{1,4}(?: ?/ ?\d{1,4})?\b",
        r"\b(?:[0-9a-f]{2} ?: ?){5}[0-9a-f]{2}\b",
        r"\b(?:[0-9a-f]{1,4} ?:(?: ?:)? ?){3,7}[0-9a-f]{1,4}\b",
        r"\b\d{1,3}(?: ?\. ?\d{1,3}){3}\b",
        rf"(?<![^\W_]){_WORD}(?: ?_ ?{_WORD})+",
        rf"\beyj[\w-]{{5,}} ?\. ?[\w-]{{5,}} ?\. ?{_WORD}(?: ?[_-] ?{_WORD}){{0,20}}",
        r"\bsg ?\. ?[\w-]{16,} ?\. ?[\w-]{16,}",
        r"(?:- ?){5}(?=begin|end)|(?<=key) ?(?:- ?){5}|(?<=block) ?(?:- ?){5}",
        r"\b(?=[a-z0-9/+ ]{0,80}(?:[a-z]\d|\d[a-z]))[a-z0-9]{6,80}(?: ?[/+] ?[a-z0-9]{4,80}){1,20}(?: ?=){0,2}",
        r"\b[od] ?' ?[a-z]{3,}",
    )
]
# "john. smith @ example. com", "example. com": only a word that is none of everyday use belongs to the address.
_LOCAL = re.compile(rf"\b([^\W_]{{1,64}})( ?\. ?)(?=[\w+-]{{1,64}} ?@ ?{_HOST})", re.IGNORECASE)
_BARE = re.compile(rf"\b([a-z0-9-]{{1,63}})( ?\. ?(?:{_SURE_ENDS})\b{_PATH})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Joined:
    """A text without those spaces."""

    text: str
    places: tuple[int, ...]
    """For each character its place in the original."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where a part of it is in the original."""
        return self.places[start], self.places[end - 1] + 1


def join(text: str) -> Joined:
    """Take the spaces out of addresses, keys and numbers."""
    out = set(_spaces(text))
    places = tuple(place for place in range(len(text)) if place not in out)
    return Joined("".join(text[place] for place in places), places)


def _spaces(text: str) -> Iterator[int]:
    if " " not in text:
        return
    for pattern in _JOINED:
        for match in pattern.finditer(text):
            yield from (match.start() + i for i, letter in enumerate(match.group()) if letter == " ")
    for pattern in (_LOCAL, _BARE):
        for match in pattern.finditer(text):
            if not is_common(match.group(1)):
                yield from (match.start(2) + i for i, letter in enumerate(match.group(2)) if letter == " ")
