"""The public face: an inverter turns vectors back into text.

>>> inverter = Inverter.from_pretrained("folder or hub id")
>>> for inversion in inverter.invert(vectors): ...
>>> for step in inverter.stream(vector): ...
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from unembed.data.text import decode as text_of
from unembed.decode import DecodeConfig, Inversion, Step, engine
from unembed.decode.bulk import Progress, invert_rows
from unembed.decode.vectors import Source, VectorReader
from unembed.errors import CheckpointError, DataError
from unembed.model import artifact as disk
from unembed.model.artifact import Artifact, EncoderInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.decode.engine import Candidate
    from unembed.decode.strategies.base import State

log = logging.getLogger(__name__)


class Inverter:
    """A trained inverter, ready to decode."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    @classmethod
    def from_pretrained(cls, location: str | Path) -> Inverter:
        """Load from a folder or a hub id `owner/name`."""
        return cls(disk.load(location))

    def save_pretrained(self, folder: str | Path, *, dtype: Literal["bf16", "fp32"] = "bf16") -> Path:
        """Write the inverter folder: weights, config, tokenizer, model card."""
        return disk.save(Path(folder), self.artifact, dtype)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = True,
        token: str | None = None,
        commit_message: str = "Upload inverter",
        dtype: Literal["bf16", "fp32"] = "bf16",
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
        strategy: str | None = None,
        steps: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        guidance: float | None = None,
        n_best: int | None = None,
        lengths: int | None = None,
        length: int | None = None,
        batch_size: int = engine.BATCH,
    ) -> list[Inversion]:
        """Recover the text of every vector, in order.

        Args:
            vectors: an array (n, d) or one vector (d,), a list, a tensor, or the path of a file of vectors.
            config: all settings; the keywords below replace single ones.
            strategy: `DecodeConfig.strategy`, and so on for the keywords that follow.
            steps: the most denoising steps.
            temperature: 0 takes the most probable token.
            top_p: draw from the most probable tokens with this share.
            seed: decides the draws.
            guidance: scale of classifier-free guidance.
            n_best: keep up to so many different texts.
            lengths: how many of the likeliest lengths to decode.
            length: decode to exactly this number of tokens.
            batch_size: texts in one forward pass; of no influence on the result.
        """
        config = _override(config, strategy, steps, temperature, top_p, seed, guidance, n_best, lengths, length)
        reader = self.reader(vectors)
        found: list[Inversion] = []
        for chunk in reader:
            found.extend(self._invert(chunk.vectors, config, batch_size))
        for note in reader.notes:
            log.warning(note)
        return found

    def stream(
        self,
        vector: Source,
        config: DecodeConfig | None = None,
        *,
        strategy: str | None = None,
        steps: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        guidance: float | None = None,
        length: int | None = None,
    ) -> Iterator[Step]:
        """Yield every denoising step of one vector at its likeliest length; the last step holds the `Inversion`.

        That is what `invert` gives for the same settings with `lengths=1` and `n_best=1`.
        """
        config = _override(config, strategy, steps, temperature, top_p, seed, guidance, None, None, length)
        reader = self.reader(vector)
        rows = [row for chunk in reader for row in chunk.vectors]
        if len(rows) != 1:
            raise DataError(f"stream takes one vector, got {len(rows)}: use invert for many")
        for note in reader.notes:
            log.warning(note)
        return (self._step(state, result) for state, result in engine.stream(self.artifact.net, rows[0], config))

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
    ) -> Iterator[Progress]:
        """Write one JSON line for every vector; iterate over the progress to make it happen.

        Memory is bounded whatever the number of vectors. Killed at any moment and started again it goes on, and the
        file is the same as from an uninterrupted run.
        """
        config = config or DecodeConfig()
        settings = {"decode": asdict(config), "inverter": self._identity(), "with_tokens": with_tokens}
        return invert_rows(
            self.reader(source, column=column),
            lambda vectors: self._invert(vectors, config, batch_size),
            Path(output),
            settings=settings,
            with_tokens=with_tokens,
            overwrite=overwrite,
        )

    def reader(self, source: Source, *, column: str | None = None) -> VectorReader:
        """Vectors of this inverter's encoder from any source, checked."""
        return VectorReader(source, dim=self.dim, normalized=self.encoder.normalized, column=column)

    def _invert(self, vectors: NDArray[np.float32], config: DecodeConfig, batch_size: int) -> list[Inversion]:
        ranked = list(engine.decode(self.artifact.net, vectors, config, batch_size=batch_size))
        texts = iter(text_of(self.artifact.tokenizer, [c.tokens for candidates in ranked for c in candidates]))
        inversions = []
        for candidates in ranked:
            best, *others = [_inversion(next(texts), candidate) for candidate in candidates]
            inversions.append(replace(best, alternatives=tuple(others)))
        return inversions

    def _step(self, state: State, result: Candidate | None) -> Step:
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
            inversion=None if result is None else _inversion(text, result),
        )

    def _identity(self) -> str:
        """A hash of the weights: results of another inverter must not be mixed with these."""
        import hashlib

        digest = hashlib.sha256()
        for name, tensor in sorted(self.artifact.net.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def _inversion(text: str, found: Candidate) -> Inversion:
    return Inversion(text, found.tokens, found.confidence, found.score, found.steps, found.passes)


def _override(
    config: DecodeConfig | None,
    strategy: str | None,
    steps: int | None,
    temperature: float | None,
    top_p: float | None,
    seed: int | None,
    guidance: float | None,
    n_best: int | None,
    lengths: int | None,
    length: int | None,
) -> DecodeConfig:
    config = config or DecodeConfig()
    return replace(
        config,
        strategy=config.strategy if strategy is None else strategy,
        steps=config.steps if steps is None else steps,
        temperature=config.temperature if temperature is None else temperature,
        top_p=config.top_p if top_p is None else top_p,
        seed=config.seed if seed is None else seed,
        guidance=config.guidance if guidance is None else guidance,
        n_best=config.n_best if n_best is None else n_best,
        lengths=config.lengths if lengths is None else lengths,
        length=config.length if length is None else length,
    )
