"""Training of a surrogate: texts and their vectors in, an inverter folder with `surrogate.safetensors` out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from unembed.config import Config
from unembed.data.dataset import Dataset
from unembed.model import artifact, batches, optim
from unembed.model.artifact import Artifact
from unembed.model.loop import Event, Loop, flushed_denormals, stop_after_step
from unembed.model.objective import Batch
from unembed.model.surrogate import Surrogate


def train(
    config: Config,
    data: Dataset,
    inverter: Artifact,
    out: Path,
    *,
    resume: bool = False,
    report: Callable[[Event], None] = lambda event: None,
) -> Path:
    """Train a surrogate of the inverter's encoder; `config.train` is the recipe. Returns the folder of both."""
    artifact.check_pairs(inverter, data.encoder_info, "a surrogate")
    run = Run(replace(inverter.config, train=config.train), data, inverter, out, resume, report)
    with flushed_denormals(), stop_after_step() as stopped:
        run.fit(stopped)
    return run.finish()


class Distance(nn.Module):
    """1 - cosine of the foreseen vector with the true one. A module, so that DDP can wrap it."""

    def __init__(self, surrogate: Surrogate) -> None:
        super().__init__()
        self.surrogate = surrogate

    def forward(self, batch: Batch, texts: int) -> Tensor:
        """Sum over this micro-batch, divided by the texts of the whole step."""
        return (1 - cosines(self.surrogate, batch)).sum() / texts


def cosines(surrogate: Surrogate, batch: Batch) -> Tensor:
    """Of every foreseen vector with the true one, (n,)."""
    foreseen = surrogate(batch.tokens, None if bool(batch.valid.all()) else batch.valid)
    true = batch.vectors / batch.vectors.norm(dim=1, keepdim=True)
    return cast(Tensor, (foreseen.float() * true).sum(1))


class Run(Loop):
    """One training run of a surrogate."""

    def __init__(
        self,
        config: Config,
        data: Dataset,
        inverter: Artifact,
        out: Path,
        resume: bool,
        report: Callable[[Event], None],
    ) -> None:
        torch.manual_seed(config.train.seed)
        super().__init__(
            config, data, out,
            resume=resume, start="surrogate", report=report,
            build=lambda: Surrogate(inverter.net.to(self.accelerator.device)).train(),
            identity=" " + artifact.weights_hash(inverter.net),
        )  # fmt: skip
        self.inverter = inverter
        examples = data.sample("validation", config.train.validate_texts, config.train.seed)
        self.validation = batches.collate(examples.tokens, examples.vectors)

    def fit(self, stopped: threading.Event) -> None:
        """Learn; validate now and then."""
        train = self.config.train
        surrogate = cast(Surrogate, self.module)
        optimizers = optim.build(surrogate, train)
        loss = self.accelerator.prepare_model(Distance(surrogate))
        self.restore(optimizers)

        def compute(batch: Batch, step: int) -> float:
            def part(rows: Tensor) -> Tensor:
                value: Tensor = loss(batch.rows(rows).to(self.accelerator.device), len(batch.tokens))
                return value

            return self.backward(loss, part, len(batch.tokens), train.accumulate)

        for event in self.steps("surrogate", train.steps, train.batch_texts, optimizers, compute, stopped):
            self.average()
            if self.progress.step % train.validate_every == 0 or self.progress.step == train.steps:
                self._validate(event)

    def finish(self) -> Path:
        """Write the inverter with its surrogate: the averaged weights."""
        if self.accelerator.is_main_process:
            info = {**self.inverter.info, "surrogate": self.account(self.last_metrics())}
            surrogate = cast(Surrogate, self.averaged)
            both = replace(self.inverter, surrogate=surrogate, info=info, writer=None)  # it knew the one before
            artifact.save(self.out, both)
        self.end()
        return self.out

    @torch.inference_mode()
    def _validate(self, event: Event) -> None:
        """Mean cosine on validation texts."""
        if not self.accelerator.is_main_process:
            return
        averaged = cast(Surrogate, self.averaged)
        parts = torch.split(torch.arange(len(self.validation.tokens)), 128)
        found = [cosines(averaged, self.validation.rows(rows).to(self.accelerator.device)) for rows in parts]
        metrics = {"surrogate_cosine": float(torch.cat(found).mean())}
        self.tell(replace(event, metrics={**metrics, "texts": self.progress.texts, "seconds": self.progress.seconds}))
