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
from unembed.data.windows import ALL, SPLITS, in_split
from unembed.errors import DataError

Rows = tuple[list[npt.NDArray[Any]], npt.NDArray[np.float16], list[str]]


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """The training rows of some shards, in memory, from which batches are taken."""

    tokens: list[npt.NDArray[Any]]
    vectors: npt.NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.tokens)

    def take(
        self, rows: npt.NDArray[np.intp], key: tuple[int, ...]
    ) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.float16]]:
        """Tokens and vectors of these rows; `key` is for readers that change a text from epoch to epoch."""
        return [self.tokens[i] for i in rows], self.vectors[rows]


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

    encodes = False
    """Vectors cost an encoder's work (`OnlineDataset`), not just a look at the disk."""

    def __init__(self, folder: str | Path, encoder: str | None = None) -> None:
        """Open a dataset folder; `encoder` (spec or folder name) may be left out when there is only one."""
        self._open_tokens(Path(folder))
        self._vectors_folder = self._choose(encoder)
        vectors = disk.load_manifest(self._vectors_folder, disk.VectorsManifest)
        assert vectors is not None  # _choose looked
        self._vectors = vectors
        self._check()
        self.encoder_info: disk.EncoderInfo = vectors.encoder
        self.dim = vectors.encoder.dim

    def _open_tokens(self, folder: Path) -> None:
        tokens = disk.load_manifest(disk.tokens_folder(folder), disk.TokensManifest)
        if tokens is None:
            raise DataError(f"{folder} is not a dataset, it has no {disk.TOKENS}: make one by `unembed encode`")
        if not tokens.complete:
            raise DataError(f"the tokens in {folder} are not complete: run the same `unembed encode` command again")
        self.folder, self._tokens = folder, tokens
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
        """Number of rows in a split, or in `all` of them."""
        return sum(self._split_sizes(split))

    def shard(self, index: int, split: str) -> Rows:
        """The rows of shard `index` that are in `split`: token arrays, vectors (n, dim), source names."""
        tokens, sources, keep = self._token_rows(index, split)
        return tokens, self._vectors_of(index, keep, tokens), sources

    def training_rows(self, shards: list[int]) -> TrainingRows:
        """The training split of these shards."""
        parts = [self.shard(index, "train") for index in shards]
        return TrainingRows([row for tokens, _, _ in parts for row in tokens], np.concatenate([v for _, v, _ in parts]))

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
            some_tokens, some_sources, keep = self._token_rows(int(index), split)
            places = np.flatnonzero(shard_of == index)
            rows = drawn[places] - starts[index]
            for place, row in zip(places, rows, strict=True):
                # A copy: a view would keep the whole shard in memory.
                tokens[place], sources[place] = some_tokens[row].copy(), some_sources[row]
            vectors[places] = self._vectors_of(int(index), keep[rows], [some_tokens[row] for row in rows])
        texts = decode(self.tokenizer, [row.tolist() for row in tokens])
        return Examples(tokens, texts, vectors, sources)

    def token_counts(self) -> npt.NDArray[np.int64]:
        """How often each token occurs in the training split, (vocab,)."""
        counts = np.zeros(self._tokens.vocab_size, dtype=np.int64)
        for index in range(self.shards):
            rows, _, _ = self._token_rows(index, "train")
            if rows:
                counts += np.bincount(np.concatenate(rows), minlength=len(counts))
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
        if split == ALL:
            return [record.rows for record in self._tokens.shards]
        if split not in SPLITS:
            raise DataError(f"there is no split {split!r}; known: {', '.join((*SPLITS, ALL))}")
        return [record.splits[split] for record in self._tokens.shards]

    def _token_rows(self, index: int, split: str) -> tuple[list[npt.NDArray[Any]], list[str], npt.NDArray[np.intp]]:
        """Tokens and sources of the rows of a shard that are in the split, and which rows those are."""
        table = disk.read_table(disk.tokens_folder(self.folder), self._tokens.shards[index])
        keep = np.flatnonzero(in_split(table["hash"].to_numpy(), split))
        tokens, sources = disk.token_rows(table["tokens"]), table["source"].to_pylist()
        return [tokens[i] for i in keep], [sources[i] for i in keep], keep

    def _vectors_of(
        self, index: int, rows: npt.NDArray[np.intp], tokens: list[npt.NDArray[Any]]
    ) -> npt.NDArray[np.float16]:
        """Vectors of these rows of a shard, whose tokens are given, (n, dim)."""
        return self._vector_table(index)[rows]

    def _vector_table(self, index: int) -> npt.NDArray[np.float16]:
        """Vectors of a shard, (rows, dim)."""
        table = disk.read_table(self._vectors_folder, self._vectors.shards[index])
        vectors = disk.vector_rows(table["vector"])
        if vectors.shape[1] != self.dim:
            path = self._vectors_folder / self._vectors.shards[index].file
            raise DataError(f"{path} has {vectors.shape[1]} dimensions, not the {self.dim} of its manifest: delete it")
        return vectors
