"""The population of one vector: what was tried, what lives on, what is left of the budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from unembed.decode.feedback.propose import Hypothesis, Merged, merge
from unembed.decode.feedback.target import truncate

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rounds in which nothing new was proposed, after which a search is given up.
PATIENCE = 5
WARMER, HOTTEST = 1.5, 8.0


@dataclass(frozen=True, slots=True)
class Proposal:
    """A finished text that the encoder may be asked about."""

    tokens: tuple[int, ...]
    confidence: tuple[float, ...]
    text: str
    kind: str
    parent: Hypothesis | None = None
    aim: NDArray[np.float32] | None = None


@dataclass(slots=True)
class Search:
    """One vector's search."""

    vector: NDArray[np.float32]  # (d,) of unit length
    budget: int
    rng: np.random.Generator
    tolerance: float
    """The vector is met from a cosine of 1 minus this on."""
    size: int
    """Hypotheses that live on."""
    likelihood_weight: float
    entries: int
    """Of a truncated vector so many are known and compared."""
    population: list[Hypothesis] = field(default_factory=list)
    """Best first."""
    queries: int = 0
    gradients: int = 0
    history: list[tuple[int, str, float]] = field(default_factory=list)
    """Each new answer: what had been spent then, the text, its cosine."""
    merged: list[Merged] = field(default_factory=list)
    """What to try next besides new changes: those of the last round that were good, together."""
    heat: float = 1.0
    """Rises while most of what is proposed is known already: the tokens are then drawn at a higher temperature."""
    handed_out: bool = False
    _told: int = 0
    _tried: set[str] = field(default_factory=set)
    _floor: float | None = None
    """Cosine of the first text, the answer without feedback: what is returned has no lower one."""
    _idle: int = 0

    @property
    def left(self) -> int:
        """What is left of the budget."""
        return self.budget - self.queries - self.gradients

    @property
    def met(self) -> bool:
        """The vector is met within its precision."""
        return bool(self.population) and self._meets(self.population[0])

    @property
    def done(self) -> bool:
        """Nothing more to ask: met, no budget, no new idea for some rounds, or no vector of the first text."""
        return self.met or self.left <= 0 or self._idle >= PATIENCE or (self.queries > 0 and not self.population)

    def knows(self, text: str) -> bool:
        """Whether it was asked about already."""
        return text in self._tried

    def admit(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """The proposals to ask about: new texts, as many as the budget allows. They are charged."""
        admitted = []
        for proposal in proposals:
            if proposal.text and proposal.text not in self._tried and self.left > 0:
                self._tried.add(proposal.text)
                self.queries += 1
                admitted.append(proposal)
        self._idle = 0 if admitted else self._idle + 1
        few = 2 * len(admitted) < min(len(proposals), self.left)
        self.heat = min(self.heat * WARMER, HOTTEST) if few else max(self.heat / WARMER, 1.0)
        return admitted

    def take(self, asked: Sequence[Proposal], vectors: dict[str, NDArray[np.float32]]) -> None:
        """Let the best live on; texts without a vector (the encoder gave NaN) are forgotten."""
        better: dict[int, tuple[Hypothesis, list[Hypothesis]]] = {}
        for proposal in asked:
            if proposal.text in vectors:
                vector = truncate(vectors[proposal.text], self.entries)
                cosine = float(vector.astype(np.float64) @ self.vector.astype(np.float64))
                found = Hypothesis(proposal.tokens, proposal.confidence, proposal.text, vector, cosine, proposal.kind)
                found.aim = proposal.aim
                if self._floor is None:
                    self._floor = cosine
                self.population.append(found)
                parent = proposal.parent
                if parent is not None and cosine > parent.cosine:
                    better.setdefault(id(parent), (parent, []))[1].append(found)
        self.merged = [both for parent, found in better.values() if (both := merge(parent, found)) is not None]
        self.population.sort(key=self.rank)
        kept = self.population[: self.size]
        # The nearest one is never lost, however unlikely its words are.
        nearest = max(self.population, key=lambda h: (h.cosine, h.tokens), default=None)
        if nearest is not None and all(one is not nearest for one in kept):
            kept[-1] = nearest
        self.population = kept
        answer = self.best()[:1]
        if answer and (not self.history or self.history[-1][1] != answer[0].text):
            self.history.append((self.queries + self.gradients, answer[0].text, answer[0].cosine))

    def best(self) -> list[Hypothesis]:
        """The answer and then the others, best first; none has a lower cosine than the answer without feedback."""
        return [one for one in self.population if self._floor is None or one.cosine >= self._floor]

    def news(self) -> bool:
        """Whether the answer has changed since this was last asked."""
        told, self._told = self._told, len(self.history)
        return self._told > told

    def _meets(self, one: Hypothesis) -> bool:
        return one.cosine >= 1 - self.tolerance

    def rank(self, one: Hypothesis) -> tuple[bool, float, tuple[int, ...]]:
        """What hypotheses are sorted by, best first."""
        return not self._meets(one), -one.cosine - self.likelihood_weight * one.log_p, one.tokens
