"""The text of tokens: one function, used wherever tokens become text, so that all rooms mean the same string."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece

# WordPiece forgets where punctuation touched its neighbours ("it ' s", "well - known", "( 3. 5 )"). These rules put
# the usual spelling back. They only remove spaces beside punctuation, so the text still has the same tokens.
_TIDY = [
    (re.compile(r"(\w) ' (s|t|m|d|re|ve|ll)\b"), r"\1'\2"),
    (re.compile(r"(\w) - (?=\w)"), r"\1-"),
    (re.compile(r"([(\[]) "), r"\1"),
    (re.compile(r" ([)\]%])"), r"\1"),
    (re.compile(r"([$£€#]) (?=\d)"), r"\1"),
    (re.compile(r"(\d)([.:]) (?=\d)"), r"\1\2"),
    (re.compile(r"(?<!\d)(\d{1,3}), (?=\d{3}(?!\d))"), r"\1,"),
    (re.compile(r" ([;:…])"), r"\1"),
]


def decode(tokenizer: Tokenizer, rows: Iterable[Sequence[int]]) -> list[str]:
    """The text of each row of token ids."""
    texts: list[str] = tokenizer.decode_batch([list(map(int, row)) for row in rows], skip_special_tokens=False)
    if isinstance(tokenizer.decoder, WordPiece):
        texts = [_tidy(text) for text in texts]
    return texts


def _tidy(text: str) -> str:
    for pattern, replacement in _TIDY:
        text = pattern.sub(replacement, text)
    return text
