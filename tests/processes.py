"""Processes that need not import torch again: each is forked from one that has done nothing but import.

Where a process is killed, interrupted or begun anew, the process is what is tested, and that it starts cold is not.
That cold ones work is tested by those of test_cli.py which call `python -m unembed`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "unembed.cli",
        "unembed.inverter",
        "unembed.measure.evaluate",
        "unembed.model.trainer",
        "unembed.serve.app",
        # Torch and pyarrow import these when they are first used: 2 s, of a short training most of its time.
        "torch._dynamo",
        "pandas",
    ]
)


class Process:
    """A function at work in a process of its own, with one thread for torch; its result is the exit code."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._files = Path(self._folder.name, "out"), Path(self._folder.name, "err")
        for file in self._files:
            file.touch()
        self._process = _server.Process(target=_work, args=(self._files, function, arguments))
        self._process.start()

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.exitcode

    def line(self, timeout: float = 240) -> str:
        """The first line that it prints; empty if it ends without one."""
        deadline = time.monotonic() + timeout
        while "\n" not in (shown := self._files[0].read_text()) and self.poll() is None:
            assert time.monotonic() < deadline, f"nothing printed after {timeout} s; it says: {self._read()}"
            time.sleep(0.01)
        return shown.partition("\n")[0]

    def send_signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        """What it printed and how it ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            raise AssertionError(f"still running after {timeout} s; it says: {self._read()}")
        shown, said = self._read()
        self._folder.cleanup()
        return subprocess.CompletedProcess([], self._process.exitcode, shown, said)

    def _read(self) -> tuple[str, str]:
        shown, said = (file.read_text() for file in self._files)
        return shown, said


def unembed(*arguments: object) -> Process:
    """Start a command of the command line."""
    return Process(_main, [str(argument) for argument in arguments])


def _main(arguments: list[str]) -> int:
    from unembed.cli import main

    return main(arguments)


def _work(files: tuple[Path, Path], function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    import torch

    for descriptor, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY), descriptor)
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a script are born deaf to Ctrl-C
    sys.exit(function(*arguments))  # type: ignore[arg-type]
