"""The batch driver: groups the work by length, decodes it in chunks and ranks the candidates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from unembed.decode.config import WRITER, DecodeConfig, Precision
from unembed.decode.parallel import side_by_side
from unembed.decode.plan import Candidate, Course, Job, Stage, advance, conditions, course, plan
from unembed.decode.predict import Ask, answer
from unembed.decode.result import Inversion
from unembed.decode.strategies.base import State
from unembed.decode.write import write, written
from unembed.errors import ConfigError
from unembed.precision import autocast, fast_bf16, halved

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from unembed.model.denoiser import Denoiser
    from unembed.model.echo import Echo
    from unembed.model.writer import Writer

# Vectors whose work is grouped together: enough that each of 32 lengths fills its batches, few enough to forget soon.
GROUP = 4096
# Texts in one forward pass. More gains nothing on a CPU.
BATCH = 64
# Texts that are written together: a shortlist of words stands beside each, 1.5 MB.
WRITER_BATCH = 48


def decode(
    net: Denoiser,
    vectors: NDArray[np.float32],
    config: DecodeConfig,
    *,
    batch_size: int = BATCH,
    words: Tensor | None = None,
    writer: Writer | None = None,
    echo: Echo | None = None,
) -> Iterator[list[Candidate]]:
    """For each vector (n, d), in order, its candidates: at most n_best different ones, the best first.

    `words` (vocab, d) is what each word adds to the vector of its text (`Surrogate.word_vectors`), for steering; `echo`
    judges what the writer has written.
    """
    config = config.resolved(writer is not None)
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}: give a whole number of at least 1")
    for first in range(0, len(vectors), GROUP):
        some = vectors[first : first + GROUP]
        if config.strategy == WRITER and writer is not None:
            yield from _write_group(writer, echo, some, config, batch_size)
        else:
            yield from _decode_group(net, some, config, batch_size, words)


def stream(
    net: Denoiser,
    vector: NDArray[np.float32],
    config: DecodeConfig,
    words: Tensor | None = None,
    writer: Writer | None = None,
    echo: Echo | None = None,
) -> Iterator[tuple[State, list[Candidate] | None]]:
    """Every state of one vector (d,), at its expected length if it is denoised; the last comes with its candidates."""
    stages = single(net, vector, config, words, writer, echo)
    while True:
        with inference(net, config.precision):  # left before each yield: the caller's code must not run in this mode
            stage = _next_stage(net, stages)
        if stage is None:
            return
        yield stage.state, stage.candidates


def single(
    net: Denoiser,
    vector: NDArray[np.float32],
    config: DecodeConfig,
    words: Tensor | None = None,
    writer: Writer | None = None,
    echo: Echo | None = None,
) -> Course:
    """The course of one vector (d,), at its expected length if it is denoised."""
    config = config.resolved(writer is not None)
    with inference(net, config.precision):
        if config.strategy == WRITER and writer is not None:
            return written(writer, vector[None], config, echo)
        c = conditions(net, vector[None], config)
        return course(net, vector[None], c, plan(net, c, replace(config, lengths=1, n_best=1)), config, words)


@contextmanager
def inference(net: Denoiser, precision: Precision) -> Iterator[None]:
    """No gradients, no dropout, and bf16 where it is asked for and fast."""
    training = net.training
    if training:  # walks through all modules: not for nothing, many times a second
        net.eval()
    try:
        # Texts are on the CPU whatever the caller's default device is.
        texts = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
        with torch.inference_mode(), texts, _precision(net.bias.device, precision):
            yield
    finally:
        if training:
            net.train()


def _decode_group(
    net: Denoiser, vectors: NDArray[np.float32], config: DecodeConfig, batch_size: int, words: Tensor | None
) -> list[list[Candidate]]:
    found: list[list[Candidate]] = [[] for _ in vectors]

    def decoded(jobs: list[Job]) -> list[Candidate]:
        with inference(net, config.precision):  # a state of the thread
            stages = course(net, vectors, c, jobs, config, words)
            while (stage := _next_stage(net, stages)) is not None:
                if stage.candidates is not None:
                    return stage.candidates
        raise AssertionError("a course ends with its candidates")

    with inference(net, config.precision):
        c = conditions(net, vectors, config)
        batches = list(_batches(plan(net, c, config), batch_size))
        for jobs, candidates in zip(batches, side_by_side(decoded, batches, net.bias.device), strict=True):
            for job, candidate in zip(jobs, candidates, strict=True):
                found[job.row].append(candidate)
    return [ranked(candidates)[: config.n_best] for candidates in found]


def _write_group(
    writer: Writer, echo: Echo | None, vectors: NDArray[np.float32], config: DecodeConfig, batch_size: int
) -> Iterator[list[Candidate]]:
    writer, echo = light(writer, config.precision), echo and light_echo(echo, config.precision)

    def texts(some: NDArray[np.float32]) -> list[list[Candidate]]:
        with inference(writer.base, config.precision):
            given = torch.from_numpy(np.ascontiguousarray(some)).to(writer.position.device)
            return write(writer, given, config.beams, config.n_best, echo if config.echo else None)

    size = min(batch_size, WRITER_BATCH)
    batches = [vectors[first : first + size] for first in range(0, len(vectors), size)]
    for found in side_by_side(texts, batches, writer.position.device):
        yield from found


def _next_stage(net: Denoiser, stages: Course) -> Stage | None:
    """Answer every ask at once, until a step is done."""
    item = advance(stages, None)
    while isinstance(item, Ask):
        item = advance(stages, answer(net, [item])[0])
    return item


def _batches(jobs: list[Job], batch_size: int) -> Iterator[list[Job]]:
    """Batches of one length and one way of choosing tokens."""
    groups = defaultdict(list)
    for job in jobs:
        groups[job.length, job.variant > 0].append(job)
    for group in groups.values():
        for first in range(0, len(group), batch_size):
            yield group[first : first + batch_size]


C = TypeVar("C", Candidate, Inversion)


def ranked(candidates: list[C]) -> list[C]:
    """Best first, each text once; equal scores in order of their tokens, so that the order of work is no matter.

    The passes of the first are those of all: what the answer has cost.
    """
    best: dict[tuple[int, ...], C] = {}
    for candidate in sorted(candidates, key=lambda c: (-c.score, c.tokens)):
        best.setdefault(candidate.tokens, candidate)
    first, *others = best.values()
    return [replace(first, passes=sum(candidate.passes for candidate in candidates)), *others]


def light(writer: Writer, precision: Precision) -> Writer:
    """The writer as it is fastest in that precision; words and what else is the inverter's stay shared."""
    if precision == "fp32" or not fast_bf16(writer.position.device):
        return writer
    return halved(writer, writer.base, writer.meanings)


def light_echo(echo: Echo, precision: Precision) -> Echo:
    """The same for an echo."""
    if precision == "fp32" or not fast_bf16(echo.meanings.device):
        return echo
    return halved(echo, *echo.shared, echo.meanings)


def _precision(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    if precision == "fp32":
        return nullcontext()
    if precision == "bf16" and not fast_bf16(device):
        raise ConfigError("precision is 'bf16', which this machine has no fast instructions for: use 'fp32' or 'auto'")
    return autocast(device)
