"""What is to be decoded: which lengths and variants of which vector, and the course of such a batch to its scores."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unembed.decode import strategies
from unembed.decode.config import DecodeConfig
from unembed.decode.head import Shortlist, pad_rows
from unembed.decode.predict import Answer, Ask, Sampling
from unembed.decode.score import score
from unembed.decode.steer import Steer
from unembed.decode.strategies.base import State
from unembed.decode.texts import Texts, key_of
from unembed.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.model.denoiser import Denoiser

Item = TypeVar("Item")

# Of a steered text only so many words are read at each step, the likeliest by its bag of words; of 64 texts none became
# another by that (docs/LOG.md, twelfth session).
SHORTLIST = 2048


@dataclass(frozen=True, slots=True)
class Candidate:
    """One decoded text, as tokens."""

    tokens: tuple[int, ...]
    confidence: tuple[float, ...]
    score: float
    steps: int
    passes: int


@dataclass(frozen=True, slots=True)
class Job:
    """Decode this vector to this length; variants above 0 are drawn."""

    row: int
    length: int
    length_log_p: float
    variant: int


@dataclass(frozen=True, slots=True)
class Stage:
    """A batch after one step; after the last one with its results."""

    state: State
    candidates: list[Candidate] | None
    """One for each job of a denoiser's course; of a writer's, all texts of its one vector, the best first."""


Course: TypeAlias = Generator[Ask | Stage, Answer, None]
"""Hands out asks, each to be sent its answer, and stages, the last of which has the candidates."""


def conditions(net: Denoiser, vectors: NDArray[np.float32], config: DecodeConfig) -> Tensor:
    """The condition of every vector, computed once; under guidance 0 nothing of the vector is left, (n, width)."""
    if config.guidance == 0:
        return net.condition(None, len(vectors))
    given = torch.from_numpy(np.ascontiguousarray(vectors)).to(net.bias.device)
    return net.condition(pad_rows(given))[: len(given)]


def plan(net: Denoiser, c: Tensor, config: DecodeConfig) -> list[Job]:
    """The expected length of every vector, then the likeliest ones; for n-best more of them, and drawn variants."""
    log_p = net.length_logits(pad_rows(c))[: len(c)].float().log_softmax(1).cpu()  # (n, max_tokens + 1)
    longest = log_p.shape[1] - 1
    if config.length is not None and config.length > longest:
        raise ConfigError(f"length is {config.length}, but this inverter writes at most {longest} tokens")
    order = log_p.scatter(1, median(log_p), torch.inf).argsort(dim=1, descending=True, stable=True).tolist()
    jobs = []
    variants = 0 if config.n_best == 1 else 2 * config.n_best  # twice, as some will be the same text
    for row, options in enumerate(order):
        if config.length is not None:
            options, wanted = [config.length], 1
        else:
            wanted = config.lengths_for(options[0])
            options = options[: min(max(wanted, config.n_best), longest)]  # texts of different lengths surely differ
        jobs += [Job(row, length, float(log_p[row, length]), 0) for length in options]
        likeliest = options[:wanted]
        for k in range(variants):
            length = likeliest[k % len(likeliest)]
            jobs.append(Job(row, length, float(log_p[row, length]), 1 + k // len(likeliest)))
    return jobs


def median(log_p: Tensor) -> Tensor:
    """The middle of each distribution over lengths, (n, lengths) -> (n, 1).

    Its mode is too long: long texts were cut to `max_tokens` for training, which piles up there.
    """
    return (log_p.exp().cumsum(1) >= 0.5).int().argmax(1, keepdim=True)


def course(
    net: Denoiser,
    vectors: NDArray[np.float32],
    c: Tensor,
    jobs: list[Job],
    config: DecodeConfig,
    words: Tensor | None = None,
) -> Course:
    """Decode jobs of one length and one way of choosing tokens, from nothing but masks to the candidates.

    `words` (vocab, d) is what each word adds to the vector of its text, where that is known.
    """
    texts = _texts(net, vectors, c, jobs, config, words)
    steps = strategies.load(config.strategy)(texts, config)
    last: State | None = None
    found: Answer | None = None
    while (item := advance(steps, found)) is not None:
        if last is not None:
            yield Stage(last, None)  # something follows, so it was not the last
        last, found = (item, None) if isinstance(item, State) else (None, (yield item))
    if last is None:
        raise ConfigError(f"the strategy {config.strategy!r} ended without a state: it must yield one after each step")
    taken = texts.steps.tolist()
    scores = yield from score(texts, last, torch.tensor([job.length_log_p for job in jobs]), config)
    columns = (last.tokens.tolist(), last.confidence.tolist(), scores.tolist(), taken, texts.passes.tolist())
    candidates = [Candidate(tuple(t), tuple(p), s, k, f) for t, p, s, k, f in zip(*columns, strict=True)]
    yield Stage(last, candidates)


def advance(items: Generator[Item, Answer, None], found: Answer | None) -> Item | None:
    """The next item, given the answer to the last one if it was an ask; None at the end."""
    try:
        return next(items) if found is None else items.send(found)
    except StopIteration:
        return None


def _shortlists(net: Denoiser, c: Tensor) -> list[Shortlist] | None:
    """The words that each vector makes likely, wherever they stand; None if all are to be read."""
    if not c.is_cpu or not net.config.bag_of_words or net.config.vocab_size <= SHORTLIST:
        return None  # a GPU reads all words of all texts at once
    likely = net.logits(net.bag_hidden(pad_rows(c)))[: len(c)].float()
    words = likely.topk(SHORTLIST, dim=1, sorted=False).indices.sort(dim=1).values
    return [Shortlist(net, some) for some in words]


def _texts(
    net: Denoiser,
    vectors: NDArray[np.float32],
    c: Tensor,
    jobs: list[Job],
    config: DecodeConfig,
    words: Tensor | None,
) -> Texts:
    temperature = config.temperature
    if jobs[0].variant and not temperature:
        temperature = config.variant_temperature
    seed = config.seed if temperature else 0  # greedy decoding does not depend on the seed, its random order included
    keys = [key_of(vectors[job.row], seed, job.length, job.variant) for job in jobs]
    rows = torch.tensor([job.row for job in jobs])
    guidance = config.guidance or 1.0  # at 0 the condition is "no vector" already
    sampling = Sampling(temperature, config.top_p, guidance, config.repeat_penalty)
    steer = None
    if words is not None and config.steers and config.guidance:
        aims = F.normalize(torch.from_numpy(vectors[[job.row for job in jobs]]), dim=1).to(words.device)
        listed = _shortlists(net, c[rows]) if guidance == 1 else None  # guidance mixes the logits of two texts
        steer = Steer(words, aims, config.steers, shortlists=listed)
    return Texts(c[rows], jobs[0].length, keys, sampling, net.config.mask_id, steer)
