"""The batch driver: predicts lengths, groups the work by length, decodes it in chunks and ranks the candidates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from unembed.decode import strategies
from unembed.decode.config import DecodeConfig, Precision
from unembed.decode.predict import Predictor, Sampling, key_of, pad_rows
from unembed.decode.score import score
from unembed.decode.strategies.base import State
from unembed.errors import ConfigError
from unembed.model.precision import autocast, fast_bf16

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.model.denoiser import Denoiser

# Vectors whose work is grouped together: enough that each of 32 lengths fills a batch, few enough to forget soon.
GROUP = 1024
# Texts in one forward pass. More gains nothing on a CPU.
BATCH = 64


@dataclass(frozen=True, slots=True)
class Candidate:
    """One decoded text, as tokens."""

    tokens: tuple[int, ...]
    confidence: tuple[float, ...]
    score: float
    steps: int
    passes: int


@dataclass(frozen=True, slots=True)
class _Job:
    """Decode this vector to this length; variants above 0 are drawn."""

    row: int
    length: int
    length_log_p: float
    variant: int


def decode(
    net: Denoiser, vectors: NDArray[np.float32], config: DecodeConfig, *, batch_size: int = BATCH
) -> Iterator[list[Candidate]]:
    """For each vector (n, d), in order, its candidates: at most n_best different ones, the best first."""
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}: give a whole number of at least 1")
    for first in range(0, len(vectors), GROUP):
        yield from _decode_group(net, vectors[first : first + GROUP], config, batch_size)


def stream(
    net: Denoiser, vector: NDArray[np.float32], config: DecodeConfig
) -> Iterator[tuple[State, Candidate | None]]:
    """Every state of one vector (d,) at its likeliest length; the last comes with its candidate."""
    with _inference(net, config):
        c = _conditions(net, vector[None], config)
        job = _plan(net, c, replace(config, lengths=1, n_best=1))[0]
        batch = _batch(net, vector[None], c, [job], config)
    states = strategies.load(config.strategy)(batch, config)
    now: State | None = None
    while True:
        with _inference(net, config):  # left before each yield: the caller's code must not run in this mode
            after = next(states, None)
            result = _candidates(batch, now, [job], config)[0] if after is None and now is not None else None
        if now is not None:
            yield now, result
        if after is None:
            return
        now = after


def _decode_group(
    net: Denoiser, vectors: NDArray[np.float32], config: DecodeConfig, batch_size: int
) -> list[list[Candidate]]:
    found: list[list[Candidate]] = [[] for _ in vectors]
    with _inference(net, config):
        c = _conditions(net, vectors, config)
        for jobs in _batches(_plan(net, c, config), batch_size):
            batch = _batch(net, vectors, c, jobs, config)
            for state in strategies.load(config.strategy)(batch, config):
                last = state
            for job, candidate in zip(jobs, _candidates(batch, last, jobs, config), strict=True):
                found[job.row].append(candidate)
    return [_ranked(candidates)[: config.n_best] for candidates in found]


def _conditions(net: Denoiser, vectors: NDArray[np.float32], config: DecodeConfig) -> Tensor:
    """The condition of every vector, computed once; under guidance 0 nothing of the vector is left, (n, width)."""
    if config.guidance == 0:
        return net.condition(None, len(vectors))
    given = torch.from_numpy(np.ascontiguousarray(vectors)).to(net.bias.device)
    return net.condition(pad_rows(given))[: len(given)]


def _plan(net: Denoiser, c: Tensor, config: DecodeConfig) -> list[_Job]:
    """The likeliest lengths of every vector; for n-best more of them, and drawn variants of the likeliest."""
    log_p = net.length_logits(pad_rows(c))[: len(c)].float().log_softmax(1).cpu()  # (n, max_tokens + 1)
    longest = log_p.shape[1] - 1
    if config.length is None:
        wanted = min(max(config.lengths, config.n_best), longest)  # texts of different lengths surely differ
        lengths = log_p.argsort(dim=1, descending=True, stable=True)[:, :wanted]
    elif config.length > longest:
        raise ConfigError(f"length is {config.length}, but this inverter writes at most {longest} tokens")
    else:
        lengths = torch.full((len(c), 1), config.length)
    jobs = []
    variants = 0 if config.n_best == 1 else 2 * config.n_best  # twice, as some will be the same text
    for row, options in enumerate(lengths.tolist()):
        jobs += [_Job(row, length, float(log_p[row, length]), 0) for length in options]
        likeliest = options[: config.lengths]
        for k in range(variants):
            length = likeliest[k % len(likeliest)]
            jobs.append(_Job(row, length, float(log_p[row, length]), 1 + k // len(likeliest)))
    return jobs


def _batches(jobs: list[_Job], batch_size: int) -> Iterator[list[_Job]]:
    """Batches of one length and one way of choosing tokens."""
    groups = defaultdict(list)
    for job in jobs:
        groups[job.length, job.variant > 0].append(job)
    for group in groups.values():
        for first in range(0, len(group), batch_size):
            yield group[first : first + batch_size]


def _batch(
    net: Denoiser, vectors: NDArray[np.float32], c: Tensor, jobs: list[_Job], config: DecodeConfig
) -> Predictor:
    temperature = config.temperature
    if jobs[0].variant and not temperature:
        temperature = config.variant_temperature
    seed = config.seed if temperature else 0  # greedy decoding does not depend on the seed, its random order included
    keys = [key_of(vectors[job.row], seed, job.length, job.variant) for job in jobs]
    rows = torch.tensor([job.row for job in jobs])
    guidance = config.guidance or 1.0  # at 0 the condition is "no vector" already
    sampling = Sampling(temperature, config.top_p, guidance, config.repeat_penalty)
    return Predictor(net, c[rows], jobs[0].length, keys, sampling)


def _candidates(batch: Predictor, state: State, jobs: list[_Job], config: DecodeConfig) -> list[Candidate]:
    steps = batch.steps.tolist()
    scores = score(batch, state, torch.tensor([job.length_log_p for job in jobs]), config).tolist()
    columns = (state.tokens.tolist(), state.confidence.tolist(), scores, steps, batch.passes.tolist())
    return [Candidate(tuple(t), tuple(p), s, k, f) for t, p, s, k, f in zip(*columns, strict=True)]


def _ranked(candidates: list[Candidate]) -> list[Candidate]:
    """Best first, each text once; equal scores in order of their tokens, so that the order of work is no matter."""
    best: dict[tuple[int, ...], Candidate] = {}
    for candidate in sorted(candidates, key=lambda c: (-c.score, c.tokens)):
        best.setdefault(candidate.tokens, candidate)
    return list(best.values())


@contextmanager
def _inference(net: Denoiser, config: DecodeConfig) -> Iterator[None]:
    """No gradients, no dropout, and bf16 where it is asked for and fast."""
    training = net.training
    net.eval()
    try:
        with torch.inference_mode(), _precision(net.bias.device, config.precision):
            yield
    finally:
        if training:
            net.train()


def _precision(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    if precision == "fp32":
        return nullcontext()
    if precision == "bf16" and not fast_bf16(device):
        raise ConfigError("precision is 'bf16', which this machine has no fast instructions for: use 'fp32' or 'auto'")
    return autocast(device)
