"""Sensitive topics straight from the vector: right even where the recovered words are not.

Each topic has some sentences of our own (topics.json), which the encoder at hand embeds. A linear rule separates them
from all others; its scores on sentences that it was fitted without become probabilities by Platt's logistic curve.
What this reaches on sentences that took no part in it is in results/topics.json.

Probabilities hold for a store in which about one text in fifty is on a topic (PRIOR). Where a whole store is on one
topic they are too low, so that counts made from them are lower bounds. The share was chosen on 1,600 real texts: of
the 84 with the highest probabilities (up to 8 of each topic, above one half at a share of .05) about 80 % were judged
to be on the topic by eye, and their mean probability was .92 at .05, .84 at .02.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from unembed.errors import DataError
from unembed.measure.metrics import Array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.data.encoders import Encoder

NEUTRAL = "neutral"
PRIOR = 0.02
"""Share of a store that is taken to be on a topic: a probability is only right for some share."""
RIDGE = 0.3
_STEPS = 50


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic by example."""

    title: str
    fit: tuple[str, ...]
    """Sentences that the rule is made from."""
    check: tuple[str, ...]
    """Sentences that are only measured on."""


@cache
def sentences() -> dict[str, Topic]:
    """All topics and, as `neutral`, what is on none."""
    found = json.loads((Path(__file__).parent / "topics.json").read_text("utf-8"))
    return {name: Topic(one["title"], tuple(one["fit"]), tuple(one["check"])) for name, one in found.items()}


TOPICS: dict[str, Topic] = {name: topic for name, topic in sentences().items() if name != NEUTRAL}


@dataclass(frozen=True, slots=True)
class TopicModel:
    """Probabilities of topics for the vectors of one encoder."""

    names: tuple[str, ...]
    mean: Array  # (d,)
    weights: Array  # (d, topics)
    bias: Array  # (topics,)
    slope: Array  # (topics,), of Platt's curve
    offset: Array  # (topics,)

    @classmethod
    def build(cls, encoder: Encoder) -> TopicModel:
        """Embed the sentences and fit; a second or two for a small encoder."""
        texts, labels = labelled("fit")
        vectors = _units(np.asarray(encoder.encode(texts), dtype=np.float64))
        mean = vectors.mean(0)
        # The rule lies in the space of the sentences, which is smaller than that of most encoders.
        left, lengths, basis = np.linalg.svd(vectors - mean, full_matrices=False)
        places = left * lengths  # (n, r)
        weights, bias, curves = [], [], []
        for name in TOPICS:
            on = labels == name
            rule, scores = _rule(places, on)
            weights.append(rule[:-1] @ basis)
            bias.append(rule[-1])
            curves.append(_platt(scores, on))
        slope, offset = np.array(curves).T
        return cls(tuple(TOPICS), mean, np.stack(weights, axis=1), np.array(bias), slope, offset)

    def probabilities(self, vectors: NDArray[np.floating]) -> Array:
        """How probable each topic is for each vector, (n, d) -> (n, topics); a vector may be on several."""
        if vectors.ndim != 2 or vectors.shape[1] != len(self.mean):
            raise DataError(f"vectors of shape {vectors.shape}: this encoder's have {len(self.mean)} dimensions")
        scores = (_units(vectors.astype(np.float64)) - self.mean) @ self.weights + self.bias
        return _sigmoid(scores * self.slope + self.offset)


def labelled(part: str) -> tuple[list[str], NDArray[np.str_]]:
    """All sentences of `fit` or `check`, with the name of their topic."""
    pairs = [(text, name) for name, topic in sentences().items() for text in getattr(topic, part)]
    return [text for text, _ in pairs], np.array([name for _, name in pairs])


def _units(vectors: Array) -> Array:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


def _rule(places: Array, on: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Ridge regression on +1 and -1, in which the few sentences of a topic weigh as much as all others.

    Returns the weights with the intercept behind them, (r + 1,), and for each sentence the score by the rule that
    would have come out without it, (n,).
    """
    share = np.where(on, 0.5 / on.sum(), 0.5 / (~on).sum())  # sums to 1
    sign = np.where(on, 1.0, -1.0)
    design = np.column_stack([places, np.ones(len(places))])
    penalty = np.diag([RIDGE / places.shape[1]] * places.shape[1] + [0.0])
    inverse = np.linalg.inv((design * share[:, None]).T @ design + penalty)
    rule = inverse @ (design.T @ (share * sign))
    leverage = share * np.einsum("ij,jk,ik->i", design, inverse, design)
    scores = design @ rule
    return rule, (scores - leverage * sign) / (1 - leverage)


def _platt(scores: Array, on: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and offset of the logistic curve through the scores, weighted so that a topic has its share PRIOR."""
    share = np.where(on, PRIOR / on.sum(), (1 - PRIOR) / (~on).sum()) * len(on)
    # Platt's targets, not 0 and 1: few sentences must not make the curve infinitely steep.
    goal = np.where(on, (on.sum() + 1) / (on.sum() + 2), 1 / ((~on).sum() + 2))
    design = np.stack([scores, np.ones(len(scores))], axis=1)
    curve = np.array([1.0, np.log(PRIOR / (1 - PRIOR))])
    for _ in range(_STEPS):
        p = _sigmoid(design @ curve)
        gradient = design.T @ (share * (p - goal)) + [1e-3 * curve[0], 0]
        hessian = (design * (share * p * (1 - p))[:, None]).T @ design + np.diag([1e-3, 1e-9])
        step = np.linalg.solve(hessian, gradient)
        curve = curve - step * min(1.0, 5 / np.abs(step).max())
    return float(curve[0]), float(curve[1])


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -50, 50))))
