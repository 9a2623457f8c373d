"""Which of many changes the encoder is asked about: those that a surrogate of it foresees to come nearest.

A query is what a search has least of; a change costs computing only. So many more changes are drawn than are asked
about, and those that look best may be changed again before anybody is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from unembed.decode.feedback.propose import Hypothesis
from unembed.decode.feedback.target import truncate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unembed.decode.feedback.refill import Blank
    from unembed.decode.feedback.search import Search
    from unembed.model.surrogate import Surrogate


class Foresight:
    """Hypotheses whose vectors nobody has asked for."""

    def __init__(self, surrogate: Surrogate) -> None:
        self._surrogate = surrogate

    def know(self, parents: Sequence[Hypothesis]) -> None:
        """Write down what the surrogate takes for the vectors of texts, where that has not been done."""
        new = list({id(one): one for one in parents if one.foreseen is None}.values())
        with torch.inference_mode():
            for one, vector in zip(new, self._surrogate.foresee([one.tokens for one in new]), strict=True):
                one.foreseen = vector

    def see(self, changes: Sequence[tuple[Search, Blank, str, Hypothesis]], texts: Sequence[str]) -> list[Hypothesis]:
        """Each changed text as a hypothesis, with the vector that it will have if the surrogate is right."""
        self.know([parent for _, _, _, parent in changes])
        with torch.inference_mode():
            foreseen = self._surrogate.foresee([blank.tokens for _, blank, _, _ in changes])
        found = []
        rows = zip(changes, texts, foreseen, strict=True)
        for (search, blank, kind, parent), text, there in rows:
            assert parent.foreseen is not None
            vector = parent.vector + (there - parent.foreseen).numpy()
            vector = truncate(vector / max(float(np.linalg.norm(vector)), 1e-6), search.entries)
            cosine = float(vector @ search.vector)
            child = Hypothesis(tuple(blank.tokens), tuple(blank.sure), text, vector, cosine, kind)
            child.foreseen, child.parent = there, parent.parent or parent
            found.append(child)
        return found
