"""The reader: which words are in a text, straight from its vector.

The vector is whitened, goes through one residual MLP, and meets a vocabulary matrix of its own. That matrix is not
learned from noise. In closed form (linear discriminant analysis), the evidence of a whitened vector x for a word is x
times the mean vector of the texts that hold the word, so one pass over the data gives a start that gradient descent
needs a million texts to find. Means of rare words are drawn towards what a regression on the token embeddings says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from unembed.config import ModelConfig
    from unembed.data.dataset import Dataset

# Texts that the closed form is computed from; fewer where each of them must be encoded first.
TEXTS, TEXTS_ONLINE = 1_000_000, 32_768
# A word's own mean counts as much as the regression when it was seen so often (docs/LOG.md: 100 to 1,000 are alike).
DOUBT = 300.0
# A word that is seen more often does not weigh more in the regression.
ENOUGH = 2000.0
# Directions of the vectors that hardly vary are not blown up beyond this.
SMALLEST_VARIANCE = 3e-3
# Words of a text come together, so their evidence must not be added up in full. On top of a bag of words that was
# trained already, little is missing.
SHARE_ALONE, SHARE_ON_TOP = 0.3, 0.1


class Reader(nn.Module):
    """(n, d) vectors of unit variance -> (n, size) what they say of words; `words` turns that into logits."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.size = reader_size(config)
        self.whiten = nn.Linear(config.vector_dim, self.size)
        self.mlp = nn.Sequential(nn.Linear(self.size, 2 * self.size), nn.GELU(), nn.Linear(2 * self.size, self.size))
        self.words = nn.Linear(self.size, config.vocab_size, bias=False)
        nn.init.kaiming_normal_(self.mlp[0].get_parameter("weight"))
        nn.init.zeros_(self.mlp[2].get_parameter("weight"))
        nn.init.zeros_(self.mlp[2].get_parameter("bias"))
        nn.init.zeros_(self.words.weight)

    def forward(self, given: Tensor) -> Tensor:
        """(n, d) -> (n, size)."""
        x: Tensor = self.whiten(given)
        x = x + self.mlp(F.layer_norm(x, (self.size,)))
        return x


def reader_size(config: ModelConfig) -> int:
    """Numbers that the reader keeps of a vector; none without a reader."""
    return min(config.vector_dim, config.width) if config.reader else 0


@torch.no_grad()
def start_from_data(reader: Reader, data: Dataset, scale: float, embeddings: Tensor, share: float) -> None:
    """Whitening and vocabulary matrix in closed form; `scale` is what the net multiplies vectors by."""
    sums, counts, mean, covariance = _moments(reader, data, scale)
    spread, axes = torch.linalg.eigh(covariance)  # rising
    spread, axes = spread[-reader.size :], axes[:, -reader.size :]
    whiten = axes / spread.clamp(min=SMALLEST_VARIANCE * float(spread.mean())).sqrt()  # (d, size)
    means = (sums / counts.clamp(min=1)[:, None] - mean) @ whiten  # (vocab, size); of unseen words nonsense, weight 0
    told = _regression(embeddings.double()[: len(means)], means, counts.clamp(max=ENOUGH))
    words = (counts[:, None] * means + DOUBT * told) / (counts + DOUBT)[:, None]
    reader.whiten.weight.copy_(whiten.T)
    reader.whiten.bias.copy_(-(mean @ whiten))
    reader.words.weight[: len(words)].copy_(share * words)


def _moments(reader: Reader, data: Dataset, scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each word the sum of the vectors that hold it and how often it occurs; mean and covariance of all vectors."""
    vocabulary, dim = reader.words.weight.shape[0], reader.whiten.in_features
    sums, counts = torch.zeros(vocabulary, dim, dtype=torch.float64), torch.zeros(vocabulary, dtype=torch.float64)
    total, squares, n = torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dim, dtype=torch.float64), 0
    wanted = TEXTS_ONLINE if data.encodes else TEXTS
    for shard in range(data.shards):
        rows = data.training_rows([shard])
        if not len(rows) or n >= wanted:
            continue
        some = np.arange(min(len(rows), wanted - n))
        tokens, found = rows.take(some, (0, 0, shard, 0))  # as in the first epoch: no text is cut
        vectors = torch.from_numpy(found.astype(np.float32)) * scale
        words = torch.from_numpy(np.concatenate(tokens).astype(np.int64))
        texts = torch.from_numpy(np.repeat(np.arange(len(tokens)), [len(row) for row in tokens]))
        sums += torch.zeros(vocabulary, dim).index_add_(0, words, vectors[texts]).double()
        counts += torch.bincount(words, minlength=vocabulary)
        total += vectors.double().sum(0)
        squares += (vectors.T @ vectors).double()
        n += len(tokens)
    mean = total / max(n, 1)
    return sums, counts, mean, squares / max(n, 1) - torch.outer(mean, mean)


def _regression(embeddings: Tensor, means: Tensor, weight: Tensor) -> Tensor:
    """What the embedding of a word says about its mean: ridge regression, weighted by how well the mean is known."""
    x = F.pad(embeddings, (0, 1), value=1.0)
    ridge = 0.1 * weight.mean() * torch.eye(x.shape[1], dtype=x.dtype)
    weighed = weight[:, None] * x
    solved: Tensor = torch.linalg.solve(x.T @ weighed + ridge, weighed.T @ means)
    return x @ solved
