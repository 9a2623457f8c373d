"""Training of a writer: texts and their vectors in, an inverter folder with `writer.safetensors` out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.config import Config
from unembed.data.dataset import Dataset
from unembed.errors import ConfigError
from unembed.model import artifact, batches, objective, optim
from unembed.model.artifact import Artifact
from unembed.model.loop import Event, Loop, flushed_denormals, stop_after_step
from unembed.model.objective import Batch, Candidates
from unembed.model.writer import Writer, WriterEntropy, targets_of


def train(
    config: Config,
    data: Dataset,
    inverter: Artifact,
    out: Path,
    *,
    resume: bool = False,
    report: Callable[[Event], None] = lambda event: None,
) -> Path:
    """Train a writer for the inverter, on from the one it has; `config.train` is the recipe. Returns their folder."""
    artifact.check_pairs(inverter, data.encoder_info, "a writer")
    if inverter.surrogate is None:
        raise ConfigError(
            "a writer is told by a surrogate what is unsaid: train one first (unembed train --surrogate-of)"
        )
    run = Run(replace(inverter.config, train=config.train), data, inverter, out, resume, report)
    with flushed_denormals(), stop_after_step() as stopped:
        run.fit(stopped)
    return run.finish()


class WritingLoss(nn.Module):
    """Cross-entropy of every next word and of the end. A module, so that DDP can wrap it."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self.writer = writer

    def forward(self, batch: Batch, candidates: Candidates, words: int) -> Tensor:
        """Sum over this micro-batch, divided by the words of the whole step (so that parts add up)."""
        writer, base = self.writer, self.writer.base
        c, heard = writer.hear(batch.vectors)
        hidden = writer(batch.tokens, batch.vectors, c)
        targets, counts = targets_of(batch.tokens, batch.lengths, base.config.vocab_size, base.config.max_tokens)
        table, bias = base.word_table(candidates.ids)
        places = torch.searchsorted(candidates.ids, targets.contiguous())  # the end comes behind all words
        total: Tensor = WriterEntropy.apply(  # type: ignore[no-untyped-call]
            hidden, writer.end, writer.end_bias, heard.to(hidden.dtype), table.detach().to(hidden.dtype),
            (bias.detach() - candidates.correction).float(), places, counts,
        )  # fmt: skip
        return total / words


class Run(Loop):
    """One training run of a writer."""

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
            resume=resume, start="write", build=lambda: _trainable(inverter), report=report,
            identity=" " + artifact.weights_hash(inverter.net),
        )  # fmt: skip
        self.writer = cast(Writer, self.module)
        self.inverter = inverter
        self.inverter.net.to(self.accelerator.device)
        examples = data.sample("validation", config.train.validate_texts, config.train.seed)
        self.validation = batches.collate(examples.tokens, examples.vectors)

    def fit(self, stopped: threading.Event) -> None:
        """Learn; validate now and then."""
        train = self.config.train
        optimizers = optim.build(self.writer, train)
        loss = self.accelerator.prepare_model(WritingLoss(self.writer))
        sampler = objective.CandidateSampler(self.data.token_counts(), train.sampled_softmax or 10**9)
        self.restore(optimizers)
        if not self.progress.step:
            self._validate(Event("write", 0, train.steps, 0.0, 0.0, 0.0, 0.0))

        def compute(batch: Batch, step: int) -> float:
            rng = objective.generator(train.seed, 5, step)
            candidates = sampler.draw(batch.tokens[batch.valid], rng).to(self.accelerator.device)
            words = int((batch.lengths + (batch.lengths < self.config.model.max_tokens)).sum())

            def part(rows: Tensor) -> Tensor:
                value: Tensor = loss(batch.rows(rows).to(self.accelerator.device), candidates, words)
                return value

            return self.backward(loss, part, len(batch.tokens), train.accumulate)

        for event in self.steps("write", train.steps, train.batch_texts, optimizers, compute, stopped):
            self.average()
            if self.progress.step % train.validate_every == 0 or self.progress.step == train.steps:
                self._validate(event)

    def finish(self) -> Path:
        """Write the inverter with its writer: the averaged weights."""
        if self.accelerator.is_main_process:
            artifact.save(self.out, self._artifact(self.last_metrics()))
        self.end()
        return self.out

    @torch.inference_mode()
    def _validate(self, event: Event) -> None:
        """Cross-entropy of the next word with the full softmax."""
        if not self.accelerator.is_main_process:
            return
        metrics = {"entropy_next": validation_entropy(cast(Writer, self.averaged), self.validation)}
        metrics |= {"texts": self.progress.texts, "seconds": self.progress.seconds}
        self.tell(replace(event, metrics=metrics))

    def _artifact(self, metrics: dict[str, float]) -> Artifact:
        account = self.account(metrics)
        before = self.inverter.info.get("writer", {})
        if before:  # a further stage
            account["seconds"] += before["seconds"]
            account["data"]["texts seen"] += before["data"]["texts seen"]
        writer = cast(Writer, self.averaged)
        return replace(self.inverter, writer=writer, info={**self.inverter.info, "writer": account})


def _trainable(inverter: Artifact) -> Writer:
    assert inverter.surrogate is not None  # `train` looked
    writer = Writer(inverter.net, inverter.surrogate)
    if inverter.writer is not None:
        writer.load_state_dict(inverter.writer.state_dict())
    return writer.train()


@torch.inference_mode()
def validation_entropy(writer: Writer, batch: Batch, chunk: int = 32) -> float:
    """Cross-entropy per word, the end included, with the full softmax and the true words before each place."""
    config, device = writer.config, writer.position.device
    total = count = 0.0
    for start in range(0, len(batch.tokens), chunk):
        part = batch.rows(slice(start, start + chunk)).to(device)
        c, heard = writer.hear(part.vectors)
        logits = writer.logits(writer(part.tokens, part.vectors, c), heard)
        targets, counts = targets_of(part.tokens, part.lengths, config.vocab_size, config.max_tokens)
        total += float(F.cross_entropy(logits[counts].float(), targets[counts], reduction="sum"))
        count += int(counts.sum())
    return total / count
