"""Which of many changes the encoder is asked about: those that a surrogate of it foresees to come nearest.

A query is what a search has least of; a change costs computing only. So many more changes are drawn than are asked
about, and those that look best may be changed again before anybody is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from unembed.decode.feedback.propose import Hypothesis
from unembed.decode.feedback.target import truncate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unembed.decode.feedback.refill import Blank
    from unembed.decode.feedback.search import Search
    from unembed.model.echo import Echo
    from unembed.model.surrogate import Surrogate


class Foresight:
    """Hypotheses whose vectors nobody has asked for."""

    def __init__(self, surrogate: Surrogate, echo: Echo | None = None) -> None:
        """The surrogate steers what masks become; an echo, if there is one, tells in its place which texts are best."""
        self._surrogate, self._echo = surrogate, echo

    def know(self, parents: Sequence[Hypothesis]) -> None:
        """Write down what surrogate and echo take for the vectors of texts, where that has not been done."""
        new = list({id(one): one for one in parents if one.foreseen is None}.values())
        texts = [one.tokens for one in new]
        with torch.inference_mode():
            foreseen = self._surrogate.foresee(texts)
            echoed = foreseen if self._echo is None else self._heard(texts)
        for one, *known in zip(new, foreseen, echoed, strict=True):
            one.foreseen, one.echoed = known

    def see(self, changes: Sequence[tuple[Search, Blank, str, Hypothesis]], texts: Sequence[str]) -> list[Hypothesis]:
        """Each changed text as a hypothesis, with the vector that it will have if echo or surrogate is right."""
        self.know([parent for _, _, _, parent in changes])
        tokens = [tuple(blank.tokens) for _, blank, _, _ in changes]
        with torch.inference_mode():
            foreseen = self._surrogate.foresee(tokens)
            echoed = foreseen if self._echo is None else self._heard(tokens)
        found = []
        rows = zip(changes, texts, tokens, foreseen, echoed, strict=True)
        for (search, blank, kind, parent), text, words, there, heard in rows:
            assert parent.echoed is not None
            vector = parent.vector + (heard - parent.echoed).numpy()
            vector = truncate(vector / max(float(np.linalg.norm(vector)), 1e-6), search.entries)
            cosine = float(vector @ search.vector)
            child = Hypothesis(words, tuple(blank.sure), text, vector, cosine, kind)
            child.foreseen, child.echoed, child.parent = there, heard, parent.parent or parent
            child.aim = blank.aim
            found.append(child)
        return found

    def _heard(self, texts: Sequence[tuple[int, ...]]) -> Tensor:
        """What the echo says of each text; it is asked once about each."""
        assert self._echo is not None
        unique = list(dict.fromkeys(texts))
        number = {text: k for k, text in enumerate(unique)}
        heard = self._echo.foresee(unique)
        return heard[[number[text] for text in texts]] if texts else heard
