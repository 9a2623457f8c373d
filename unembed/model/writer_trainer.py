"""Training of a writer: texts and their vectors in, an inverter folder with `writer.safetensors` out.

With `train.guesses` a share of the texts is learned as the correction of a guess: the writer's own mistake about that
text (`mistakes.py`), made anew at every step and embedded, so that it knows what its vector lacks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unembed.config import Config
from unembed.data.dataset import Dataset
from unembed.data.text import decode
from unembed.errors import ConfigError
from unembed.model import artifact, batches, mistakes, objective, optim
from unembed.model.artifact import Artifact
from unembed.model.denoiser import Block
from unembed.model.loop import Event, Loop, flushed_denormals, stop_after_step
from unembed.model.objective import Batch, Candidates
from unembed.model.sight import Guess
from unembed.model.writer import Writer, WriterEntropy, targets_of
from unembed.precision import autocast, fast_bf16, halved


def train(
    config: Config,
    data: Dataset,
    inverter: Artifact,
    out: Path,
    *,
    encoder: Encodes | None = None,
    resume: bool = False,
    report: Callable[[Event], None] = lambda event: None,
) -> Path:
    """Train a writer for the inverter, on from the one it has; `config.train` is the recipe. Returns their folder.

    `encoder` is the one that made the vectors: where the recipe shows guesses, it embeds those.
    """
    artifact.check_pairs(inverter, data.encoder_info, "a writer")
    if inverter.surrogate is None:
        raise ConfigError(
            "a writer is told by a surrogate what is unsaid: train one first (unembed train --surrogate-of)"
        )
    if config.train.guesses and encoder is None:
        raise ConfigError("train.guesses shows the writer its own guesses with their vectors: that needs the encoder")
    run = Run(replace(inverter.config, train=config.train), data, inverter, encoder, out, resume, report)
    with flushed_denormals(), stop_after_step() as stopped:
        run.fit(stopped)
    return run.finish()


class Encodes(Protocol):
    """What embeds guesses: the encoder that made the vectors."""

    def encode(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """Float32 (n, dim)."""


class WritingLoss(nn.Module):
    """Cross-entropy of every next word and of the end. A module, so that DDP can wrap it."""

    def __init__(self, writer: Writer) -> None:
        super().__init__()
        self.writer = writer

    def forward(self, batch: Batch, guess: Guess | None, candidates: Candidates, words: int) -> Tensor:
        """Sum over this micro-batch, divided by the words of the whole step (so that parts add up)."""
        writer, base = self.writer, self.writer.base
        told, heard, seen = writer.listen(batch.vectors, guess)
        hidden = writer(batch.tokens, told, seen)
        targets, counts = targets_of(batch.tokens, batch.lengths, base.config.vocab_size, base.config.max_tokens)
        table, bias = base.word_table(candidates.ids)
        words_shown, added = writer.copies(told, batch.tokens, hidden) or (
            targets[:, :0], hidden.new_zeros(*hidden.shape[:2], 0, dtype=torch.float32),
        )  # fmt: skip
        # The end comes behind all words.
        places, added_to = (torch.searchsorted(candidates.ids, ids.contiguous()) for ids in (targets, words_shown))
        total: Tensor = WriterEntropy.apply(  # type: ignore[no-untyped-call]
            hidden, writer.end, writer.end_bias, heard.to(hidden.dtype), table.detach().to(hidden.dtype),
            (bias.detach() - candidates.correction).float(), places, counts, added, added_to,
            cast(Block, writer.blocks[0]).compiled,
        )  # fmt: skip
        return total / words


class Run(Loop):
    """One training run of a writer."""

    def __init__(
        self,
        config: Config,
        data: Dataset,
        inverter: Artifact,
        encoder: Encodes | None,
        out: Path,
        resume: bool,
        report: Callable[[Event], None],
    ) -> None:
        torch.manual_seed(config.train.seed)
        super().__init__(
            config, data, out,
            resume=resume, start="write",
            build=lambda: _trainable(inverter, bool(config.train.guesses), config.train.grow),
            identity=" " + artifact.weights_hash(inverter.net), report=report,
        )  # fmt: skip
        self.writer = cast(Writer, self.module)
        self.inverter, self.encoder = inverter, encoder
        self.inverter.net.to(self.accelerator.device)
        examples = data.sample("validation", config.train.validate_texts, config.train.seed)
        self.validation = batches.collate(examples.tokens, examples.vectors)
        self.guess: Guess | None = None  # of every validation text, always the same
        if config.train.guesses:
            rng = objective.generator(config.train.seed, 6)
            dice = mistakes.throw(len(examples.tokens), config.model.max_tokens, rng)
            first = _trainable(inverter, False).to(self.accelerator.device).eval()
            self.guess = self._guess(first, self.validation, dice, 1.0)

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
            words = int((batch.lengths + (batch.lengths < self.config.model.max_tokens)).sum())
            guess = None
            if train.guesses:
                dice = mistakes.throw(len(batch.tokens), self.config.model.max_tokens, rng)
                guess = self._guess(cast(Writer, self.averaged), batch, dice, train.guesses)
            mine = batch.tokens[batch.valid]
            own = mine if guess is None else torch.cat([mine, guess.tokens[guess.valid]])
            candidates = sampler.draw(own, rng).to(self.accelerator.device)

            def part(rows: Tensor) -> Tensor:
                device = self.accelerator.device
                shown = None if guess is None else guess.rows(rows).to(device)
                value: Tensor = loss(batch.rows(rows).to(device), shown, candidates, words)
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

    def _guess(self, writer: Writer, batch: Batch, dice: mistakes.Dice, share: float) -> Guess:
        """For a share of the texts what the writer makes of them, embedded; none for the others."""
        assert self.encoder is not None  # `train` looked
        device, world = self.accelerator.device, self.accelerator.num_processes
        some = (dice.kind[:, 0] < share).nonzero()[:, 0]
        mine = some[self.accelerator.process_index :: world]  # each process makes its share
        tokens = torch.zeros(len(batch.tokens), self.config.model.max_tokens, dtype=torch.long)
        lengths = torch.zeros(len(batch.tokens), dtype=torch.long)
        vectors = torch.zeros_like(batch.vectors)
        if len(mine):
            with autocast(device):
                quick = halved(writer, writer.base, writer.meanings) if fast_bf16(device) else writer
                words = mistakes.words_of(quick, batch.vectors[some].to(device))
                made = mistakes.make(quick, batch.rows(mine).to(device), dice.rows(mine), words)
            vectors[mine] = torch.from_numpy(self.encoder.encode(decode(self.data.tokenizer, made))).float()
            for row, text in zip(mine.tolist(), made, strict=True):
                tokens[row, : len(text)], lengths[row] = torch.tensor(text, dtype=torch.long), len(text)
        if world > 1:  # every row comes from one process
            tokens, lengths, vectors = (
                cast(Tensor, self.accelerator.reduce(part.to(device), "sum")).cpu()
                for part in (tokens, lengths, vectors)
            )
        return Guess(tokens, torch.arange(tokens.shape[1]) < lengths[:, None], vectors).rows(slice(None))

    @torch.inference_mode()
    def _validate(self, event: Event) -> None:
        """Cross-entropy of the next word with the full softmax."""
        if not self.accelerator.is_main_process:
            return
        writer = cast(Writer, self.averaged)
        metrics = {"entropy_next": validation_entropy(writer, self.validation)}
        if self.guess is not None:
            metrics["entropy_corrected"] = validation_entropy(writer, self.validation, self.guess)
        metrics |= {"texts": self.progress.texts, "seconds": self.progress.seconds}
        self.tell(replace(event, metrics=metrics))

    def _artifact(self, metrics: dict[str, float]) -> Artifact:
        account = self.account(metrics)
        account["data"]["blocks"] = len(cast(Writer, self.averaged).blocks)
        before = self.inverter.info.get("writer", {})
        if before:  # a further stage
            account["seconds"] += before["seconds"]
            account["data"]["texts seen"] += before["data"]["texts seen"]
        writer = cast(Writer, self.averaged)
        return replace(self.inverter, writer=writer, info={**self.inverter.info, "writer": account})


def _trainable(inverter: Artifact, sees: bool, grow: int = 0) -> Writer:
    """The inverter's writer or a new one; one that has never seen a guess begins to look as its blocks do.

    `grow`: so many blocks more.
    """
    assert inverter.surrogate is not None  # `train` looked
    before = inverter.writer
    has_seen = before is not None and before.sight is not None
    writer = Writer(inverter.net, inverter.surrogate, sees or has_seen, 0 if before is None else len(before.blocks))
    if before is not None:
        writer.load_state_dict(before.state_dict(), strict=before.sight is not None or writer.sight is None)
        if writer.sight is not None and before.sight is None:
            writer.sight.start_from(writer.blocks, writer.embed_norm)
    writer.grow(grow)
    if writer.sight is not None and not sees:
        writer.sight.requires_grad_(False)  # without guesses nothing could be learned of them
    return writer.train()


@torch.inference_mode()
def validation_entropy(writer: Writer, batch: Batch, guess: Guess | None = None, chunk: int = 32) -> float:
    """Cross-entropy per word, the end included, with the full softmax and the true words before each place."""
    config, device = writer.config, writer.position.device
    total = count = 0.0
    for start in range(0, len(batch.tokens), chunk):
        part = batch.rows(slice(start, start + chunk)).to(device)
        shown = None if guess is None else guess.rows(slice(start, start + chunk)).to(device)
        told, heard, seen = writer.listen(part.vectors, shown)
        hidden = writer(part.tokens, told, seen)
        logits = writer.logits(hidden, heard).float()
        if copied := writer.copies(told, part.tokens, hidden):
            logits.scatter_add_(2, copied[0][:, None].expand(-1, logits.shape[1], -1), copied[1])
        targets, counts = targets_of(part.tokens, part.lengths, config.vocab_size, config.max_tokens)
        total += float(F.cross_entropy(logits[counts].float(), targets[counts], reduction="sum"))
        count += int(counts.sum())
    return total / count
