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

    def see(self, changes: Sequence[tuple[Search, Blank, str, Hypothesis]], texts: Sequence[str]) -> list[Hypothesis]:
        """Each changed text as a hypothesis, with the vector that it will have if the surrogate is right."""
        parents = [parent for _, _, _, parent in changes]
        new = list({id(one): one for one in parents if one.foreseen is None}.values())
        tokens = [list(one.tokens) for one in new] + [blank.tokens for _, blank, _, _ in changes]
        with torch.inference_mode():
            foreseen = self._surrogate.foresee(tokens)
        for one, vector in zip(new, foreseen, strict=False):
            one.foreseen = vector
        found = []
        rows = zip(changes, texts, foreseen[len(new) :], strict=True)
        for (search, blank, kind, parent), text, there in rows:
            assert parent.foreseen is not None
            vector = parent.vector + (there - parent.foreseen).numpy()
            vector = truncate(vector / max(float(np.linalg.norm(vector)), 1e-6), search.entries)
            cosine = float(vector @ search.vector)
            child = Hypothesis(tuple(blank.tokens), tuple(blank.sure), text, vector, cosine, kind)
            child.foreseen, child.parent = there, parent.parent or parent
            found.append(child)
        return found
