"""Steering: words that are still missing from a text are preferred, as far as a surrogate of the encoder can tell.

The surrogate (`model/surrogate.py`) takes the vector of a text for a weighted sum of one vector for each word, brought
to unit length. So at every step it can be said where the text points that is being written, S, words that stand and
words that are expected together; and by how much each word at a masked place would turn it towards the given vector e:

    g = (e - cos(S, e) S / |S|) / |S|          the gradient of cos(S, e)
    logit(word) += scale (3 - 2 t) g . vector(word)

What was said already has done its part in S and gains nothing by being said again; what nobody has said yet gains most.
It takes no query to the encoder and no further pass. The scale rises from 1 to 3 times as masks go (t is their share):
while little stands, what is expected is a blur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from unembed.decode.head import Shortlist

# Places that are weighed at a time: 6 MB of vectors, which stay in the cache.
PLACES = 64


@dataclass(frozen=True, slots=True)
class Steer:
    """Where the texts of an ask are to arrive."""

    words: Tensor  # (vocab, d) what each word adds to the vector of its text
    aims: Tensor  # (n, d) unit vectors
    scale: float
    offsets: Tensor | None = None  # (n, d) by how much the surrogate is known to be wrong near each text
    shortlists: Sequence[Shortlist] | None = None  # (n,) the only words that may be chosen in each text

    def of(self, rows: Tensor) -> Steer:
        """For some of the texts, (n,) bool."""
        offsets = None if self.offsets is None else self.offsets[rows]
        lists = self.shortlists and [one for one, wanted in zip(self.shortlists, rows.tolist(), strict=True) if wanted]
        return Steer(self.words, self.aims[rows], self.scale, offsets, lists)

    def cosines(self, tokens: Tensor) -> Tensor:
        """Of finished texts (n, L) with where they are to arrive, (n,)."""
        there = self.words[tokens].sum(1)
        found: Tensor = (there * self.aims).sum(1) / there.norm(dim=1).clamp(min=1e-6)
        return found


def steered(
    steer: Steer, tokens: Tensor, mask_id: int, texts: Tensor, logits: Tensor, ids: Tensor, padding: Tensor | int = 0
) -> Tensor:
    """The logits (m, K) of the likeliest words `ids` (m, K) at m places, with what the gradient adds.

    `tokens` (n, L) are the texts, `texts` (m,) tells which one each place belongs to. A text's masks that are not among
    the places are taken to become what the others become on average. `padding` (n,): masks that belong to no text.
    """
    hidden = ((tokens == mask_id).sum(1) - padding)[:, None]
    asked = torch.bincount(texts, minlength=len(tokens)).clamp(min=1)[:, None]
    expected = torch.zeros_like(steer.aims)
    for some in _parts(len(texts)):
        p = logits[some].softmax(1)[:, None]  # (p, 1, K)
        expected.index_add_(0, texts[some], torch.bmm(p, steer.words[ids[some]])[:, 0].to(expected.dtype))
    standing = (steer.words[tokens] * (tokens != mask_id)[..., None]).sum(1)
    pull = steer.scale * _gradient(steer, standing + expected * (hidden / asked))  # (n, d)
    pull *= 3 - 2 * hidden / (hidden + (tokens != mask_id).sum(1, keepdim=True))
    found = logits.clone()
    for some in _parts(len(texts)):
        vectors = steer.words[ids[some]]  # (p, K, d)
        found[some] += torch.bmm(vectors, pull[texts[some]][..., None])[..., 0]
    return found


def _gradient(steer: Steer, total: Tensor) -> Tensor:
    """That of the cosine of what is foreseen with the aim, with respect to the sum of the words' vectors. (n, d)."""
    size: Tensor = total.norm(dim=1, keepdim=True).clamp(min=1e-6)
    there = total / size
    foreseen = there if steer.offsets is None else there + steer.offsets
    length = foreseen.norm(dim=1, keepdim=True).clamp(min=1e-6)
    along = _without(steer.aims, foreseen / length) / length  # on the sphere, towards the aim
    return _without(along, there) / size


def _without(vectors: Tensor, direction: Tensor) -> Tensor:
    """What is left of vectors (n, d) without their part in a direction of unit length."""
    return vectors - (vectors * direction).sum(1, keepdim=True) * direction


def _parts(count: int) -> Sequence[slice]:
    return [slice(first, first + PLACES) for first in range(0, count, PLACES)]
