"""The public face: an inverter turns vectors back into text.

>>> inverter = Inverter.from_pretrained("folder or hub id")
>>> for inversion in inverter.invert(vectors): ...
>>> for step in inverter.stream(vector): ...
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np

from unembed.data.text import decode as text_of
from unembed.decode import DecodeConfig, Inversion, Step, engine
from unembed.decode import device as devices
from unembed.decode.bulk import Progress, invert_rows
from unembed.decode.config import DecodeSettings
from unembed.decode.feedback import FeedbackConfig
from unembed.decode.pool import Pool
from unembed.decode.vectors import CHUNK, Source, VectorReader
from unembed.errors import CheckpointError, ConfigError, DataError, EncoderError
from unembed.model import artifact as disk
from unembed.model.artifact import Artifact, EncoderInfo, check_encoder

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from unembed.data.encoders import Encoder
    from unembed.decode.feedback.runner import Found
    from unembed.decode.plan import Candidate
    from unembed.decode.strategies.base import State

log = logging.getLogger(__name__)


class Inverter:
    """A trained inverter, ready to decode."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._word_vectors: torch.Tensor | None = None

    @classmethod
    def from_pretrained(cls, location: str | Path, *, device: str | torch.device = "cpu") -> Inverter:
        """Load from a folder or a hub id `owner/name`, onto a device: `cpu`, `cuda`, `mps` or `auto`."""
        found = devices.find(device)  # before the weights are read
        return cls(disk.load(location)).to(found)

    def to(self, device: str | torch.device) -> Inverter:
        """Move it to a device (`cpu`, `cuda`, `mps` or `auto`, the fastest there is); returns itself."""
        found = devices.find(device)
        model = self.artifact
        for part in (model.net, model.surrogate, model.writer, model.echo):
            if part is not None:
                part.to(found)
        self._word_vectors = None
        return self

    @property
    def device(self) -> torch.device:
        """Where the network runs."""
        return self.artifact.net.bias.device

    def save_pretrained(self, folder: str | Path, *, dtype: Literal["bf16", "int8", "fp32"] = "bf16") -> Path:
        """Write the inverter folder: weights, config, tokenizer, model card."""
        return disk.save(Path(folder), self.artifact, dtype)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = True,
        token: str | None = None,
        commit_message: str = "Upload inverter",
        dtype: Literal["bf16", "int8", "fp32"] = "bf16",
    ) -> str:
        """Upload the inverter folder to the Hugging Face hub; returns the address of the commit."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        api = HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, dtype=dtype)
            try:
                api.create_repo(repo_id, private=private, exist_ok=True)
                commit = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=commit_message)
            except (HfHubHTTPError, HFValidationError, OSError) as error:
                reason = str(error).splitlines()[0]
                raise CheckpointError(f"the hub refused {repo_id} ({reason}): check name and `hf auth login`") from None
        return str(commit.commit_url)

    @property
    def dim(self) -> int:
        """Dimension of the vectors that this inverter reads."""
        return self.artifact.encoder.dim

    @property
    def encoder(self) -> EncoderInfo:
        """The encoder whose vectors these are."""
        return self.artifact.encoder

    @property
    def max_tokens(self) -> int:
        """Length of the longest text it writes."""
        return self.artifact.config.model.max_tokens

    def invert(
        self,
        vectors: Source,
        config: DecodeConfig | None = None,
        *,
        encoder: Encoder | None = None,
        budget: int | None = None,
        feedback: FeedbackConfig | None = None,
        batch_size: int = engine.BATCH,
        **settings: Unpack[DecodeSettings],
    ) -> list[Inversion]:
        """Recover the text of every vector, in order.

        Args:
            vectors: an array (n, d) or one vector (d,), a list, a tensor, or the path of a file of vectors.
            config: all settings of decoding.
            encoder: the encoder that made the vectors; guesses are then embedded, compared and corrected.
            budget: how many texts, backward passes included, the encoder may be asked about for each vector.
            feedback: all settings of that search.
            batch_size: texts in one forward pass; without an encoder of no influence on the result.
            settings: replace single fields of `config`, such as `strategy="sequential", steps=32`.

        When the encoder fails on the way, nothing that was found is lost: the vectors at work get their best text so
        far, those that had not begun an answer without feedback, and each says so in its `note`. If it fails before it
        answered anything, its error is raised.
        """
        config = replace(config or DecodeConfig(), **settings)
        if encoder is not None:
            return self._invert_all_with(encoder, vectors, config, feedback, budget, batch_size)
        if budget is not None or feedback is not None:
            raise ConfigError("a budget is for encoder feedback: give an encoder too, encoder=unembed.encoder(...)")
        reader = self.reader(vectors, chunk=engine.GROUP)
        found: list[Inversion] = []
        for chunk in reader:
            found.extend(self._invert(chunk.vectors, config, batch_size))
        for note in reader.notes:
            log.warning(note)
        return found

    def decoding(self, config: DecodeConfig | None = None) -> DecodeConfig:
        """These settings, or the default ones, with the strategy that this inverter decodes with."""
        return (config or DecodeConfig()).resolved(self.artifact.writer is not None)

    def search(
        self,
        vectors: Source,
        encoder: Encoder,
        config: DecodeConfig | None = None,
        *,
        feedback: FeedbackConfig | None = None,
        batch_size: int = engine.BATCH,
        progress: Callable[[int, int], None] | None = None,
        improved: Callable[[int, Inversion], None] | None = None,
    ) -> Iterator[tuple[int, Inversion]]:
        """Invert with encoder feedback and hand out (row, inversion) as soon as each is done, in no fixed order.

        When the encoder fails or Ctrl-C is pressed, the vectors at work are handed out as they stand, with a `note`,
        and then the error is raised. `progress` is told what was spent of all budgets, and their sum; `improved` every
        better answer on the way, the first and the last one included.
        """
        from unembed.decode.feedback.runner import Runner

        config = config or DecodeConfig()
        feedback = feedback or FeedbackConfig(seed=config.seed)
        check_encoder(self.artifact, dim=encoder.dim, spec=encoder.name, fingerprint=encoder.fingerprint)
        reader = self.reader(vectors, chunk=max(feedback.batch, engine.GROUP // feedback.batch * feedback.batch))
        model = self.artifact
        runner = Runner(
            model.net, model.tokenizer, encoder, config, feedback, model.surrogate, self._words(),
            model.writer, model.echo,
        )  # fmt: skip
        first = 0

        def result(found: Found) -> tuple[int, Inversion]:
            return first + found.row, _checked_inversion(found, config.n_best, self.artifact.tokenizer)

        tell = None if improved is None else lambda found: improved(*result(found))
        for chunk in reader:
            first = chunk.first
            yield from map(result, runner.run(chunk.vectors, batch_size, progress, tell))
        for note in reader.notes:
            log.warning(note)

    def stream(
        self, vector: Source, config: DecodeConfig | None = None, **settings: Unpack[DecodeSettings]
    ) -> Iterator[Step]:
        """Yield every denoising step of one vector at its expected length; the last step holds the `Inversion`.

        That is what `invert` gives for the same settings with `lengths=1` and `n_best=1`.
        """
        config = replace(config or DecodeConfig(), **settings)
        row = self._one(vector)
        model = self.artifact
        states = engine.stream(model.net, row, config, self._words(), model.writer, model.echo)
        return (self._step(state, results) for state, results in states)

    def pool(self, capacity: int = 32) -> Pool:
        """Decode up to `capacity` texts that come and go, all in shared forward passes (see `decode.pool`)."""
        model = self.artifact
        return Pool(model.net, capacity, self._one, self._step, self._words(), model.writer, model.echo)

    def invert_file(
        self,
        source: Source,
        output: str | Path,
        config: DecodeConfig | None = None,
        *,
        column: str | None = None,
        with_tokens: bool = False,
        overwrite: bool = False,
        batch_size: int = engine.BATCH,
        encoder: Encoder | None = None,
        feedback: FeedbackConfig | None = None,
    ) -> Iterator[Progress]:
        """Write one JSON line for every vector; iterate over the progress to make it happen.

        Memory is bounded whatever the number of vectors. Killed at any moment and started again it goes on, and the
        file is the same as from an uninterrupted run. With an encoder that holds too: its failure is raised, and the
        batches that were finished are kept.
        """
        config = config or DecodeConfig()
        settings = {"decode": asdict(config), "inverter": self._identity(), "with_tokens": with_tokens}
        chunk = CHUNK
        if encoder is not None:
            feedback = feedback or FeedbackConfig(seed=config.seed)
            settings |= {"feedback": asdict(feedback), "encoder": encoder.fingerprint or encoder.name}
            chunk = feedback.batch
        if self.artifact.surrogate is not None:
            settings["surrogate"] = disk.weights_hash(self.artifact.surrogate)
        if self.artifact.writer is not None:
            settings["writer"] = disk.weights_hash(self.artifact.writer)
        if self.artifact.echo is not None:
            settings["echo"] = disk.weights_hash(self.artifact.echo)

        def invert(vectors: NDArray[np.float32]) -> list[Inversion]:
            if encoder is None:
                return self._invert(vectors, config, batch_size)
            found = dict(self.search(vectors, encoder, config, feedback=feedback, batch_size=batch_size))
            return [found[row] for row in range(len(vectors))]

        return invert_rows(
            self.reader(source, column=column, chunk=chunk),
            invert,
            Path(output),
            settings=settings,
            with_tokens=with_tokens,
            overwrite=overwrite,
        )

    def reader(self, source: Source, *, column: str | None = None, chunk: int = CHUNK) -> VectorReader:
        """Vectors of this inverter's encoder from any source, checked, so many at a time."""
        return VectorReader(source, dim=self.dim, normalized=self.encoder.normalized, column=column, chunk=chunk)

    def _invert(self, vectors: NDArray[np.float32], config: DecodeConfig, batch_size: int) -> list[Inversion]:
        model = self.artifact
        config = self.decoding(config)
        ranked = list(self._candidates(vectors, config, batch_size))
        texts = iter(text_of(model.tokenizer, [c.tokens for candidates in ranked for c in candidates]))
        return [_with_alternatives([_inversion(next(texts), one) for one in candidates]) for candidates in ranked]

    def _candidates(
        self, vectors: NDArray[np.float32], config: DecodeConfig, batch_size: int
    ) -> Iterator[list[Candidate]]:
        model = self.artifact
        if config.imagine:
            if model.echo is None:
                raise ConfigError("imagine asks an echo, and this inverter has none: unembed train --echo-of it")
            from unembed.decode.imagine import imagine

            return imagine(model, vectors, config, self._words(), batch_size)
        return engine.decode(
            model.net, vectors, config, batch_size=batch_size, words=self._words(), writer=model.writer, echo=model.echo
        )

    def _invert_all_with(
        self,
        encoder: Encoder,
        vectors: Source,
        config: DecodeConfig,
        feedback: FeedbackConfig | None,
        budget: int | None,
        batch_size: int,
    ) -> list[Inversion]:
        feedback = feedback or FeedbackConfig(seed=config.seed)
        if budget is not None:
            feedback = replace(feedback, budget=budget)
        reader = self.reader(vectors)
        rows = np.concatenate([np.empty((0, self.dim), np.float32), *(chunk.vectors for chunk in reader)])
        for note in reader.notes:
            log.warning(note)
        found: dict[int, Inversion] = {}
        try:
            found.update(self.search(rows, encoder, config, feedback=feedback, batch_size=batch_size))
        except EncoderError as error:
            if all(one.cosine is None for one in found.values()):
                raise
            log.warning("encoder feedback ended early: %s", error)
            missing = [row for row in range(len(rows)) if row not in found]
            said = f"without encoder feedback: {error}"
            plain = self._invert(rows[missing], config, batch_size)
            found |= {row: replace(one, note=said) for row, one in zip(missing, plain, strict=True)}
        return [found[row] for row in range(len(rows))]

    def _words(self) -> torch.Tensor | None:
        """What each word adds to the vector of a text, for steering; None without a surrogate."""
        if self._word_vectors is None and self.artifact.surrogate is not None:
            self._word_vectors = self.artifact.surrogate.word_vectors()
        return self._word_vectors

    def _one(self, vector: Source) -> NDArray[np.float32]:
        """One checked vector, (d,)."""
        reader = self.reader(vector)
        rows: list[NDArray[np.float32]] = [row for chunk in reader for row in chunk.vectors]
        if len(rows) != 1:
            raise DataError(f"one vector is wanted, got {len(rows)}: use invert for many")
        for note in reader.notes:
            log.warning(note)
        return rows[0]

    def _step(self, state: State, results: list[Candidate] | None) -> Step:
        mask_id, tokenizer = self.artifact.net.config.mask_id, self.artifact.tokenizer
        ids = state.tokens[0].tolist()
        text = text_of(tokenizer, [ids])[0]
        mask = tokenizer.id_to_token(mask_id)  # None where the tokenizer has no mask token of its own
        return Step(
            step=state.step,
            tokens=tuple(tokenizer.id_to_token(i) or "" for i in ids),
            confidence=tuple(state.confidence[0].tolist()),
            masked=tuple(place for place, i in enumerate(ids) if i == mask_id),
            passes=int(state.passes[0]),
            text=text.replace(mask, "_") if mask else text,
            inversion=None if results is None else self._inversion_of(results),
        )

    def _inversion_of(self, candidates: list[Candidate]) -> Inversion:
        texts = text_of(self.artifact.tokenizer, [one.tokens for one in candidates])
        return _with_alternatives([_inversion(text, one) for text, one in zip(texts, candidates, strict=True)])

    def _identity(self) -> str:
        """A hash of the weights: results of another inverter must not be mixed with these."""
        return disk.weights_hash(self.artifact.net)


def _checked_inversion(found: Found, n_best: int, tokenizer: Tokenizer) -> Inversion:
    """The best hypothesis and its runners-up; the answer without feedback where the encoder was never heard."""
    if not found.best:
        plain = _inversion(text_of(tokenizer, [found.start.tokens])[0], found.start)
        return replace(plain, queries=found.queries, gradients=found.gradients, note=found.note)
    best, *others = [
        Inversion(
            one.text, one.tokens, one.confidence, one.cosine, found.start.steps, found.start.passes,
            cosine=one.cosine, queries=found.queries, gradients=found.gradients, note=found.note,
        )
        for one in found.best[:n_best]
    ]  # fmt: skip
    return replace(best, alternatives=tuple(others)) if others else best


def _with_alternatives(found: list[Inversion]) -> Inversion:
    best, *others = found
    return replace(best, alternatives=tuple(others)) if others else best


def _inversion(text: str, found: Candidate) -> Inversion:
    return Inversion(text, found.tokens, found.confidence, found.score, found.steps, found.passes)
