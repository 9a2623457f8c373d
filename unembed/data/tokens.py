"""Stage 1: text to shards of token windows, once for all encoders.

After every shard the manifest says how far each source was read. The rest of the state, which texts are there
already, is in the shards themselves. So a killed run goes on as if nothing had happened.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from unembed.data import shards as disk
from unembed.data.dedupe import Hashes, HashSet
from unembed.data.sources import Source, find_sources, mix
from unembed.data.windows import ALL, SPLITS, Window, windows
from unembed.errors import DataError

# Records are handled in groups of so many, or so many characters.
GROUP_RECORDS = 256
GROUP_CHARACTERS = 1 << 20


def default_tokenizer() -> Path:
    """Tokenizer file of the default inverter: that of the default encoder."""
    from unembed.data.encoders.minilm import model_folder

    return model_folder() / "tokenizer.json"


def write_tokens(
    sources: Sequence[str | Path],
    folder: str | Path,
    tokenizer: Tokenizer | str | Path,
    *,
    min_tokens: int = 3,
    max_tokens: int = 32,
    limit: int | None = None,
    shard_size: int = 16384,
    text_column: str = "text",
    weights: Mapping[str, float] | None = None,
    exclude: Collection[str] = (),
    split: str = ALL,
) -> Iterator[disk.Progress]:
    """Write `folder/tokens/`; the work is done as the progress is iterated over.

    Args:
        sources: files, folders and `hf:` specs (see `unembed.data.sources`).
        folder: the dataset folder; if it was begun with the same settings, the work goes on there.
        tokenizer: the inverter's tokenizer, or its file.
        min_tokens: shorter texts are left out.
        max_tokens: longer sentences are cut; the text of a row is what its tokens decode to.
        limit: stop after so many rows.
        shard_size: rows of a shard.
        text_column: where the text is in JSON lines and Parquet.
        weights: share of a source in the mixture, by its name; the default is the root of its size.
        exclude: names of sources to leave out.
        split: keep only the texts of this split, such as `test` for texts to evaluate on; `all` keeps every one.
    """
    if split not in (*SPLITS, ALL):
        raise DataError(f"there is no split {split!r}; known: {', '.join((*SPLITS, ALL))}")
    if not 1 <= min_tokens <= max_tokens or shard_size < 1 or (limit is not None and limit < 1):
        raise DataError(
            f"impossible settings: min_tokens {min_tokens}, max_tokens {max_tokens}, shard_size {shard_size}, "
            f"limit {limit}"
        )
    found = find_sources(sources, text_column=text_column, weights=weights, exclude=exclude)
    settings = {
        "min_tokens": min_tokens,
        "max_tokens": max_tokens,
        "limit": limit,
        "shard_size": shard_size,
        "text_column": text_column,
        "sources": [[source.name, source.weight, source.identity] for source in found],
        **({} if split == ALL else {"split": split}),
    }
    tokenizer = disk.load_tokenizer(tokenizer)
    writer = TokenWriter(Path(folder), tokenizer, max_tokens, settings)
    yield from _run(writer, found, tokenizer)


class TokenWriter:
    """Collects rows and writes them shard by shard; its manifest is the state from which a killed run goes on."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, max_tokens: int, settings: dict[str, Any]) -> None:
        """Open `folder/tokens/`: a new one, or one that was begun with the same settings."""
        self.place = disk.tokens_folder(folder)
        self.manifest = _begin(self.place, tokenizer, max_tokens, settings)
        self.seen = HashSet(self.place)
        """Hashes of the texts written so far."""
        for shard in self.manifest.shards:
            self.seen.add(disk.read_table(self.place, shard, ["hash"])["hash"].to_numpy())
        self.written = self._before = sum(shard.rows for shard in self.manifest.shards)
        self._began = time.monotonic()
        self._empty()

    @property
    def rows(self) -> int:
        """Rows written and waiting."""
        return self.written + len(self._hashes)

    @property
    def full(self) -> bool:
        """Whether the waiting rows are due to be written."""
        settings = self.manifest.settings
        return bool(len(self._hashes) == settings["shard_size"] or self.rows == settings["limit"])

    def add(self, tokens: Sequence[int], source: str, hash_: int) -> None:
        """Append one row."""
        self._tokens.append(tokens)
        self._sources.append(source)
        self._hashes.append(hash_)

    def write(
        self,
        cursor: dict[str, Any],
        left_out: Mapping[str, int],
        *,
        last: bool = False,
        beside: Callable[[int, disk.Shard], None] | None = None,
    ) -> None:
        """Write the waiting rows as the next shard; a later run goes on from `cursor`.

        `beside` writes what belongs to the shard of that number, before the manifest says that it is there.
        """
        manifest = self.manifest
        if self._hashes:
            hashes: Hashes = np.array(self._hashes, dtype=np.uint64)
            shard = disk.write_token_shard(
                self.place, len(manifest.shards), self._tokens, self._sources, hashes, manifest.vocab_size
            )
            if beside:
                beside(len(manifest.shards), shard)
            manifest.shards.append(shard)
            manifest.counts["sources"] = dict(Counter(manifest.counts["sources"]) + Counter(self._sources))
        self.written = self.rows
        manifest.counts["left_out"] = dict(left_out)
        manifest.cursor = cursor
        manifest.complete = last or self.written == manifest.settings["limit"]
        if manifest.complete and not manifest.shards:
            raise DataError(f"no text is left to write into {self.place} ({_tell(left_out)}): give other sources")
        disk.save_manifest(self.place, manifest)
        self._empty()

    def progress(self, left_out: Mapping[str, int]) -> disk.Progress:
        """How far the writer is."""
        rate = (self.rows - self._before) / max(time.monotonic() - self._began, 1e-9)
        total = self.rows if self.manifest.complete else self.manifest.settings["limit"]
        return disk.Progress(self.rows, total, rate, dict(left_out))

    def _empty(self) -> None:
        self._tokens: list[Sequence[int]] = []
        self._sources: list[str] = []
        self._hashes: list[int] = []


def _run(writer: TokenWriter, sources: list[Source], tokenizer: Tokenizer) -> Iterator[disk.Progress]:
    manifest = writer.manifest
    left_out = {"duplicate": 0, **manifest.counts["left_out"]}
    cursor = manifest.cursor or {"taken": [0] * len(sources), "windows": 0}
    taken, skip = cursor["taken"], cursor["windows"]
    wanted = manifest.settings.get("split", ALL)
    if manifest.complete:
        yield writer.progress(left_out)
        return
    for group, after in _groups(sources, taken):
        # The first `skip` windows of this group were handled before the interruption.
        found = list(_windows(group, tokenizer, manifest))[skip:]
        fresh = writer.seen.add(np.array([window.hash for window in found], dtype=np.uint64))
        for number, (window, is_new) in enumerate(zip(found, fresh.tolist(), strict=True), skip + 1):
            if not is_new:
                left_out["duplicate"] += 1
                continue
            if window.split != wanted and wanted != ALL:
                left_out["of another split"] = left_out.get("of another split", 0) + 1
                continue
            writer.add(window.tokens, window.source, window.hash)
            if writer.full:
                writer.write({"taken": taken, "windows": number}, left_out)
                if manifest.complete:
                    yield writer.progress(left_out)
                    return
        taken, skip = after, 0
        yield writer.progress(left_out)
    writer.write({"taken": taken, "windows": 0}, left_out, last=True)
    yield writer.progress(left_out)


def _groups(sources: list[Source], taken: list[int]) -> Iterator[tuple[list[tuple[str, str]], list[int]]]:
    """Cut the mixture into groups of (source name, text), each with the records taken of each source after it."""
    group: list[tuple[str, str]] = []
    taken, characters = list(taken), 0
    for index, text in mix(sources, taken):
        taken[index] += 1
        group.append((sources[index].name, text))
        characters += len(text)
        if len(group) == GROUP_RECORDS or characters >= GROUP_CHARACTERS:
            yield group, list(taken)
            group, characters = [], 0
    if group:
        yield group, list(taken)


def _windows(group: list[tuple[str, str]], tokenizer: Tokenizer, manifest: disk.TokensManifest) -> Iterator[Window]:
    passages = ((source, line) for source, text in group for line in text.splitlines())
    settings = manifest.settings
    return windows(passages, tokenizer, min_tokens=settings["min_tokens"], max_tokens=settings["max_tokens"])


def _begin(place: Path, tokenizer: Tokenizer, max_tokens: int, settings: dict[str, Any]) -> disk.TokensManifest:
    disk.sweep(place)
    sha256 = disk.tokenizer_sha256(tokenizer)
    manifest = disk.load_manifest(place, disk.TokensManifest)
    if manifest is None and any(place.glob("*.parquet")):
        raise DataError(f"{place} holds shards but no manifest: restore it, or delete the folder")
    if manifest is None or not manifest.shards:  # nothing is lost if it was begun with other settings
        disk.write_tokenizer(place, tokenizer)
        manifest = disk.TokensManifest(settings, sha256, tokenizer.get_vocab_size(), max_tokens)
        manifest.counts = {"sources": {}, "left_out": {}}
        disk.save_manifest(place, manifest)
        return manifest
    disk.same_settings(place, manifest.settings, settings)
    if manifest.tokenizer_sha256 != sha256:
        raise DataError(f"{place} was begun with another tokenizer: use that one, another folder, or delete this one")
    return manifest


def _tell(left_out: Mapping[str, int]) -> str:
    return ", ".join(f"{reason}: {count}" for reason, count in sorted(left_out.items()) if count) or "nothing was found"
