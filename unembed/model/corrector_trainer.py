"""Training of a corrector: true texts in, an inverter folder with `corrector.safetensors` out.

Every batch is spoilt anew by the inverter itself (`mistakes.py`), the spoilt texts are embedded, and the corrector
learns the true text from (spoilt text, its vector, the true vector). The inverter stays as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.config import Config
from unembed.data.dataset import Dataset, Examples
from unembed.data.text import decode
from unembed.model import artifact, batches, mistakes, objective, optim
from unembed.model.artifact import Artifact
from unembed.model.corrector import Corrector, stretch
from unembed.model.loop import Event, Loop, flushed_denormals, stop_after_step
from unembed.model.objective import Batch, Candidates, Noise

ALL_MASKED = 0.5
"""Share of the texts that are learned from nothing but masks and the guess: where correcting begins."""


class Encodes(Protocol):
    """What embeds the spoilt texts: the encoder that made the vectors."""

    def encode(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """Float32 (n, dim)."""


@dataclass(frozen=True, slots=True)
class Guess:
    """Spoilt texts of a batch."""

    tokens: Tensor  # (n, L) stretched to the length of the true text
    vectors: Tensor  # (n, d)


PreviewFunction = Callable[[Artifact, Examples], dict[str, float]]


def train(
    config: Config,
    data: Dataset,
    inverter: Artifact,
    encoder: Encodes,
    out: Path,
    *,
    resume: bool = False,
    preview: PreviewFunction | None = None,
    report: Callable[[Event], None] = lambda event: None,
) -> Path:
    """Train a corrector for the inverter; `config.train` is the recipe. Returns the folder of both."""
    artifact.check_pairs(inverter, data.encoder_info, "a corrector")
    run = Run(replace(inverter.config, train=config.train), data, inverter, encoder, out, resume, preview, report)
    with flushed_denormals(), stop_after_step() as stopped:
        run.fit(stopped)
    return run.finish()


class CorrectionLoss(nn.Module):
    """Cross-entropy of the masked tokens, plus the length loss. A module, so that DDP can wrap it."""

    def __init__(self, corrector: Corrector) -> None:
        super().__init__()
        self.corrector = corrector

    def forward(
        self, batch: Batch, noise: Noise, guess: Guess, candidates: Candidates | None, texts: int, masks: int
    ) -> Tensor:
        """Sum over this micro-batch, divided by the texts and masks of the whole step (so that parts add up)."""
        hidden, c = hidden_of(self.corrector, batch, noise, guess)
        net = self.corrector.net
        entropy = objective.cross_entropy(net, hidden, batch.tokens[noise.masked], candidates).sum() / masks
        length = F.cross_entropy(net.length_logits(c).float(), batch.lengths, reduction="sum") / texts
        return entropy + objective.LENGTH_WEIGHT * length


def hidden_of(corrector: Corrector, batch: Batch, noise: Noise, guess: Guess) -> tuple[Tensor, Tensor]:
    """Hidden states of the masked tokens (m, width), and the conditions (n, width)."""
    c = corrector.condition(batch.vectors, guess.vectors)
    visible = batch.tokens.masked_fill(noise.masked, corrector.net.config.mask_id)
    valid = None if bool(batch.valid.all()) else batch.valid
    return corrector(visible, noise.share, c, guess.tokens, valid)[noise.masked], c


class Run(Loop):
    """One training run of a corrector."""

    def __init__(
        self,
        config: Config,
        data: Dataset,
        inverter: Artifact,
        encoder: Encodes,
        out: Path,
        resume: bool,
        preview: PreviewFunction | None,
        report: Callable[[Event], None],
    ) -> None:
        torch.manual_seed(config.train.seed)
        super().__init__(
            config, data, out,
            resume=resume, start="correct", build=lambda: _trainable(inverter), report=report,
            identity=" " + artifact.weights_hash(inverter.net),
        )  # fmt: skip
        self.corrector = cast(Corrector, self.module)
        self.inverter, self.encoder, self.preview = inverter, encoder, preview
        self.inverter.net.to(self.accelerator.device)
        self.examples = data.sample("validation", config.train.validate_texts, config.train.seed)
        self.validation = batches.collate(self.examples.tokens, self.examples.vectors)
        rng = objective.generator(config.train.seed, 4)
        longest = inverter.net.config.max_tokens
        self.guess = self._guess(self.validation, mistakes.throw(self.validation, longest, rng))

    def fit(self, stopped: threading.Event) -> None:
        """Spoil, embed, learn."""
        train = self.config.train
        optimizers = optim.build(self.corrector, train)
        loss = self.accelerator.prepare_model(CorrectionLoss(self.corrector))
        sampler = objective.CandidateSampler(self.data.token_counts(), train.sampled_softmax)
        self.restore(optimizers)
        if not self.progress.step:
            self._validate(Event("correct", 0, train.steps, 0.0, 0.0, 0.0, 0.0))

        def compute(batch: Batch, step: int) -> float:
            rng = objective.generator(train.seed, 3, step)
            noise = _noise(batch, rng)
            dice = mistakes.throw(batch, self.config.model.max_tokens, rng)
            candidates = None
            if train.sampled_softmax:
                candidates = sampler.draw(batch.tokens[noise.masked], rng).to(self.accelerator.device)
            masks, device = int(noise.masked.sum()), self.accelerator.device

            def part(rows: Tensor) -> Tensor:
                some = batch.rows(rows)
                guess = self._guess(some, dice.rows(rows))
                drawn = noise.rows(rows, some.tokens.shape[1]).to(device)
                value: Tensor = loss(some.to(device), drawn, guess, candidates, len(batch.tokens), masks)
                return value

            return self.backward(loss, part, len(batch.tokens), train.accumulate)

        for event in self.steps("correct", train.steps, train.batch_texts, optimizers, compute, stopped):
            self.average()
            if self.progress.step % train.validate_every == 0 or self.progress.step == train.steps:
                self._validate(event)

    def finish(self) -> Path:
        """Write the inverter with its corrector: the averaged weights."""
        if self.accelerator.is_main_process:
            artifact.save(self.out, self._artifact(self.last_metrics()))
        self.end()
        return self.out

    def _guess(self, batch: Batch, dice: mistakes.Dice) -> Guess:
        """Spoil the texts and embed what came out."""
        rows: list[list[int]] = []
        for some in torch.split(torch.arange(len(batch.tokens)), 128):
            part = batch.rows(some).to(self.accelerator.device)
            rows += mistakes.make(self.inverter.net, part, dice.rows(some))
        vectors = torch.from_numpy(self.encoder.encode(decode(self.data.tokenizer, rows)))
        tokens = torch.zeros_like(batch.tokens)
        for k, (row, length) in enumerate(zip(rows, batch.lengths.tolist(), strict=True)):
            tokens[k, :length] = torch.tensor(stretch(row, length))
        device = self.accelerator.device
        return Guess(tokens.to(device), vectors.to(device, torch.float32))

    @torch.inference_mode()
    def _validate(self, event: Event) -> None:
        """Cross-entropy from nothing but masks on spoilt validation texts, and what one correction brings."""
        if not self.accelerator.is_main_process:
            return
        averaged = cast(Corrector, self.averaged)
        total = count = 0.0
        for rows in torch.split(torch.arange(len(self.validation.tokens)), 64):
            batch = self.validation.rows(rows).to(self.accelerator.device)
            guess = Guess(self.guess.tokens[rows, : batch.tokens.shape[1]], self.guess.vectors[rows])
            ones = torch.ones(len(rows), device=self.accelerator.device)
            hidden, _ = hidden_of(averaged, batch, Noise(ones, ones, batch.valid, ones), guess)
            total += float(objective.cross_entropy(averaged.net, hidden, batch.tokens[batch.valid], None).sum())
            count += len(hidden)
        metrics = {"entropy_1": total / count}
        if self.preview is not None and self.config.train.preview_texts:
            metrics |= self.preview(self._artifact({}), self.examples.head(self.config.train.preview_texts))
        metrics |= {"texts": self.progress.texts, "seconds": self.progress.seconds}
        self.tell(replace(event, metrics=metrics))

    def _artifact(self, metrics: dict[str, float]) -> Artifact:
        corrector = cast(Corrector, self.averaged)
        return replace(
            self.inverter, corrector=corrector, info={**self.inverter.info, "corrector": self.account(metrics)}
        )


def _trainable(inverter: Artifact) -> Corrector:
    corrector = Corrector(inverter.net).requires_grad_(False)
    for parameter in corrector.own.values():
        parameter.requires_grad_(True)
    return corrector.train()


def _noise(batch: Batch, rng: torch.Generator) -> Noise:
    """Half of the texts wholly masked, the others to a share drawn evenly; every masked token counts the same."""
    n = len(batch.tokens)
    share = torch.rand(n, generator=rng).clamp(min=0.1)
    share[torch.rand(n, generator=rng) < ALL_MASKED] = 1.0
    order = torch.rand(batch.tokens.shape, generator=rng).masked_fill(~batch.valid, 2.0).argsort(1).argsort(1)
    count = torch.ceil(share * batch.lengths)
    masked = (order < count[:, None]) & batch.valid
    return Noise(count / batch.lengths, torch.ones(n), masked, torch.zeros(n, dtype=torch.bool))
