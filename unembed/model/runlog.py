"""The files of a training run besides its weights: what it was asked to do, and what it measured."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from unembed.config import Config, from_dict, to_dict
from unembed.data.shards import sweep, write_whole
from unembed.errors import CheckpointError
from unembed.model.checkpoint import Progress

PHASES = ("bag", "denoise", "correct", "surrogate", "echo", "write")


def claim(folder: Path, config: Config, dataset: str, *, resume: bool, begun: bool) -> None:
    """One folder, one run, one configuration, one dataset: refuse to mix, write down what this run is."""
    path = folder / "run.json"
    sweep(folder)
    if begun and not path.exists():
        raise CheckpointError(f"{folder} has a checkpoint but no run.json that says of what: choose another folder")
    if begun:
        if not resume:
            raise CheckpointError(f"{folder} holds a run already: add --resume to go on, or choose another folder")
        theirs = json.loads(path.read_text())
        if theirs["dataset"] != dataset:
            raise CheckpointError(f"the dataset is not the one of the run in {folder}: use that one, or start anew")
        if from_dict(Config, theirs["config"]) != config:
            raise CheckpointError(f"the settings are not those of the run in {folder} (see {path}): use the same")
        return
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    text = json.dumps({"config": to_dict(config), "dataset": dataset}, indent=2) + "\n"
    write_whole(path, lambda part: part.write_text(text, encoding="utf-8"))


class MetricsLog:
    """metrics.jsonl: one line for every step and one for every validation."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "metrics.jsonl"

    def add(self, record: dict[str, Any]) -> None:
        """Append a line."""
        clean = {k: (round(v, 6) if isinstance(v, float) and math.isfinite(v) else v) for k, v in record.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(clean, ensure_ascii=False) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines; a kill may have cut the last one."""
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        found = []
        for line in text.split("\n"):  # not splitlines: a sample may hold U+2028
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def cut(self, progress: Progress) -> None:
        """Forget what was logged after the checkpoint: those steps will be done again."""
        here = (PHASES.index(progress.phase), progress.step)
        kept = [line for line in self.lines() if (PHASES.index(line["phase"]), line["step"]) <= here]
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept)
        write_whole(self.path, lambda part: part.write_text(text, encoding="utf-8"))
