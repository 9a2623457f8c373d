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
from typing import TYPE_CHECKING, Literal, Unpack

import numpy as np

from unembed.data.text import decode as text_of
from unembed.decode import DecodeConfig, Inversion, Step, engine
from unembed.decode import device as devices
from unembed.decode.bulk import Progress, invert_rows
from unembed.decode.config import DecodeSettings
from unembed.decode.pool import Pool
from unembed.decode.vectors import CHUNK, Source, VectorReader
from unembed.errors import CheckpointError, DataError
from unembed.model import artifact as disk
from unembed.model.artifact import Artifact, EncoderInfo

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from unembed.decode.plan import Candidate
    from unembed.decode.strategies.base import State

log = logging.getLogger(__name__)


class Inverter:
    """A trained inverter, ready to decode."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact

    @classmethod
    def from_pretrained(cls, location: str | Path, *, device: str | torch.device = "cpu") -> Inverter:
        """Load from a folder or a hub id `owner/name`, onto a device: `cpu`, `cuda`, `mps` or `auto`."""
        found = devices.find(device)  # before the weights are read
        return cls(disk.load(location)).to(found)

    def to(self, device: str | torch.device) -> Inverter:
        """Move it to a device (`cpu`, `cuda`, `mps` or `auto`, the fastest there is); returns itself."""
        self.artifact.net.to(devices.find(device))
        return self

    @property
    def device(self) -> torch.device:
        """Where the network runs."""
        return self.artifact.net.bias.device

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
        batch_size: int = engine.BATCH,
        **settings: Unpack[DecodeSettings],
    ) -> list[Inversion]:
        """Recover the text of every vector, in order.

        Args:
            vectors: an array (n, d) or one vector (d,), a list, a tensor, or the path of a file of vectors.
            config: all settings of decoding.
            batch_size: texts in one forward pass; of no influence on the result.
            settings: replace single fields of `config`, such as `strategy="sequential", steps=32`.
        """
        config = replace(config or DecodeConfig(), **settings)
        reader = self.reader(vectors, chunk=engine.GROUP)
        found: list[Inversion] = []
        for chunk in reader:
            found.extend(self._invert(chunk.vectors, config, batch_size))
        for note in reader.notes:
            log.warning(note)
        return found

    def stream(
        self, vector: Source, config: DecodeConfig | None = None, **settings: Unpack[DecodeSettings]
    ) -> Iterator[Step]:
        """Yield every denoising step of one vector at its likeliest length; the last step holds the `Inversion`.

        That is what `invert` gives for the same settings with `lengths=1` and `n_best=1`.
        """
        config = replace(config or DecodeConfig(), **settings)
        row = self._one(vector)
        return (self._step(state, result) for state, result in engine.stream(self.artifact.net, row, config))

    def pool(self, capacity: int = 32) -> Pool:
        """Decode up to `capacity` texts that come and go, all in shared forward passes (see `decode.pool`)."""
        return Pool(self.artifact.net, capacity, self._one, self._step)

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

    def reader(self, source: Source, *, column: str | None = None, chunk: int = CHUNK) -> VectorReader:
        """Vectors of this inverter's encoder from any source, checked, so many at a time."""
        return VectorReader(source, dim=self.dim, normalized=self.encoder.normalized, column=column, chunk=chunk)

    def _invert(self, vectors: NDArray[np.float32], config: DecodeConfig, batch_size: int) -> list[Inversion]:
        ranked = list(engine.decode(self.artifact.net, vectors, config, batch_size=batch_size))
        texts = iter(text_of(self.artifact.tokenizer, [c.tokens for candidates in ranked for c in candidates]))
        inversions = []
        for candidates in ranked:
            best, *others = [_inversion(next(texts), candidate) for candidate in candidates]
            inversions.append(replace(best, alternatives=tuple(others)) if others else best)
        return inversions

    def _one(self, vector: Source) -> NDArray[np.float32]:
        """One checked vector, (d,)."""
        reader = self.reader(vector)
        rows: list[NDArray[np.float32]] = [row for chunk in reader for row in chunk.vectors]
        if len(rows) != 1:
            raise DataError(f"one vector is wanted, got {len(rows)}: use invert for many")
        for note in reader.notes:
            log.warning(note)
        return rows[0]

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
