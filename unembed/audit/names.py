"""Names of people and places by word lists and rules; no model, nothing to download, and lower-case text will do.

How good that is (`tools/measure_names.py`, seed 0: names out of Wikipedia, which the lists were not made from, planted
into 400 real sentences and 400 from templates; counted by word):

                 cased text                          as the inverter writes (no case)
    people       recall .76-.79, precision .89-1.0   recall .66-.71, precision .86-1.0
    places       recall .57-.80, precision 1.0       recall .14-.38, precision 1.0

The places are mostly villages; countries, states and large cities are in the list. Findings drawn from real text of
eight or nine sources and judged by eye, before the last changes to the rules: 96 of 100 right in lower case, 78 of 91
in cased text (wrong are things called after people, and titles of works). The rules were tuned on the planted set, too.
So what is found is mostly right, and what is not found may well be there: counts of names and places are lower bounds.
English text, names in Latin letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "words"
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_BEFORE_NAME = re.compile(
    r"(?:\bmy name is|\bname ?:|\bnamed|\bdear|\bpatient|\bregards,?|\bsincerely,?|\bsigned,?|\bthanks,|\bcheers,)\s+$",
    re.IGNORECASE,
)
_BEFORE_PLACE = re.compile(
    r"\b(?:born in|lives? in|living in|lived in|moved to|based in|resident of|city of|town of|village of|"
    r"province of|county of|district of|flight to|capital of|located in|visit(?:ed|ing)?)\s+$",
    re.IGNORECASE,
)
_PLACE_PREPOSITION = re.compile(r"\b(?:in|at|from|near|to|outside|around|across|toward|towards|via)\s+$", re.IGNORECASE)
_WITH_PERSON = re.compile(
    r"\b(?:by|with|told|asked|met|married|called|friend|colleague|daughter|son|wife|husband|brother|sister|mother|father|"
    r"uncle|aunt|that|and|when|because|if)\s+$"
)
_SENTENCE_END = re.compile(r"[.!?:\"“(]\s*$")
_STREET = re.compile(
    r"\b\d{1,5}[a-z]? (?:[^\W\d_]+\.? ){1,3}"
    r"(?:street|st|road|rd|avenue|ave|lane|ln|drive|boulevard|blvd|square|court|terrace)\b",
    re.IGNORECASE,
)
SURE = 0.9
"""From this on a finding goes before all that it overlaps with: "San Diego" in "San Diego Chargers"."""
_LOOK_BACK = 30
_SHORTENED = ("mr", "mrs", "ms", "dr", "prof")
_LONGEST_PLACE = 4
_LONGEST_NAME = 4


@dataclass(frozen=True, slots=True)
class _Word:
    low: str
    start: int
    end: int
    capital: bool
    regular: bool
    """A capital and small letters: no acronym, no brand."""


@dataclass(frozen=True, slots=True)
class _Text:
    whole: str
    words: Sequence[_Word]
    cased: bool
    """Whether capitals mean something here."""

    def touching(self, i: int) -> bool:
        """Whether word i follows the one before with nothing but a space, or the dot of an initial, between."""
        if not 0 < i < len(self.words):
            return False
        before = self.words[i - 1]
        between = self.whole[before.end : self.words[i].start]
        return between == " " or (between in (". ", ".") and (len(before.low) == 1 or before.low in _SHORTENED))

    def starts_sentence(self, i: int) -> bool:
        """Whether a capital is due there anyway."""
        return i == 0 or bool(_SENTENCE_END.search(self.before(i)))

    def before(self, i: int) -> str:
        """The text that leads to word i, not all of it: long texts are searched too."""
        return self.whole[max(0, self.words[i].start - _LOOK_BACK) : self.words[i].start]


def find_names(text: str) -> Iterator[tuple[str, int, int, float]]:
    """Kind (NAME or PLACE), start, end and score; nothing overlaps."""
    read = _read(text)
    found = [("PLACE", *match.span(), SURE) for match in _STREET.finditer(text)]
    for kind, spans in (("NAME", _people(read)), ("PLACE", _places(read))):
        found += [(kind, read.words[first].start, read.words[last - 1].end, score) for first, last, score in spans]
    taken: set[int] = set()
    # "San Francisco" has a first name in it, and "12 Baker Street" a surname: the longer one is meant, then the surer.
    for one in sorted(found, key=lambda one: (one[3] < SURE, one[1] - one[2], -one[3], one[0])):
        if not taken & set(range(one[1], one[2])):
            taken.update(range(one[1], one[2]))
            yield one


def is_common(word: str) -> bool:
    """Whether it is a word of everyday English in lower case."""
    return word.lower() in words("common")


def plain(text: str) -> str:
    """Without case and accents, as the inverter's tokenizer writes it."""
    letters = unicodedata.normalize("NFD", text.lower().replace("’", "'"))
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


@cache
def words(name: str) -> frozenset[str]:
    """One of the lists beside this module."""
    text = (_FOLDER / f"{name}.txt").read_text("utf-8")
    return frozenset(text.splitlines() if name == "places" else text.split())


def _read(text: str) -> _Text:
    found = [
        _Word(plain(m.group()), m.start(), m.end(), m.group()[0].isupper(), m.group().istitle())
        for m in _WORD.finditer(text)
    ]
    share = sum(word.capital for word in found) / max(len(found), 1)
    # Without a capital, or in a headline of nothing else, capitals tell nothing.
    return _Text(text, found, 0 < share < 0.8 or (len(found) <= 3 and share > 0))


def _people(read: _Text) -> Iterator[tuple[int, int, float]]:
    """First and last word (exclusive) of people's names, with a score."""
    i = 0
    while i < len(read.words):
        score = _begins_name(read, i)
        end = i + 1
        if score:
            end = _name_end(read, i)
            if not _is_thing(read, i, end):
                yield i, end, min(0.89, score + 0.1 * (end - i - 1))
        i = end


def _begins_name(read: _Text, i: int) -> float:
    word = read.words[i]
    if read.cased and not word.capital:
        return 0.0
    low = word.low.removesuffix("'s")
    known, common = low in words("first_names"), low in words("common")
    ordinary = common or low in words("other") or low in words("places")
    follows = read.touching(i + 1) and _continues(read, i + 1)
    titled = read.touching(i) and read.words[i - 1].low in words("titles")
    if titled and (read.cased or not common) and len(low) > 1 and low not in words("other"):
        return 0.85
    if _BEFORE_NAME.search(read.before(i)) and not ordinary and len(low) > 1:
        return 0.75
    if known and not ordinary:
        return 0.7
    if known and follows and read.words[i + 1].low in words("surnames"):
        return 0.7
    inside = read.cased and not read.starts_sentence(i)
    if known and inside and (common or not ordinary):
        return 0.6
    if low in words("surnames") and not ordinary:
        return 0.55
    if read.cased and not ordinary and follows and read.words[i + 1].low in words("surnames"):
        return 0.6
    if _speaks(read, i) and not ordinary and len(low) > 2:
        return 0.5
    # Two capitalised words of no other use, where people stand.
    if inside and not ordinary and follows and word.regular and not is_common(read.words[i + 1].low):
        end = _name_end(read, i)
        who = read.touching(end) and read.words[end].low in words("speech") | {"who"}
        return 0.35 if who or _WITH_PERSON.search(read.before(i)) else 0.0
    return 0.0


def _speaks(read: _Text, i: int) -> bool:
    """Whether the word is who says something."""
    after = read.touching(i + 1) and read.words[i + 1].low in words("speech")
    before = read.touching(i) and read.words[i - 1].low in words("speech") and read.cased
    return after or before


def _name_end(read: _Text, i: int) -> int:
    end = i + 1
    while end < len(read.words) and end - i < _LONGEST_NAME and read.touching(end) and _continues(read, end):
        end += 1
    while end > i + 1 and read.words[end - 1].low in words("links"):
        end -= 1
    return end


def _is_thing(read: _Text, i: int, end: int) -> bool:
    """Whether it is called after a person: "Campbell County", "Kaiser Family Foundation"; "Lauryn Hill" is a person."""
    last = read.words[end - 1].low
    after = read.words[end].low if read.cased and read.touching(end) and read.words[end].capital else ""
    known = end - i == 2 and read.words[i].low in words("first_names") and last in words("surnames")
    return read.cased and not known and (last in words("endings") or after in words("endings"))


def _continues(read: _Text, i: int) -> bool:
    """Whether the word can be the next part of a name."""
    word = read.words[i]
    low = word.low.removesuffix("'s")
    if low in words("links"):
        return i + 1 < len(read.words) and read.touching(i + 1)
    if read.cased:
        return word.capital and low not in words("other")
    if len(low) == 1:
        return read.whole[word.end : word.end + 1] == "."
    if low in words("surnames") and not is_common(low):
        return True
    return low.isalpha() and len(low) > 2 and not (is_common(low) or low in words("other") or low in words("places"))


def _places(read: _Text) -> Iterator[tuple[int, int, float]]:
    i = 0
    while i < len(read.words):
        end, score = _place_at(read, i)
        if score:
            yield i, end, score
        i = max(end, i + 1)


def _place_at(read: _Text, i: int) -> tuple[int, float]:
    before = read.before(i)
    for end in range(min(len(read.words), i + _LONGEST_PLACE), i, -1):
        if any(not _spaced(read, j) for j in range(i + 1, end)) or (read.cased and not read.words[i].capital):
            continue
        low = " ".join(word.low for word in read.words[i:end]).removesuffix("'s")
        if low in words("places") and (not is_common(low) or _PLACE_PREPOSITION.search(before)):
            return end, 0.7 if end == i + 1 else SURE
    word = read.words[i]
    unknown = len(word.low) > 2 and not is_common(word.low) and word.low not in words("other")
    if unknown and _BEFORE_PLACE.search(before) and (word.capital or not read.cased):
        return _capitals_end(read, i), 0.6
    if read.cased and word.regular and unknown and _PLACE_PREPOSITION.search(before) and before[-3:-1] != "to":
        return _capitals_end(read, i), 0.5
    return i, 0.0


def _spaced(read: _Text, i: int) -> bool:
    return read.whole[read.words[i - 1].end : read.words[i].start] in (" ", ". ", "-")


def _capitals_end(read: _Text, i: int) -> int:
    """The end of a run of capitalised words; in lower-case text, of one word."""
    end = i + 1
    while read.cased and end < len(read.words) and end - i < 3 and read.touching(end) and read.words[end].capital:
        end += 1
    return end
