"""Training: shards in, inverter folder out.

    RUN/                  the inverter: model.safetensors, config.json, tokenizer.json, README.md (at the end)
    RUN/training/         run.json, metrics.jsonl, last.safetensors (state to resume from), best/, milestones/

Two phases: the cheap path (conditioner, bag of words, length) first when the configuration asks for it, then the
denoiser. One process or many (`torchrun`): the batch, its noise and its loss are those of the whole step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from unembed.config import Config
from unembed.data.dataset import Dataset, Examples
from unembed.data.windows import special_ids
from unembed.model import align, artifact, batches, objective, optim, warmstart
from unembed.model.artifact import Artifact
from unembed.model.denoiser import Denoiser
from unembed.model.loop import Event as Event
from unembed.model.loop import Loop, flushed_denormals, stop_after_step

VALIDATION_LEVELS = (1.0, 0.5, 0.15)  # share of masked tokens


@dataclass(frozen=True, slots=True)
class Preview:
    """A short end-to-end decode of validation texts: scores, and (original, recovered) samples."""

    metrics: dict[str, float]
    samples: list[tuple[str, str]]


PreviewFunction = Callable[[Artifact, Examples], Preview]


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
    with flushed_denormals(), stop_after_step() as stopped:
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
    aligned = False
    if init_from is not None:
        same = _stage_before(init_from, data) is not None
        warmstart.from_inverter(net, init_from.net, same_encoder=same)
        aligned = not same and align.start_aligned(net, init_from, data)
    elif config.model.init == "encoder":
        warmstart.from_minilm(net)
    if init_from is None:
        warmstart.set_unigram(net, data.token_counts())
    if config.model.reader and not aligned:
        warmstart.start_reader(net, data, init_from)
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


def _stage_before(init_from: Artifact | None, data: Dataset) -> Artifact | None:
    """What a run goes on from; weights of another encoder are a start, not a stage."""
    return init_from if init_from is not None and init_from.encoder == data.encoder_info else None


def _earlier_training(stage: Artifact | None) -> tuple[int, float]:
    """Texts and seconds that went into the weights that a stage goes on from."""
    known = {} if stage is None else stage.info.get("data", {})
    return int(known.get("texts seen", 0)), float(known.get("seconds", 0.0))


class Run(Loop):
    """One training run of an inverter: its two phases, its validation, its folder."""

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
        start = "bag" if config.train.bag_steps and config.model.bag_of_words else "denoise"
        super().__init__(
            config, data, out,
            resume=resume, start=start, build=lambda: build_net(config, data, init_from), report=report,
        )  # fmt: skip
        self.net, self.ema = cast(Denoiser, self.module), cast(Denoiser, self.averaged)
        self.stage_before = _stage_before(init_from, data)
        self.before, self.preview = _earlier_training(self.stage_before), preview
        self.examples = data.sample("validation", config.train.validate_texts, config.train.seed)
        self.validation = batches.collate(self.examples.tokens, self.examples.vectors)

    # --- the two phases -------------------------------------------------------------------------------------------

    def fit_bag(self, stopped: threading.Event) -> None:
        """Pretrain conditioner, bag of words and length; the rest of the net waits."""
        train = self.config.train
        waiting = [
            p for name, p in self.net.named_parameters()
            if optim.waits_for_bag(name, train.bag_trains) and p.requires_grad
        ]  # fmt: skip
        for parameter in waiting:
            parameter.requires_grad_(False)
        optimizers = optim.build(self.net, replace(train, lr=train.bag_lr))
        loss = self.accelerator.prepare_model(objective.BagLoss(self.net))
        self.restore(optimizers)

        def compute(batch: objective.Batch, step: int) -> float:
            rng = objective.generator(train.seed, 1, step)
            dropped = torch.rand(len(batch.tokens), generator=rng) < self.config.diffusion.condition_dropout
            total = int(batch.lengths.sum())

            def part(rows: Tensor) -> Tensor:
                some = batch.rows(rows).to(self.accelerator.device)
                value: Tensor = loss(some, dropped[rows].to(some.tokens.device), len(batch.tokens), total)
                return value

            return self.backward(loss, part, len(batch.tokens), accumulate=1)

        for _ in self.steps("bag", train.bag_steps, train.bag_batch_texts, optimizers, compute, stopped):
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
        self.restore(optimizers)

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

            return self.backward(loss, part, len(batch.tokens), train.accumulate)

        for event in self.steps("denoise", train.steps, train.batch_texts, optimizers, compute, stopped):
            self.average()
            last = self.progress.step == train.steps
            if self.progress.step % train.validate_every == 0 or last:
                self._validate(event)
            if train.milestone_every and self.progress.step % train.milestone_every == 0:
                self._save_inverter(self.folder / "milestones" / f"step-{self.progress.step:07d}")
            if train.patience and self.agreed(self.progress.worse >= train.patience):
                self.save(optimizers)
                break

    # --- validation and files -------------------------------------------------------------------------------------

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
        self.tell(replace(event, metrics=metrics, samples=samples))

    def finish(self) -> Path:
        """Write the inverter: the averaged weights."""
        self._save_inverter(self.out, self.last_metrics())
        self.end()
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
        surrogate = None
        if self.stage_before is not None and self.stage_before.surrogate is not None:
            # It knows the encoder, not the denoiser, so it is kept.
            surrogate = self.stage_before.surrogate.on(self.ema)
            info["surrogate"] = self.stage_before.info.get("surrogate", {})
        return Artifact(self.ema, self.data.tokenizer, self.config, self.data.encoder_info, info, surrogate=surrogate)

    def _save_inverter(self, folder: Path, metrics: dict[str, float] | None = None) -> None:
        if self.accelerator.is_main_process:
            artifact.save(folder, self._artifact(metrics))
