"""Training of a surrogate or of an echo: texts and their vectors in, an inverter folder with one more file out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from unembed.config import Config
from unembed.data.dataset import Dataset
from unembed.data.encoders import minilm
from unembed.errors import ConfigError
from unembed.model import artifact, batches, optim
from unembed.model.artifact import Artifact
from unembed.model.echo import Echo
from unembed.model.loop import Event, Loop, flushed_denormals, stop_after_step
from unembed.model.objective import Batch
from unembed.model.surrogate import Surrogate

Kind: TypeAlias = Literal["surrogate", "echo"]


def train(
    config: Config,
    data: Dataset,
    inverter: Artifact,
    out: Path,
    *,
    kind: Kind = "surrogate",
    resume: bool = False,
    report: Callable[[Event], None] = lambda event: None,
) -> Path:
    """Train what foresees the vectors of the inverter's encoder; `config.train` is the recipe. Returns their folder."""
    artifact.check_pairs(inverter, data.encoder_info, "an echo" if kind == "echo" else "a surrogate")
    if kind == "echo" and inverter.surrogate is None:
        raise ConfigError("an echo stands on a surrogate: train one first (unembed train --surrogate-of)")
    run = Run(replace(inverter.config, train=config.train), data, inverter, kind, out, resume, report)
    with flushed_denormals(), stop_after_step() as stopped:
        run.fit(stopped)
    return run.finish()


def _begin(kind: Kind, inverter: Artifact, device: torch.device) -> nn.Module:
    """A new one; an echo goes on from the one that the inverter has."""
    if kind == "surrogate":
        return Surrogate(inverter.net.to(device))
    assert inverter.surrogate is not None  # `train` looked
    echo = Echo(inverter.net.to(device), inverter.surrogate.to(device))
    if inverter.echo is not None:
        echo.load_state_dict(inverter.echo.state_dict())
    elif inverter.encoder.fingerprint == minilm.SHA256["model.safetensors"]:
        echo.start_from_minilm()
    return echo.requires_grad_(True)


class Distance(nn.Module):
    """1 - cosine of the foreseen vector with the true one. A module, so that DDP can wrap it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, texts: int) -> Tensor:
        """Sum over this micro-batch, divided by the texts of the whole step."""
        return (1 - cosines(self.model, batch)).sum() / texts


def cosines(model: nn.Module, batch: Batch) -> Tensor:
    """Of every foreseen vector with the true one, (n,)."""
    foreseen = model(batch.tokens, None if bool(batch.valid.all()) else batch.valid)
    true = batch.vectors / batch.vectors.norm(dim=1, keepdim=True)
    return cast(Tensor, (foreseen.float() * true).sum(1))


class Run(Loop):
    """One training run of a surrogate or an echo."""

    def __init__(
        self,
        config: Config,
        data: Dataset,
        inverter: Artifact,
        kind: Kind,
        out: Path,
        resume: bool,
        report: Callable[[Event], None],
    ) -> None:
        torch.manual_seed(config.train.seed)
        super().__init__(
            config, data, out,
            resume=resume, start=kind, report=report,
            build=lambda: _begin(kind, inverter, self.accelerator.device).train(),
            identity=" " + artifact.weights_hash(inverter.net),
        )  # fmt: skip
        self.inverter, self.kind = inverter, kind
        examples = data.sample("validation", config.train.validate_texts, config.train.seed)
        self.validation = batches.collate(examples.tokens, examples.vectors)

    def fit(self, stopped: threading.Event) -> None:
        """Learn; validate now and then."""
        train = self.config.train
        optimizers = optim.build(self.module, train)
        loss = self.accelerator.prepare_model(Distance(self.module))
        self.restore(optimizers)

        def compute(batch: Batch, step: int) -> float:
            def part(rows: Tensor) -> Tensor:
                value: Tensor = loss(batch.rows(rows).to(self.accelerator.device), len(batch.tokens))
                return value

            return self.backward(loss, part, len(batch.tokens), train.accumulate)

        for event in self.steps(self.kind, train.steps, train.batch_texts, optimizers, compute, stopped):
            self.average()
            if self.progress.step % train.validate_every == 0 or self.progress.step == train.steps:
                self._validate(event)

    def finish(self) -> Path:
        """Write the inverter with what was trained: the averaged weights."""
        if self.accelerator.is_main_process:
            info = {**self.inverter.info, self.kind: self.account(self.last_metrics())}
            if self.kind == "echo":
                whole = replace(self.inverter, echo=cast(Echo, self.averaged), info=info)
            else:  # a writer and an echo knew the surrogate before
                info = {key: value for key, value in info.items() if key not in ("writer", "echo")}
                surrogate = cast(Surrogate, self.averaged)
                whole = replace(self.inverter, surrogate=surrogate, writer=None, echo=None, info=info)
            artifact.save(self.out, whole)
        self.end()
        return self.out

    @torch.inference_mode()
    def _validate(self, event: Event) -> None:
        """Mean cosine on validation texts."""
        if not self.accelerator.is_main_process:
            return
        parts = torch.split(torch.arange(len(self.validation.tokens)), 128)
        found = [cosines(self.averaged, self.validation.rows(rows).to(self.accelerator.device)) for rows in parts]
        metrics = {f"{self.kind}_cosine": float(torch.cat(found).mean())}
        self.tell(replace(event, metrics={**metrics, "texts": self.progress.texts, "seconds": self.progress.seconds}))
