"""What all commands share: where to print, progress, JSON, and what to say after Ctrl-C."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def out() -> Console:
    """Standard output, for results."""
    return Console(highlight=False)


def is_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty()


def is_first() -> bool:
    """Whether this process speaks: of those that torchrun starts, only the first does."""
    return os.environ.get("RANK", "0") == "0"


def print_json(value: Any) -> None:
    """One JSON value on one line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def print_line(text: str) -> None:
    """A result for a pipe: one line, no wrapping, no colour."""
    sys.stdout.write(text + "\n")


def warn(notes: Sequence[str]) -> None:
    """Remarks on the input, on standard error: they matter in a pipe, too."""
    for note in notes:
        sys.stderr.write(f"unembed: note: {note}\n")


class Bar:
    """A progress bar on standard error; silent when that is no terminal, or in a second process of a training."""

    def __init__(self, label: str) -> None:
        self.progress = None
        if sys.stderr.isatty() and is_first():
            self.progress = Progress(
                TextColumn("{task.description}"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(),
                TextColumn("left"), TimeRemainingColumn(), TextColumn("[dim]{task.fields[note]}"),
                console=Console(stderr=True, highlight=False), transient=True,
            )  # fmt: skip
            self.task = self.progress.add_task(label, total=None, note="")

    def show(self, done: int, total: int | None, note: str = "", label: str | None = None) -> None:
        """So much is done, of so much in all (None: nobody knows)."""
        if self.progress is not None:
            self.progress.update(self.task, completed=done, total=total, note=note, description=label)

    def say(self, what: RenderableType) -> None:
        """Print above the bar."""
        if self.progress is not None:
            self.progress.console.print(what)


@contextmanager
def progress(label: str) -> Iterator[Bar]:
    """Show a bar while the block runs."""
    bar = Bar(label)
    if bar.progress is None:
        yield bar
        return
    with bar.progress:
        yield bar


@contextmanager
def resumable(advice: str) -> Iterator[None]:
    """Work that Ctrl-C may stop: the interrupt then carries what to do to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(advice) from None
