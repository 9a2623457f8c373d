"""A real server on a loopback port, a small real inverter behind it, and a gate that stops time between its passes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
import numpy as np
import pytest
import uvicorn

from tests.decode.conftest import DIM, make_inverter, make_vectors
from unembed.data import encoders
from unembed.inverter import Inverter
from unembed.serve.app import create_app
from unembed.serve.limits import Limits
from unembed.serve.run import address, listen, make_server
from unembed.serve.service import Service

REAL_LOAD = encoders.load
PATIENCE = 30.0  # of a test on a busy machine; nothing waits that long unless it is broken


class Gate:
    """Open, or letting through so many passes."""

    def __init__(self) -> None:
        self._turn, self._left, self.passes = threading.Condition(), float("inf"), 0
        self.wanted = 0  # passes that were asked for, the one that waits included

    def hold(self) -> None:
        with self._turn:
            self._left = 0

    def let(self, passes: float = float("inf")) -> None:
        with self._turn:
            self._left += passes
            self._turn.notify_all()

    def enter(self) -> None:
        with self._turn:
            self.wanted += 1
            assert self._turn.wait_for(lambda: self._left > 0, PATIENCE)
            self._left -= 1
            self.passes += 1


class GatedPool:
    """The real pool behind a gate."""

    def __init__(self, pool, gate: Gate) -> None:
        self._pool, self._gate = pool, gate

    def __len__(self):
        return len(self._pool)

    def __contains__(self, ticket):
        return ticket in self._pool

    def __getattr__(self, name):
        return getattr(self._pool, name)

    def step(self):
        self._gate.enter()
        return self._pool.step()


class GatedInverter(Inverter):
    def __init__(self, artifact) -> None:
        super().__init__(artifact)
        self.gate = Gate()

    def pool(self, capacity: int = 32):
        return GatedPool(super().pool(capacity), self.gate)


class LetterEncoder:
    """A vector of letter counts: enough of an encoder to compare texts."""

    name, dim, normalized, fingerprint = "test", DIM, True, ""

    def encode(self, texts: list[str]) -> np.ndarray:
        rows = np.zeros((len(texts), DIM), np.float32)
        for row, text in enumerate(texts):
            for letter in text:
                rows[row, ord(letter) % DIM] += 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@dataclass
class Running:
    """A server under test."""

    url: str
    service: Service
    http: httpx2.Client
    server: uvicorn.Server

    @property
    def gate(self) -> Gate:
        return self.service.inverter.gate

    def decode(self, vector, **settings):
        """All events of one decoding, as (name, data)."""
        with self.stream(vector, **settings) as events:
            return list(events)

    @contextmanager
    def stream(self, vector, client: str | None = None, **settings):
        """The events as they come; `client` is the loopback address that asks."""
        transport = httpx2.HTTPTransport(local_address=client) if client else None
        with (
            httpx2.Client(base_url=self.url, timeout=PATIENCE, transport=transport) as http,
            http.stream("POST", "/decode", json={"vector": list(map(float, vector)), **settings}) as response,
        ):
            if response.status_code != 200:
                response.read()
                raise Refused(response)
            yield read_events(response.iter_lines())

    def queue(self) -> dict:
        return self.http.get("/queue").json()

    def until(self, true, what: str = "") -> None:
        """Wait for something to become true."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, what or "it never happened"
            time.sleep(0.005)


class Refused(Exception):
    def __init__(self, response: httpx2.Response) -> None:
        self.response, self.status, self.body = response, response.status_code, response.json()


def read_events(lines) -> Iterator[tuple[str, dict]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@contextmanager
def serving(inverter: Inverter | None = None, wait: bool = True, **options) -> Iterator[Running]:
    inverter = inverter or GatedInverter(make_inverter().artifact)
    app, service = create_app(inverter, **options)
    listener = listen("127.0.0.1", 0)
    server = make_server(app, service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    with httpx2.Client(base_url=address(listener), timeout=PATIENCE) as http:
        running = Running(address(listener), service, http, server)
        running.until(lambda: server.started)
        if wait:
            running.until(lambda: service.status == "ready")
        try:
            yield running
        finally:
            if isinstance(inverter, GatedInverter):
                inverter.gate.let()
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()
            assert service.worker.join(PATIENCE)


@pytest.fixture(scope="module")
def encoder_installed():
    """The encoder of the small inverter, as if its package were there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "load", lambda spec: LetterEncoder() if spec == "test" else REAL_LOAD(spec))
        yield


@pytest.fixture(scope="module")
def server(encoder_installed) -> Iterator[Running]:
    with serving(name="tiny") as running:
        yield running


@pytest.fixture
def gated() -> Iterator[Running]:
    """Its own server, with few places."""
    with serving(limits=Limits(capacity=2, queue=3, share=100), encoder="none") as running:
        yield running


@pytest.fixture
def vector() -> list[float]:
    return make_vectors(1)[0].tolist()
