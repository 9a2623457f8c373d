"""What all tests share: no network but loopback."""

from __future__ import annotations

import os
import socket

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # two test processes share the cores
    os.environ["OMP_NUM_THREADS"] = "1"

_connect = socket.socket.connect


def _only_loopback(self: socket.socket, address: object) -> None:
    host = address[0] if isinstance(address, tuple) else "localhost"
    if host not in ("127.0.0.1", "::1", "localhost"):
        raise OSError(f"a test tried to reach {host}: tests run offline")
    _connect(self, address)


@pytest.fixture(autouse=True, scope="session")
def offline():
    """No test may use the network; local servers are fine."""
    socket.socket.connect = _only_loopback
    yield
    socket.socket.connect = _connect
