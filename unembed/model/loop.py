"""What every training run has: steps that a kill cannot undo, processes that act as one, averaged weights, a log.

`trainer.py` trains inverters with it, `surrogate_trainer.py` and `writer_trainer.py` what lies beside them. All
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import set_seed
from torch import Tensor, nn
from torch.optim import Optimizer

from unembed.config import Config
from unembed.data.dataset import Dataset
from unembed.errors import CheckpointError
from unembed.model import batches, checkpoint, fused, objective, optim, runlog
from unembed.model.checkpoint import Progress
from unembed.model.denoiser import Block
from unembed.precision import fast_bf16


@dataclass(frozen=True, slots=True)
class Event:
    """What a run tells after each step; `metrics` and `samples` are there after a validation."""

    phase: str
    step: int
    steps: int
    loss: float
    lr: float
    texts_per_second: float
    seconds_left: float
    metrics: dict[str, float] = field(default_factory=dict)
    samples: list[tuple[str, str]] = field(default_factory=list)


class Loop:
    """The files, the processes and the steps of one run."""

    def __init__(
        self,
        config: Config,
        data: Dataset,
        out: Path,
        *,
        resume: bool,
        start: str,
        build: Callable[[], nn.Module],
        identity: str = "",
        report: Callable[[Event], None] = lambda event: None,
    ) -> None:
        """`start` names the first phase; `identity` is what else, besides the dataset, makes this run what it is."""
        self.config, self.data, self.out, self.report = config, data, out, report
        # Unless told, accelerate takes processes without a GPU for strangers, each with a run of its own.
        cpu = not torch.accelerator.is_available()
        bf16 = config.train.bf16 and fast_bf16(PartialState(cpu=cpu).device)
        self.accelerator = Accelerator(cpu=cpu, mixed_precision="bf16" if bf16 else "no")
        self.folder = out / "training"
        self.checkpoint = self.folder / "last.safetensors"
        begun = self.checkpoint.exists()
        if self.accelerator.is_main_process:
            runlog.claim(self.folder, config, data.fingerprint + identity, resume=resume, begun=begun)
        self.accelerator.wait_for_everyone()
        self.log = runlog.MetricsLog(self.folder)
        self.module = build().to(self.accelerator.device)
        if config.train.compile:
            fused.check_compiler()
            for part in self.module.modules():
                if isinstance(part, Block):
                    part.compiled = True
        self.averaged = copy.deepcopy(self.module).requires_grad_(False).eval()
        self.progress = Progress(phase=start)
        if begun:
            self.progress = checkpoint.read_progress(self.checkpoint)
            if self.accelerator.is_main_process:
                self.log.cut(self.progress)

    def steps(
        self,
        phase: str,
        steps: int,
        batch_texts: int,
        optimizers: list[Optimizer],
        compute: Callable[[objective.Batch, int], float],
        stopped: threading.Event,
    ) -> Iterator[Event]:
        """The loop that all phases share; yields after every optimizer step, then saves when it is time."""
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
            self.accelerator.clip_grad_norm_([p for p in self.module.parameters() if p.grad is not None], train.clip)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            progress.step += 1
            progress.seconds += time.monotonic() - start
            if phase != "bag":
                progress.texts += len(batch.tokens)
            pace = (time.monotonic() - began) / (progress.step - first)
            event = Event(
                phase, progress.step, steps, loss, optimizers[0].param_groups[0]["lr"], len(batch.tokens) / pace,
                pace * (steps - progress.step),
            )  # fmt: skip
            yield event
            self.tell(event)
            stop = self.agreed(stopped.is_set())
            if progress.step % train.save_every == 0 or progress.step == steps or stop:
                self.save(optimizers)
            if stop:
                raise KeyboardInterrupt

    def backward(self, loss: nn.Module, part: Callable[[Tensor], Tensor], texts: int, accumulate: int) -> float:
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

    def agreed(self, flag: bool) -> bool:
        """True for all processes as soon as it is for one of them: they must leave a loop at the same step."""
        if self.accelerator.num_processes == 1:
            return flag
        votes: Tensor = self.accelerator.reduce(torch.tensor(float(flag), device=self.accelerator.device), "sum")
        return bool(votes > 0)

    @torch.no_grad()
    def average(self) -> None:
        """Exponential moving average, with a warm-up so that early steps are forgotten."""
        step = self.progress.step
        decay = min(self.config.train.ema, (1 + step) / (10 + step))
        for averaged, current in zip(self.averaged.parameters(), self.module.parameters(), strict=True):
            averaged.lerp_(current, 1 - decay)

    def tell(self, event: Event) -> None:
        """Log it and report it, once."""
        if self.accelerator.is_main_process:
            self.log.add(asdict(event))
            self.report(event)

    def last_metrics(self) -> dict[str, float]:
        """Those of the last validation."""
        metrics: dict[str, float] = {}
        for line in self.log.lines():
            metrics = line["metrics"] or metrics
        return metrics

    def account(self, metrics: dict[str, float]) -> dict[str, Any]:
        """What the card tells of a net that was trained beside its inverter."""
        data = {"dataset": self.data.fingerprint, "texts seen": self.progress.texts}
        told = {key: round(value, 4) for key, value in metrics.items()}
        return {"data": data, "metrics": told, "seconds": round(self.progress.seconds)}

    def save(self, optimizers: list[Optimizer]) -> None:
        """The whole state, to go on from."""
        if self.accelerator.is_main_process:
            checkpoint.save(self.checkpoint, self.progress, self.module, self.averaged, optimizers)
        self.accelerator.wait_for_everyone()

    def restore(self, optimizers: list[Optimizer]) -> None:
        """Load the saved tensors when the run is in the middle of this phase."""
        if self.checkpoint.exists() and self.progress.step:
            checkpoint.restore(self.checkpoint, self.module, self.averaged, optimizers)

    def end(self) -> None:
        """After the last file was written."""
        self.accelerator.wait_for_everyone()
        self.accelerator.end_training()


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Small gradients and probabilities become zero, not numbers that a CPU computes with a hundred times slower.

    It is a state of the thread, so it is left as it was found.
    """
    before = float(torch.full((), 1e-40) * 1.0) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@contextmanager
def stop_after_step() -> Iterator[threading.Event]:
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
