"""What all tests share: no network but loopback."""

from __future__ import annotations

import os
import socket

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # two test processes share the cores
    os.environ["OMP_NUM_THREADS"] = "1"

# Files that take long, by the number of their tests or by a few. Begun last, one would keep one of two processes busy
# while the other has nothing left to do.
LONG = {
    "test_benchmarks.py", "test_cli.py", "test_cli_audit.py", "test_identify.py", "test_packaging.py", "test_page.py",
    "test_page_manners.py", "test_page_slips.py", "test_processes.py", "test_run.py", "test_runs.py",
}  # fmt: skip

_connect = socket.socket.connect


def _only_loopback(self: socket.socket, address: object) -> None:
    host = address[0] if isinstance(address, tuple) else "localhost"
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"a test tried to reach {host}: tests run offline")
    _connect(self, address)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first; the others stay in their order (the sort is stable)."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(autouse=True, scope="session")
def offline():
    """No test may use the network; local servers are fine."""
    socket.socket.connect = _only_loopback
    yield
    socket.socket.connect = _connect
