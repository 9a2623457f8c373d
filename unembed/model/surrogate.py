"""The surrogate: a small model that foresees the vector of a text, so that few texts need to be sent to the encoder.

    surrogate(tokens, valid)        (n, L) -> (n, d)   about what the encoder would say, of unit length

It learns from the same pairs of texts and vectors as the inverter does, so it takes no query. It is a weighted mean of
one vector for each word: minutes to learn, next to nothing to compute, and blind to order. Alone it is far too coarse
to tell a right text from a nearly right one (mean cosine .82 with the true vectors). But what a change of a text does
to its vector it foresees well enough to choose among changes:

    vector(child) = vector(parent) + surrogate(child) - surrogate(parent)

where the vector of the parent is known (`decode/feedback/foresight.py`). And because it is a sum over words, it tells
at every step of a decoding what the text still lacks (`decode/steer.py`). The inverter's own words are shared with it,
never trained here and not in its file.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.model.denoiser import Denoiser

BATCH = 64


class Surrogate(nn.Module):
    """Vector of a text, foreseen."""

    def __init__(self, base: Denoiser) -> None:
        super().__init__()
        width, dim, vocabulary = base.config.width, base.config.vector_dim, base.config.vocab_size
        self._shared = [base.embed]  # in a list: not a part of this module
        self.project = nn.Linear(width, dim)
        self.words = nn.Embedding(vocabulary, dim)  # what the projection of a word lacks
        self.weight = nn.Embedding(vocabulary, 1)  # how much a word counts, as a logarithm
        for table in (self.words, self.weight):
            nn.init.zeros_(table.weight)

    def forward(self, tokens: Tensor, valid: Tensor | None = None) -> Tensor:
        """Unit vectors (n, d) of texts (n, L); `valid` tells what belongs to each."""
        weights = self.weight(tokens).exp()  # (n, L, 1)
        if valid is not None:
            weights = weights * valid[..., None]
        each = self.project(self._shared[0](tokens).detach()) + self.words(tokens)
        return F.normalize((each * weights).sum(1), dim=1)

    @torch.no_grad()
    def word_vectors(self) -> Tensor:
        """What each word adds to the vector of its text, (vocab, d): the sum of those, at unit length, is `forward`."""
        every: Tensor = self.project(self._shared[0].weight) + self.words.weight
        return every * self.weight.weight.exp()

    @torch.no_grad()
    def on(self, base: Denoiser) -> Surrogate:
        """The same on top of other words, as further training leaves them: what it foresees does not change."""
        mine, theirs = self._shared[0].weight, base.embed.weight.to(self.project.weight.device)
        moved = Surrogate(base).to(mine.device)
        moved.load_state_dict(self.state_dict())
        moved.words.weight += self.project(mine) - self.project(theirs)
        return moved.to(base.embed.weight.device).eval()

    def foresee(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Unit vectors (n, d) of texts of any length, on the CPU."""
        return foresee(self, texts, self.project.weight.device, self.project.out_features)


def foresee(model: nn.Module, texts: Sequence[Sequence[int]], device: torch.device, dim: int) -> Tensor:
    """What a surrogate or an echo says of texts of any length: unit vectors (n, dim), on the CPU."""
    found = torch.empty(len(texts), dim)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # so that little is padded
    for first in range(0, len(texts), BATCH):
        rows = order[first : first + BATCH]
        lengths = torch.tensor([len(texts[row]) for row in rows])
        longest = int(lengths.max())
        tokens = torch.tensor([[*texts[row], *[0] * (longest - len(texts[row]))] for row in rows], device=device)
        valid = torch.arange(longest) < lengths[:, None]
        found[rows] = model(tokens, valid.to(device)).float().cpu()
    return found
