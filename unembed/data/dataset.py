"""The reading side of a dataset folder: (tokens, vector, source) by shard and split, and fixed samples."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from unembed.data import shards as disk
from unembed.data.text import decode
from unembed.data.windows import SPLITS, in_split
from unembed.errors import DataError

Rows = tuple[list[npt.NDArray[Any]], npt.NDArray[np.float16], list[str]]


@dataclass(frozen=True, slots=True)
class Examples:
    """Some rows of a dataset; `texts` are what the tokens decode to, and what the vectors are of."""

    tokens: list[npt.NDArray[Any]]
    texts: list[str]
    vectors: npt.NDArray[np.float16]
    sources: list[str]

    def head(self, n: int) -> Examples:
        """The first n of them."""
        return Examples(self.tokens[:n], self.texts[:n], self.vectors[:n], self.sources[:n])


class Dataset:
    """Tokens with the vectors of one encoder; nothing is read into memory but the shard asked for."""

    def __init__(self, folder: str | Path, encoder: str | None = None) -> None:
        """Open a dataset folder; `encoder` (spec or folder name) may be left out when there is only one."""
        self.folder = Path(folder)
        tokens = disk.load_manifest(disk.tokens_folder(self.folder), disk.TokensManifest)
        if tokens is None:
            raise DataError(f"{folder} is not a dataset, it has no {disk.TOKENS}: make one by `unembed encode`")
        if not tokens.complete:
            raise DataError(f"the tokens in {folder} are not complete: run the same `unembed encode` command again")
        self._vectors_folder = self._choose(encoder)
        vectors = disk.load_manifest(self._vectors_folder, disk.VectorsManifest)
        assert vectors is not None  # _choose looked
        self._tokens, self._vectors = tokens, vectors
        self._check()
        self.encoder_info: disk.EncoderInfo = vectors.encoder
        self.dim = vectors.encoder.dim
        self.max_tokens = tokens.max_tokens
        self.tokenizer_sha256 = tokens.tokenizer_sha256
        self.tokenizer = self._read_tokenizer()
        self.shards = len(tokens.shards)

    @property
    def fingerprint(self) -> str:
        """Hash of both manifests, and so of every shard: it changes when the data do."""
        digest = hashlib.sha256()
        for folder in (disk.tokens_folder(self.folder), self._vectors_folder):
            digest.update((folder / disk.MANIFEST).read_bytes())
        return digest.hexdigest()

    @property
    def source_counts(self) -> dict[str, int]:
        """Rows by source, over all splits."""
        return dict(self._tokens.counts.get("sources", {}))

    def count(self, split: str) -> int:
        """Number of rows in a split."""
        return sum(self._split_sizes(split))

    def shard(self, index: int, split: str) -> Rows:
        """The rows of shard `index` that are in `split`: token arrays, vectors (n, dim), source names."""
        table = self._token_table(index)
        keep = np.flatnonzero(in_split(table["hash"].to_numpy(), split))
        tokens = disk.token_rows(table["tokens"])
        sources = table["source"].to_pylist()
        vectors = self._vector_table(index)
        return [tokens[i] for i in keep], vectors[keep], [sources[i] for i in keep]

    def sample(self, split: str, n: int, seed: int) -> Examples:
        """Draw `n` different rows (all if there are fewer) uniformly; the same ones for the same seed and data."""
        sizes = self._split_sizes(split)
        if not sum(sizes):
            raise DataError(f"{self.folder} has no rows in the split {split!r}: encode more text")
        drawn = np.random.default_rng(seed).choice(sum(sizes), size=min(n, sum(sizes)), replace=False)
        starts = np.cumsum([0, *sizes])
        shard_of = np.searchsorted(starts, drawn, side="right") - 1
        tokens: list[npt.NDArray[Any]] = [np.empty(0)] * len(drawn)
        sources = [""] * len(drawn)
        vectors = np.empty((len(drawn), self.dim), dtype=np.float16)
        for index in np.unique(shard_of):
            some_tokens, some_vectors, some_sources = self.shard(int(index), split)
            for place in np.flatnonzero(shard_of == index):
                row = drawn[place] - starts[index]
                # A copy: a view would keep the whole shard in memory.
                tokens[place], sources[place] = some_tokens[row].copy(), some_sources[row]
                vectors[place] = some_vectors[row]
        texts = decode(self.tokenizer, [row.tolist() for row in tokens])
        return Examples(tokens, texts, vectors, sources)

    def token_counts(self) -> npt.NDArray[np.int64]:
        """How often each token occurs in the training split, (vocab,)."""
        counts = np.zeros(self._tokens.vocab_size, dtype=np.int64)
        for index in range(self.shards):
            table = self._token_table(index)
            rows = disk.token_rows(table["tokens"])
            keep = np.flatnonzero(in_split(table["hash"].to_numpy(), "train"))
            if len(keep):
                counts += np.bincount(np.concatenate([rows[i] for i in keep]), minlength=len(counts))
        return counts

    def verify(self) -> None:
        """Read every file and compare its sha256 with the manifest."""
        for folder, records in (
            (disk.tokens_folder(self.folder), self._tokens.shards),
            (self._vectors_folder, self._vectors.shards),
        ):
            for record in records:
                disk.read_table(folder, record, columns=[])
                if disk.file_sha256(folder / record.file) != record.sha256:
                    raise DataError(
                        f"{folder / record.file} was altered (sha256 differs from its manifest): restore or delete it"
                    )

    def _choose(self, encoder: str | None) -> Path:
        """Find the folder of the encoder's vectors."""
        found = sorted(
            path.parent.name for path in self.folder.glob(f"*/{disk.MANIFEST}") if path.parent.name != disk.TOKENS
        )
        if encoder is None:
            if len(found) == 1:
                return self.folder / found[0]
            if found:
                raise DataError(f"{self.folder} has vectors of {', '.join(found)}: name the encoder you want")
            encoder = "minilm"
        path = disk.vectors_folder(self.folder, encoder)
        if path.name not in found:
            there = f" (there are: {', '.join(found)})" if found else ""
            raise DataError(
                f"{self.folder} has no vectors of {encoder!r}{there}: "
                f"make them by `unembed encode -o {self.folder} --stage vectors --encoder {encoder}`"
            )
        return path

    def _check(self) -> None:
        """Tokens and vectors must be of one another, shard by shard."""
        tokens, vectors, where = self._tokens, self._vectors, self._vectors_folder
        again = f"run `unembed encode -o {self.folder} --stage vectors --encoder {vectors.encoder.spec}`"
        if vectors.tokenizer_sha256 != tokens.tokenizer_sha256:
            raise DataError(f"{where} belongs to tokens of another tokenizer: delete it and {again}")
        have = {record.file: record for record in vectors.shards}
        missing = [record.file for record in tokens.shards if record.file not in have]
        if missing:
            raise DataError(f"{where} lacks {len(missing)} of {len(tokens.shards)} shards, first {missing[0]}: {again}")
        for record in tokens.shards:
            if have[record.file].rows != record.rows:
                raise DataError(
                    f"{where / record.file} has {have[record.file].rows} vectors for {record.rows} texts: "
                    f"delete {where} and {again}"
                )
            for folder in (disk.tokens_folder(self.folder), where):
                if not (folder / record.file).exists():
                    raise DataError(f"{folder / record.file} is missing: run the same encode command again")
        self._vectors.shards = [have[record.file] for record in tokens.shards]

    def _read_tokenizer(self) -> Tokenizer:
        path = disk.tokens_folder(self.folder) / disk.TOKENIZER
        if not path.exists():
            raise DataError(f"{path} is missing: restore it, or encode again")
        if disk.file_sha256(path) != self.tokenizer_sha256:
            raise DataError(f"{path} was altered (sha256 differs from the manifest): restore it, or encode again")
        return disk.load_tokenizer(path)

    def _split_sizes(self, split: str) -> list[int]:
        if split not in SPLITS:
            raise DataError(f"there is no split {split!r}; known: {', '.join(SPLITS)}")
        return [record.splits[split] for record in self._tokens.shards]

    def _token_table(self, index: int) -> Any:
        return disk.read_table(disk.tokens_folder(self.folder), self._tokens.shards[index])

    def _vector_table(self, index: int) -> npt.NDArray[np.float16]:
        """Vectors of a shard, (rows, dim)."""
        table = disk.read_table(self._vectors_folder, self._vectors.shards[index])
        vectors = disk.vector_rows(table["vector"])
        if vectors.shape[1] != self.dim:
            path = self._vectors_folder / self._vectors.shards[index].file
            raise DataError(f"{path} has {vectors.shape[1]} dimensions, not the {self.dim} of its manifest: delete it")
        return vectors
