"""A search that asks nobody: an echo of the encoder takes its place.

With encoder feedback every guess is embedded and compared with the vector. Here the same search (`feedback/`) compares
what the echo foresees, so it needs the vector and nothing else. An echo errs, and a search finds where: so how well a
text reads weighs more than where the real encoder answers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from unembed.decode.config import DecodeConfig
from unembed.decode.engine import inference, light_echo
from unembed.decode.feedback.config import FeedbackConfig
from unembed.decode.feedback.runner import Found, Runner
from unembed.decode.parallel import side_by_side
from unembed.decode.plan import Candidate
from unembed.model.surrogate import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from unembed.model.artifact import Artifact

# Beside a cosine that is foreseen; chosen on validation texts (docs/LOG.md, eighteenth session).
LIKELIHOOD = 0.03
# Vectors that one thread searches for together.
TOGETHER = 25


class Imagined:
    """What an encoder would say, by an echo of it."""

    def __init__(self, model: Artifact, config: DecodeConfig) -> None:
        assert model.echo is not None  # `DecodeConfig.resolved` looked
        self._net, self._tokenizer, self._precision = model.net, model.tokenizer, config.precision
        self._echo = light_echo(model.echo, config.precision)

    def encode(self, texts: list[str]) -> NDArray[np.float32]:
        """Unit vectors (n, dim); of a text that is longer than any that the echo knows, its beginning's."""
        longest = self._net.config.max_tokens
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [found.ids[:longest] for found in encoded]
        rows = np.full((len(ids), self._net.config.vector_dim), np.nan, np.float32)
        some = [row for row, words in enumerate(ids) if words]
        with inference(self._net, self._precision):
            for first in range(0, len(some), BATCH):
                part = some[first : first + BATCH]
                rows[part] = self._echo.foresee([ids[row] for row in part]).numpy()
        return rows


def imagine(
    model: Artifact, vectors: NDArray[np.float32], config: DecodeConfig, words: torch.Tensor | None, batch_size: int
) -> Iterator[list[Candidate]]:
    """For each vector (n, d), in order, at most n_best texts, the best first; the score is the foreseen cosine."""
    feedback = FeedbackConfig(
        budget=config.imagine, gradients="off", likelihood_weight=LIKELIHOOD, batch=TOGETHER, seed=config.seed
    )
    plain = replace(config, imagine=0)
    imagined = Imagined(model, config)

    def search(some: NDArray[np.float32]) -> list[Found]:
        runner = Runner(
            model.net, model.tokenizer, imagined, plain, feedback, model.surrogate, words, model.writer, model.echo
        )
        return sorted(runner.run(some, batch_size), key=lambda found: found.row)

    parts = [vectors[first : first + TOGETHER] for first in range(0, len(vectors), TOGETHER)]
    for part in side_by_side(search, parts, model.net.bias.device):
        yield from (_candidates(found, config.n_best) for found in part)


def _candidates(found: Found, n_best: int) -> list[Candidate]:
    start = found.start
    texts = [
        Candidate(one.tokens, one.confidence, one.cosine, start.steps, start.passes) for one in found.best[:n_best]
    ]
    return texts or [start]
