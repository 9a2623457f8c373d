"""Training: shards in, inverter folder out.

    RUN/                  the inverter: model.safetensors, config.json, tokenizer.json, README.md (at the end)
    RUN/training/         run.json, metrics.jsonl, last.safetensors (state to resume from), best/, milestones/

Two phases: the cheap path (conditioner, bag of words, length) first when the configuration asks for it, then the
denoiser. One process or many (`torchrun`): the batch, its noise and its loss are those of the whole step. All
randomness is a function of (seed, step), so a killed run that resumes ends with the very same weights.
"""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.optim import Optimizer

from unembed.config import Config
from unembed.data.dataset import Dataset, Examples
from unembed.data.windows import special_ids
from unembed.errors import CheckpointError
from unembed.model import artifact, batches, checkpoint, objective, optim, runlog, warmstart
from unembed.model.artifact import Artifact
from unembed.model.checkpoint import Progress
from unembed.model.denoiser import Denoiser
from unembed.precision import fast_bf16

VALIDATION_LEVELS = (1.0, 0.5, 0.15)  # share of masked tokens


@dataclass(frozen=True, slots=True)
class Preview:
    """A short end-to-end decode of validation texts: scores, and (original, recovered) samples."""

    metrics: dict[str, float]
    samples: list[tuple[str, str]]


PreviewFunction = Callable[[Artifact, Examples], Preview]


@dataclass(frozen=True, slots=True)
class Event:
    """What the trainer tells after each step; `metrics` and `samples` are there after a validation."""

    phase: str
    step: int
    steps: int
    loss: float
    lr: float
    texts_per_second: float
    seconds_left: float
    metrics: dict[str, float] = field(default_factory=dict)
    samples: list[tuple[str, str]] = field(default_factory=list)


def train(
    config: Config,
    data: Dataset,
    out: Path,
    *,
    resume: bool = False,
    init_from: Artifact | None = None,
    preview: PreviewFunction | None = None,
    report: Callable[[Event], None] = lambda event: None,
) -> Path:
    """Train an inverter on the dataset and write it to `out`; returns the folder."""
    run = Run(config, data, out, resume, init_from, preview, report)
    with _stop_after_step() as stopped:
        if run.progress.phase == "bag":
            run.fit_bag(stopped)
            run.progress = replace(run.progress, phase="denoise", step=0, cursor=batches.Cursor())
        run.fit(stopped)
    return run.finish()


def build_net(config: Config, data: Dataset, init_from: Artifact | None = None) -> Denoiser:
    """A new denoiser for this data, initialised as the configuration says."""
    torch.manual_seed(config.train.seed)
    net = Denoiser(config.model)
    net.forbid([config.model.mask_id, *special_ids(data.tokenizer)])
    if init_from is not None:
        warmstart.from_inverter(net, init_from.net, same_encoder=init_from.encoder == data.encoder_info)
    elif config.model.init == "encoder":
        warmstart.from_minilm(net)
    if init_from is None:
        warmstart.set_unigram(net, data.token_counts())
    return net


def fit_to_data(config: Config, data: Dataset) -> Config:
    """The configuration with the facts that the dataset decides: vocabulary, mask token, dimension, length."""
    size = data.tokenizer.get_vocab_size()
    named = [data.tokenizer.token_to_id(name) for name in ("[MASK]", "<mask>", "<|mask|>")]
    mask_id = next((id_ for id_ in named if id_ is not None), size)  # a tokenizer without one gets one more id
    model = replace(
        config.model,
        vocab_size=max(size, mask_id + 1),
        mask_id=mask_id,
        vector_dim=data.dim,
        vector_norm=1.0 if data.encoder_info.normalized else _typical_norm(data),
        max_tokens=data.max_tokens,
    )
    return replace(config, model=model)


def _typical_norm(data: Dataset) -> float:
    """Root mean square length of the vectors, from a sample."""
    vectors = data.sample("train", 1000, 0).vectors.astype(np.float64)
    return round(float(np.sqrt(np.square(vectors).sum(1).mean())), 6)


def _earlier_training(init_from: Artifact | None, data: Dataset) -> tuple[int, float]:
    """Texts and seconds that went into the weights a stage starts from; those of another encoder do not count."""
    if init_from is None or init_from.encoder != data.encoder_info:
        return 0, 0.0
    known = init_from.info.get("data", {})
    return int(known.get("texts seen", 0)), float(known.get("seconds", 0.0))


class Run:
    """One training run: its objects, its two loops, its files."""

    def __init__(
        self,
        config: Config,
        data: Dataset,
        out: Path,
        resume: bool,
        init_from: Artifact | None,
        preview: PreviewFunction | None,
        report: Callable[[Event], None],
    ) -> None:
        self.config, self.data, self.out, self.preview, self.report = config, data, out, preview, report
        # Unless told, accelerate takes processes without a GPU for strangers, each with a run of its own.
        cpu = not torch.accelerator.is_available()
        bf16 = config.train.bf16 and fast_bf16(PartialState(cpu=cpu).device)
        self.accelerator = Accelerator(cpu=cpu, mixed_precision="bf16" if bf16 else "no")
        self.folder = out / "training"
        self.checkpoint = self.folder / "last.safetensors"
        begun = self.checkpoint.exists()
        if self.accelerator.is_main_process:
            runlog.claim(self.folder, config, data.fingerprint, resume=resume, begun=begun)
        self.accelerator.wait_for_everyone()
        self.log = runlog.MetricsLog(self.folder)
        self.before = _earlier_training(init_from, data)
        self.net = build_net(config, data, init_from).to(self.accelerator.device)
        self.ema = copy.deepcopy(self.net).requires_grad_(False).eval()
        start = "bag" if config.train.bag_steps and config.model.bag_of_words else "denoise"
        self.progress = Progress(phase=start)
        if begun:
            self.progress = checkpoint.read_progress(self.checkpoint)
            if self.accelerator.is_main_process:
                self.log.cut(self.progress)
        self.examples = data.sample("validation", config.train.validate_texts, config.train.seed)
        self.validation = batches.collate(self.examples.tokens, self.examples.vectors)

    # --- the two phases -------------------------------------------------------------------------------------------

    def fit_bag(self, stopped: threading.Event) -> None:
        """Pretrain conditioner, bag of words and length; the rest of the net waits."""
        train = self.config.train
        waiting = [p for name, p in self.net.named_parameters() if optim.waits_for_bag(name) and p.requires_grad]
        for parameter in waiting:
            parameter.requires_grad_(False)
        optimizers = optim.build(self.net, replace(train, lr=train.bag_lr))
        loss = self.accelerator.prepare_model(objective.BagLoss(self.net))
        self._restore(optimizers)

        def compute(batch: objective.Batch, step: int) -> float:
            rng = objective.generator(train.seed, 1, step)
            dropped = torch.rand(len(batch.tokens), generator=rng) < self.config.diffusion.condition_dropout
            total = int(batch.lengths.sum())

            def part(rows: Tensor) -> Tensor:
                some = batch.rows(rows).to(self.accelerator.device)
                value: Tensor = loss(some, dropped[rows].to(some.tokens.device), len(batch.tokens), total)
                return value

            return self._backward(loss, part, len(batch.tokens), accumulate=1)

        for _ in self._steps("bag", train.bag_steps, train.bag_batch_texts, optimizers, compute, stopped):
            pass
        for parameter in waiting:
            parameter.requires_grad_(True)
        self.ema.load_state_dict(self.net.state_dict())

    def fit(self, stopped: threading.Event) -> None:
        """Train the denoiser: the loop of the paper's section 4."""
        train = self.config.train
        optimizers = optim.build(self.net, train)
        loss = self.accelerator.prepare_model(objective.DenoisingLoss(self.net))
        sampler = objective.CandidateSampler(self.data.token_counts(), train.sampled_softmax)
        self._restore(optimizers)

        def compute(batch: objective.Batch, step: int) -> float:
            rng = objective.generator(train.seed, 2, step)
            noise = objective.draw_noise(batch, self.config.diffusion, rng)
            candidates = None
            if train.sampled_softmax:
                candidates = sampler.draw(batch.tokens[noise.masked], rng).to(self.accelerator.device)
            total = int(batch.lengths.sum())

            def part(rows: Tensor) -> Tensor:
                some = batch.rows(rows)
                drawn = noise.rows(rows, some.tokens.shape[1]).to(self.accelerator.device)
                value: Tensor = loss(some.to(self.accelerator.device), drawn, candidates, len(batch.tokens), total)
                return value

            return self._backward(loss, part, len(batch.tokens), train.accumulate)

        for event in self._steps("denoise", train.steps, train.batch_texts, optimizers, compute, stopped):
            self._update_ema()
            last = self.progress.step == train.steps
            if self.progress.step % train.validate_every == 0 or last:
                self._validate(event)
            if train.milestone_every and self.progress.step % train.milestone_every == 0:
                self._save_inverter(self.folder / "milestones" / f"step-{self.progress.step:07d}")
            if train.patience and self._agreed(self.progress.worse >= train.patience):
                self._save(optimizers)
                break

    def _steps(
        self,
        phase: str,
        steps: int,
        batch_texts: int,
        optimizers: list[Optimizer],
        compute: Callable[[objective.Batch, int], float],
        stopped: threading.Event,
    ) -> Iterator[Event]:
        """The loop that both phases share; yields after every optimizer step, then saves when it is time."""
        train, progress = self.config.train, self.progress
        stream = batches.stream(self.data, batch_texts, train.seed + (phase == "bag"), progress.cursor)
        began, first = time.monotonic(), progress.step
        while progress.step < steps:
            start = time.monotonic()
            batch, progress.cursor = next(stream)
            factor = optim.lr_factor(progress.step, steps, train)
            optim.set_lr(optimizers, factor)
            # Dropout must not depend on what ran before a resume.
            set_seed(train.seed + progress.step * 1009 + self.accelerator.process_index)
            loss = compute(batch, progress.step)
            if not math.isfinite(loss):
                raise CheckpointError(
                    f"the loss is {loss} at step {progress.step + 1} of phase {phase!r}: lower train.lr and "
                    f"train.muon_lr, and go on from {self.checkpoint.parent} or start anew"
                )
            self.accelerator.clip_grad_norm_([p for p in self.net.parameters() if p.grad is not None], train.clip)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            progress.step += 1
            progress.seconds += time.monotonic() - start
            if phase == "denoise":
                progress.texts += len(batch.tokens)
            pace = (time.monotonic() - began) / (progress.step - first)
            event = Event(
                phase, progress.step, steps, loss, optimizers[0].param_groups[0]["lr"], len(batch.tokens) / pace,
                pace * (steps - progress.step),
            )  # fmt: skip
            yield event
            if self.accelerator.is_main_process:
                self.log.add(asdict(event))
                self.report(event)
            stop = self._agreed(stopped.is_set())
            if progress.step % train.save_every == 0 or progress.step == steps or stop:
                self._save(optimizers)
            if stop:
                raise KeyboardInterrupt

    def _backward(self, loss: nn.Module, part: Callable[[Tensor], Tensor], texts: int, accumulate: int) -> float:
        """Forward and backward over the micro-batches of a step; returns the loss of the whole global batch."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        pieces = torch.arange(texts).chunk(max(1, min(accumulate, texts // world)))
        total = torch.zeros((), device=self.accelerator.device)
        for number, piece in enumerate(pieces):
            last = number + 1 == len(pieces)
            with nullcontext() if last else self.accelerator.no_sync(loss):
                value = part(piece[rank::world])
                # DDP averages gradients over processes; the parts are to be summed.
                self.accelerator.backward(value * world)
            total += value.detach()
        reduced: Tensor = self.accelerator.reduce(total, "sum")
        return float(reduced)

    def _agreed(self, flag: bool) -> bool:
        """True for all processes as soon as it is for one of them: they must leave a loop at the same step."""
        if self.accelerator.num_processes == 1:
            return flag
        votes: Tensor = self.accelerator.reduce(torch.tensor(float(flag), device=self.accelerator.device), "sum")
        return bool(votes > 0)

    # --- validation and files -------------------------------------------------------------------------------------

    @torch.no_grad()
    def _update_ema(self) -> None:
        """Exponential moving average, with a warm-up so that early steps are forgotten."""
        step = self.progress.step
        decay = min(self.config.train.ema, (1 + step) / (10 + step))
        for averaged, current in zip(self.ema.parameters(), self.net.parameters(), strict=True):
            averaged.lerp_(current, 1 - decay)

    def _validate(self, event: Event) -> None:
        """Full-softmax cross-entropy at fixed noise levels and a short decode, with the averaged weights."""
        if not self.accelerator.is_main_process:
            return
        metrics = {
            f"entropy_{level:g}": objective.validation_entropy(self.ema, self.validation, level, self.config.train.seed)
            for level in VALIDATION_LEVELS
        }
        score = sum(metrics.values()) / len(metrics)
        samples: list[tuple[str, str]] = []
        if self.preview is not None and self.config.train.preview_texts:
            seen = self.preview(self._artifact(), self.examples.head(self.config.train.preview_texts))
            metrics |= seen.metrics
            samples = seen.samples
        texts, seconds = self.before
        metrics |= {"texts": texts + self.progress.texts, "seconds": seconds + self.progress.seconds}
        if score < self.progress.best:
            self.progress.best, self.progress.worse = score, 0
            self._save_inverter(self.folder / "best", metrics)
        else:
            self.progress.worse += 1
        full = replace(event, metrics=metrics, samples=samples)
        self.log.add(asdict(full))
        self.report(full)

    def finish(self) -> Path:
        """Write the inverter: the averaged weights."""
        metrics: dict[str, float] = {}
        for line in self.log.lines():
            metrics = line["metrics"] or metrics
        if self.accelerator.is_main_process:
            self._save_inverter(self.out, metrics)
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()
        return self.out

    def _artifact(self, metrics: dict[str, float] | None = None) -> Artifact:
        texts, seconds = self.before
        info: dict[str, Any] = {
            "data": {
                "dataset": self.data.fingerprint,
                "sources": ", ".join(sorted(self.data.source_counts)),
                "train texts": self.data.count("train"),
                "texts seen": texts + self.progress.texts,
                "seconds": round(seconds + self.progress.seconds),
            },
            "metrics": {key: round(value, 4) for key, value in (metrics or {}).items()},
        }
        return Artifact(self.ema, self.data.tokenizer, self.config, self.data.encoder_info, info)

    def _save_inverter(self, folder: Path, metrics: dict[str, float] | None = None) -> None:
        if self.accelerator.is_main_process:
            artifact.save(folder, self._artifact(metrics))

    def _save(self, optimizers: list[Optimizer]) -> None:
        if self.accelerator.is_main_process:
            checkpoint.save(self.checkpoint, self.progress, self.net, self.ema, optimizers)
        self.accelerator.wait_for_everyone()

    def _restore(self, optimizers: list[Optimizer]) -> None:
        """Load the saved tensors when the run is in the middle of this phase."""
        if self.checkpoint.exists() and self.progress.step:
            checkpoint.restore(self.checkpoint, self.net, self.ema, optimizers)


@contextmanager
def _stop_after_step() -> Iterator[threading.Event]:
    """Turn Ctrl-C into "finish this step, save, then stop"; a second Ctrl-C stops at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
