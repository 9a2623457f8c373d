"""What a system recovers, kept in a file as it comes: a measurement that was stopped goes on where it was."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unembed.data.shards import same_settings, write_whole
from unembed.errors import DataError
from unembed.measure.baselines import Advance, Nearest, System, Vectors
from unembed.typed import build


@dataclass(slots=True)
class Recovery:
    """The texts of one system so far, and what they took."""

    settings: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    passes: int = 0
    """Rows that went through the net."""
    cosines: list[float] = field(default_factory=list)
    """Of the nearest training text, where the system looks for it."""
    columns: dict[str, list[list[float]]] = field(default_factory=dict)
    """The columns of the metrics, once the texts are scored."""


@dataclass(slots=True)
class Part:
    """The content of the file."""

    made_of: dict[str, Any]
    systems: dict[str, Recovery] = field(default_factory=dict)


class Keeper:
    """Recoveries by the name of their system; with a path they outlive the process."""

    def __init__(self, path: Path | None = None, made_of: dict[str, Any] | None = None) -> None:
        """Go on with the file at `path` if it was begun from the same (`made_of`); refuse it if from something else."""
        self.path = path
        self._part = Part(made_of or {})
        if path is None or not path.exists():
            return
        try:
            found = build(Part, json.loads(path.read_text("utf-8")), str(path), DataError)
        except ValueError:
            raise DataError(f"{path} cannot be read: delete it, and the measurement starts anew") from None
        same_settings(path, found.made_of, self._part.made_of)
        self._part = found

    def get(self, name: str, settings: dict[str, Any]) -> Recovery:
        """What is there of a system; nothing if its settings were others."""
        settings = json.loads(json.dumps(settings))  # as they come out of the file
        kept = self._part.systems.get(name)
        if kept is None or kept.settings != settings:
            kept = self._part.systems[name] = Recovery(settings)
        return kept

    def save(self) -> None:
        """Write all of it, whole or not at all."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fields = [each.name for each in dataclasses.fields(Recovery)]
            # Not `asdict`, which would copy every number first.
            systems = {name: {key: getattr(kept, key) for key in fields} for name, kept in self._part.systems.items()}
            text = json.dumps({"made_of": self._part.made_of, "systems": systems}, ensure_ascii=False)
            write_whole(self.path, lambda path: path.write_text(text, "utf-8"))

    def remove(self) -> None:
        """The results are there: the file is no longer needed."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def recover(way: System, vectors: Vectors, net: torch.nn.Module, keeper: Keeper, advance: Advance) -> Recovery:
    """Let a system recover what is still missing, `way.chunk` vectors at a time, and keep each chunk."""
    kept = keeper.get(way.name, way.settings)
    while len(kept.texts) < len(vectors):
        done = len(kept.texts)
        some = vectors[done : done + (way.chunk or len(vectors))]
        with count_passes(net) as passes:
            started = time.perf_counter()
            texts = way.recover(some, lambda more, done=done: advance(done + more))  # type: ignore[misc]
            kept.seconds += time.perf_counter() - started
        if len(texts) != len(some):
            raise DataError(f"{way.name}: {len(texts)} texts came back for {len(some)} vectors")
        kept.texts += texts
        kept.passes += passes.rows
        if isinstance(way, Nearest):
            kept.cosines = way.cosines.tolist()
        keeper.save()
    return kept


@dataclass(slots=True)
class Passes:
    """Rows that went through the net."""

    rows: int = 0


@contextmanager
def count_passes(net: torch.nn.Module) -> Iterator[Passes]:
    """Count texts times forward passes while the block runs; a guided step counts twice, a candidate once more."""
    passes = Passes()

    def count(_: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        passes.rows += inputs[0].shape[0]

    hook = net.register_forward_pre_hook(count)
    try:
        yield passes
    finally:
        hook.remove()


def net_sha256(net: torch.nn.Module) -> str:
    """Hash of a net's weights as they are in memory, wherever they came from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
