"""From passages to token windows: what one training example is, and which split it belongs to.

A window holds at most `max_tokens` tokens of the inverter's tokenizer. Its text is what those tokens
decode to, and only that text is ever embedded. Windows whose text does not tokenize back to the same
tokens, or that hold a special one ([UNK], a literal "[MASK]"), are dropped: no inverter could be scored on them.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from unembed.data.text import decode
from unembed.errors import DataError

SPLITS = ("train", "validation", "test")
ALL = "all"
"""Where a split is asked for: the rows of every split."""
# Of 1,000 texts, 10 are for validation and 10 for test.
VALIDATION_PER_MILLE = 10
TEST_PER_MILLE = 10

# A sentence ends at . ! ? or their full-width kin, possibly closed by a quote or bracket, before white space
# (or at once, for scripts that write no spaces).
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？][”’」』）]*")


@dataclass(frozen=True, slots=True)
class Window:
    """One example: the kept tokens, exactly the text they decode to, and the hash of that text."""

    tokens: tuple[int, ...]
    text: str
    hash: int
    source: str

    @property
    def split(self) -> str:
        """Name of the split that the hash puts this text in."""
        return split_of(self.hash)


def normalise(text: str) -> str:
    """The form under which two texts count as the same: NFKC, no case, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def text_hash(text: str) -> int:
    """64-bit hash of the normalised text; the same on every machine and in every run."""
    return int.from_bytes(hashlib.blake2b(normalise(text).encode(), digest_size=8).digest(), "little")


def split_of(hash_: int) -> str:
    """The split is a function of the text alone, so no text can be in two splits."""
    place = hash_ % 1000
    if place < TEST_PER_MILLE:
        return "test"
    if place < TEST_PER_MILLE + VALIDATION_PER_MILLE:
        return "validation"
    return "train"


def in_split(hashes: npt.NDArray[np.uint64], split: str) -> npt.NDArray[np.bool_]:
    """`split_of` for many hashes at once: which of them are in the split."""
    place = hashes % np.uint64(1000)
    bounds = {
        ALL: (0, 1000),
        "test": (0, TEST_PER_MILLE),
        "validation": (TEST_PER_MILLE, TEST_PER_MILLE + VALIDATION_PER_MILLE),
        "train": (TEST_PER_MILLE + VALIDATION_PER_MILLE, 1000),
    }
    if split not in bounds:
        raise DataError(f"there is no split {split!r}; known: {', '.join((*SPLITS, ALL))}")
    low, high = bounds[split]
    return (place >= low) & (place < high)


def sentences(passage: str) -> list[str]:
    """Split a passage into sentences by punctuation."""
    ends = [match.end() for match in _SENTENCE_END.finditer(passage)]
    parts = [passage[start:end].strip() for start, end in itertools.pairwise([0, *ends, len(passage)])]
    return [part for part in parts if part]


def windows(
    passages: Iterable[tuple[str, str]], tokenizer: Tokenizer, *, min_tokens: int, max_tokens: int, batch: int = 512
) -> Iterator[Window]:
    """Yield the windows of (source, passage) pairs in order; sentences longer than a window are cut."""
    special = special_ids(tokenizer)
    waiting: list[tuple[str, str]] = []
    for source, passage in passages:
        waiting.extend((source, sentence) for sentence in sentences(passage))
        if len(waiting) >= batch:
            yield from _tokenize(waiting, tokenizer, special, min_tokens, max_tokens)
            waiting = []
    yield from _tokenize(waiting, tokenizer, special, min_tokens, max_tokens)


def special_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Tokens that are not text: [PAD], [MASK] and their like, and the unknown token."""
    ids = {id_ for id_, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    unknown = tokenizer.token_to_id(getattr(tokenizer.model, "unk_token", None) or "")
    return frozenset(ids if unknown is None else ids | {unknown})


def _tokenize(
    pairs: list[tuple[str, str]], tokenizer: Tokenizer, special: frozenset[int], min_tokens: int, max_tokens: int
) -> Iterator[Window]:
    cut = [enc.ids[:max_tokens] for enc in tokenizer.encode_batch_fast([s for _, s in pairs], add_special_tokens=False)]
    texts = decode(tokenizer, cut)
    again = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    for (source, _), ids, text, check in zip(pairs, cut, texts, again, strict=True):
        if min_tokens <= len(ids) and check.ids == ids and special.isdisjoint(ids):
            yield Window(tuple(ids), text, text_hash(text), source)
