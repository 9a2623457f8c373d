"""A dataset that is encoded while it is trained on: tokens from disk, vectors made on the spot.

Encoding costs about a fifth of a training step, so no shards of vectors are needed, and nothing but the checkpoint must
be carried from machine to machine. From the second epoch on texts are cut anew, so that no two epochs are the same:
half of the texts become a random part of themselves, embedded as that part.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unembed.data import shards as disk
from unembed.data.dataset import Dataset
from unembed.data.text import decode
from unembed.data.windows import split_of, text_hash

if TYPE_CHECKING:
    from unembed.data.encoders import Encoder

Tokens = list[npt.NDArray[Any]]
SHORTEST = 3
"""A part of a text has at least so many tokens."""
SHARE_CUT = 0.5
"""Share of the texts that are cut anew in every epoch but the first."""


class OnlineDataset(Dataset):
    """The tokens of a dataset folder with vectors that are made when they are asked for."""

    encodes = True

    def __init__(self, folder: str | Path, encoder: Encoder) -> None:
        """Open a folder whose tokens are there (`unembed encode --stage tokens`); vectors in it are not looked at."""
        self._open_tokens(Path(folder))
        self._encoder = encoder
        self.encoder_info = disk.EncoderInfo(encoder.name, encoder.dim, encoder.normalized, encoder.fingerprint)
        self.dim = encoder.dim

    @property
    def fingerprint(self) -> str:
        """Hash of the tokens' manifest and of the encoder: it changes when the data do."""
        digest = hashlib.sha256((disk.tokens_folder(self.folder) / disk.MANIFEST).read_bytes())
        digest.update(repr(self.encoder_info).encode())
        return digest.hexdigest()

    def training_rows(self, shards: list[int]) -> OnlineRows:  # type: ignore[override]
        """The training split of these shards; nothing is encoded yet."""
        return OnlineRows(self, [row for index in shards for row in self._token_rows(index, "train")[0]])

    def encode(self, tokens: Tokens) -> npt.NDArray[np.float16]:
        """Vectors of the texts that these tokens decode to, (n, dim)."""
        texts = decode(self.tokenizer, [row.tolist() for row in tokens])
        return _encode_together(self._encoder, texts)

    def cut(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Some texts as a random part of themselves, where that part is a text of the training split of its own."""
        chosen = (rng.random(len(tokens)) < SHARE_CUT).tolist()
        bounds = [sorted(rng.integers(0, len(row) + 1, 2).tolist()) for row in tokens]
        parts = [
            row[a:b] if cut and b - a >= SHORTEST else row
            for row, cut, (a, b) in zip(tokens, chosen, bounds, strict=True)
        ]
        texts = decode(self.tokenizer, [part.tolist() for part in parts])
        again = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [
            part if check.ids == part.tolist() and split_of(text_hash(text)) == "train" else row
            for row, part, text, check in zip(tokens, parts, texts, again, strict=True)
        ]

    def _vectors_of(self, index: int, rows: npt.NDArray[np.intp], tokens: Tokens) -> npt.NDArray[np.float16]:
        return self.encode(tokens)


def _encode_together(encoder: Encoder, texts: list[str]) -> npt.NDArray[np.float16]:
    """Vectors as shards keep them. Processes that train together ask for the same texts, so each encodes its share."""
    import torch
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized() and "gloo" in distributed.get_backend()):
        return encoder.encode(texts).astype(np.float16)
    world, rank = distributed.get_world_size(), distributed.get_rank()
    by_length = np.argsort([len(text) for text in texts], kind="stable")  # so that all have as much to do
    mine = by_length[rank::world]
    vectors = np.zeros((len(texts), encoder.dim), np.float32)
    if len(mine):
        vectors[mine] = encoder.encode([texts[i] for i in mine])
    distributed.all_reduce(torch.from_numpy(vectors))  # in place: every row comes from one process
    return vectors.astype(np.float16)


@dataclass(frozen=True, slots=True)
class OnlineRows:
    """Training rows without vectors."""

    data: OnlineDataset
    tokens: Tokens

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, rows: npt.NDArray[np.intp], key: tuple[int, ...]) -> tuple[Tokens, npt.NDArray[np.float16]]:
        """Tokens of these rows, cut anew after the first epoch, and their vectors."""
        tokens = [self.tokens[i] for i in rows]
        _, epoch, *_ = key
        if epoch:
            tokens = self.data.cut(tokens, np.random.default_rng(key))
        return tokens, self.data.encode(tokens)
