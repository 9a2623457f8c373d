"""What to try next: a hypothesis with some positions masked, or with words in other places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Merged: TypeAlias = tuple[list[int], list[float]]
"""Tokens and their probabilities."""
KINDS = {
    "one": 3.0, "few": 3.0, "span": 2.0, "random": 1.0, "insert": 2.0, "insert-span": 1.0,
    "delete": 1.5, "shrink": 1.0, "move": 1.0, "swap": 1.0,
}  # fmt: skip
"""Kinds of change and how often each is drawn."""
TAILS = {"tail": 4.0}
"""Where there is a writer: the rest of a text is written anew from some place on."""
CORRECTIONS = {"rewrite": 1.0}
"""Those of Vec2Text's loop: the whole text is written anew, by a writer that sees what it corrects."""
FLIPS = {"flip": 6.0}
"""Where there is a gradient: one word for another, drawn from all words at all places by what it promises."""

# Where there is a gradient, so many orders of the words are drawn and the one that it likes best is tried.
ORDERS = 16


@dataclass(slots=True)
class Hypothesis:
    """A text whose cosine is known."""

    tokens: tuple[int, ...]
    confidence: tuple[float, ...]
    """Probability of each token when it was chosen."""
    text: str
    vector: NDArray[np.float32]
    cosine: float
    kind: str
    """What made it: `answer`, `start`, `guided`, or a kind of change."""
    foreseen: Tensor | None = None
    """(d,): what the surrogate takes for its vector, where it was asked."""
    echoed: Tensor | None = None
    """(d,): the same of the echo, or of the surrogate where there is none."""
    parent: Hypothesis | None = None
    """Of a foreseen one, whose vector nobody has asked for: the real one that it was changed from."""
    rewritten: int = 0
    """How often the writer has written it anew."""
    aim: NDArray[np.float32] | None = None
    """(d,): the vector that the writer wrote it for, or the text that it was changed from; None: the target."""
    slope: Tensor | None = None
    """(L, d): gradient of the cosine near this text, where it was asked for."""
    fit: NDArray[np.float32] | None = None
    """(L, L): what the gradient says of the token of place j at place i."""
    flips: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
    """Words (C,), and how much each promises at each place (L, C), as log-weights."""

    @property
    def log_p(self) -> float:
        """Mean log-probability of the tokens as they were chosen."""
        return float(np.log(np.maximum(self.confidence, 1e-9)).mean())


@dataclass(slots=True)
class Draft:
    """A changed copy: tokens, masks among them, and where in the parent each position comes from (-1: it is new)."""

    tokens: list[int]
    origin: list[int]

    @property
    def aligned(self) -> list[int]:
        """For every position one of the parent: its own, or that of the nearest one on the left that has one."""
        place, places = 0, []
        for origin in self.origin:
            place = origin if origin >= 0 else place
            places.append(place)
        return places


def change(parent: Hypothesis, kind: str, mask: int, longest: int, rng: np.random.Generator) -> Draft:
    """A change of that kind; where it is impossible (no room to insert, nothing to delete) some masks instead."""
    n = len(parent.tokens)
    tokens, order = list(parent.tokens), list(range(n))
    if kind == "flip" and parent.flips is not None:
        words, promise = parent.flips
        place, word = divmod(int((promise + rng.gumbel(size=promise.shape)).argmax()), len(words))
        tokens[place] = int(words[word])
    elif kind in ("insert", "insert-span") and n < longest:
        place, count = int(rng.integers(n + 1)), 1 if kind == "insert" else min(int(rng.integers(2, 4)), longest - n)
        order[place:place] = [-1] * count
    elif kind == "delete" and n > 1:
        del order[_uncertain(parent.confidence, rng)]
    elif kind == "shrink" and n > 2:  # a span is written anew, one token shorter
        first, last = _span(n, 2, 4, rng)
        order[first:last] = [-1] * (last - first - 1)
    elif kind in ("move", "swap") and n > 2:
        orders = [_reordered(n, kind, rng) for _ in range(1 if parent.fit is None else ORDERS)]
        order = max(orders, key=lambda order: _fit(parent, order))
    else:
        for k in _masked(parent, kind, rng):
            tokens[k] = mask
    return Draft([mask if k < 0 else tokens[k] for k in order], order)


def beginning(parent: Hypothesis, kind: str, rng: np.random.Generator) -> int:
    """How many words of the parent stay when the writer goes on: up to one that is uncertain, or none."""
    return 0 if kind == "rewrite" else _uncertain(parent.confidence, rng)


def merge(parent: Hypothesis, children: Sequence[Hypothesis]) -> Merged | None:
    """The changes of several children at once, the best first, where they are at different places; None if of one only.

    Each made the parent better; what they gain mostly adds up.
    """
    tokens, confidence = list(parent.tokens), list(parent.confidence)
    changed: set[int] = set()
    count = 0
    for child in sorted(children, key=lambda h: (-h.cosine, h.tokens)):
        if len(child.tokens) != len(tokens):
            continue
        places = {k for k, (old, new) in enumerate(zip(parent.tokens, child.tokens, strict=True)) if old != new}
        if not places & changed:
            changed |= places
            count += 1
            for k in places:
                tokens[k], confidence[k] = child.tokens[k], child.confidence[k]
    return (tokens, confidence) if count > 1 else None


def draw_kind(kinds: Mapping[str, float], rng: np.random.Generator) -> str:
    """A kind of change."""
    weights = np.array(list(kinds.values()))
    return list(kinds)[int(rng.choice(len(weights), p=weights / weights.sum()))]


def draw_parent(population: Sequence[Hypothesis], rng: np.random.Generator) -> Hypothesis:
    """The better a hypothesis, the more often."""
    weights = 1 / np.arange(1, len(population) + 1)
    return population[int(rng.choice(len(population), p=weights / weights.sum()))]


def _masked(parent: Hypothesis, kind: str, rng: np.random.Generator) -> Sequence[int]:
    """Positions to fill anew: a span, a random quarter, one that is uncertain, or a few of those."""
    n = len(parent.tokens)
    if kind == "span":
        return range(*_span(n, 2, 5, rng))
    if kind == "random":
        return np.flatnonzero(rng.random(n) < 0.25).tolist() or [int(rng.integers(n))]
    count = 1 if kind in ("one", "flip") else int(rng.integers(2, 5))
    return [_uncertain(parent.confidence, rng) for _ in range(count)]


def _reordered(n: int, kind: str, rng: np.random.Generator) -> list[int]:
    """The places 0 to n - 1, but two are swapped, or a span of up to three is moved."""
    order = list(range(n))
    if kind == "swap":
        a, b = rng.choice(n, 2, replace=False).tolist()
        order[a], order[b] = b, a
        return order
    first, last = _span(n, 1, 3, rng)
    span = order[first:last]
    del order[first:last]
    place = int(rng.integers(len(order) + 1))
    order[place:place] = span
    return order


def _fit(parent: Hypothesis, order: list[int]) -> float:
    """What the gradient says of the tokens in this order."""
    return 0.0 if parent.fit is None else float(parent.fit[np.arange(len(order)), order].sum())


def _uncertain(confidence: Sequence[float], rng: np.random.Generator) -> int:
    """A position, the surer its token the more seldom."""
    weights = 1.05 - np.array(confidence)
    return int(rng.choice(len(weights), p=weights / weights.sum()))


def _span(n: int, low: int, high: int, rng: np.random.Generator) -> tuple[int, int]:
    size = min(int(rng.integers(low, high + 1)), n)
    first = int(rng.integers(n - size + 1))
    return first, first + size
