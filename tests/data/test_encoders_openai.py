"""The adapter for embedding endpoints, against a real HTTP server on this machine that misbehaves in every way."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("httpx2")

from unembed.data.encoders import load
from unembed.data.encoders.openai import ApiEncoder, Policy
from unembed.errors import EncoderError

KEY = "sk-secret-0123456789"
DIM = 6
QUICK = Policy(batch=4, timeout=5.0, attempts=4, wait=0.001, longest_wait=0.01)
TEXTS = [f"text {number}" for number in range(10)]

Answer = tuple[int, dict[str, str], bytes]
Behaviour = Callable[[dict[str, Any]], Answer]


def vector(text: str) -> list[float]:
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    values = np.random.default_rng(seed).normal(size=DIM)
    return [float(value) for value in (values / np.linalg.norm(values)).astype(np.float32)]


def rows(texts: list[str]) -> np.ndarray:
    return np.array([vector(text) for text in texts], dtype=np.float32)


def answer(body: dict[str, Any], order: int = 1) -> Answer:
    """What a good server says; the encoding is the one asked for."""

    def encoded(text: str) -> str | list[float]:
        if body["encoding_format"] == "float":
            return vector(text)
        return base64.b64encode(np.array(vector(text), dtype="<f4").tobytes()).decode()

    data = [{"index": place, "embedding": encoded(text)} for place, text in enumerate(body["input"])]
    return 200, {}, json.dumps({"object": "list", "data": data[::order]}).encode()


def data_answer(data: object) -> Answer:
    return 200, {}, json.dumps({"data": data}).encode()


class Server:
    """An endpoint; `script` holds the behaviours of the next requests, then it is good."""

    def __init__(self) -> None:
        self.script: list[Behaviour] = []
        self.default: Behaviour = answer
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.paths: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.requests.append(body)
                outer.keys.append(self.headers.get("authorization"))
                outer.paths.append(self.path)
                behave = outer.script.pop(0) if outer.script else outer.default
                status, headers, content = behave(body)
                try:
                    self.send_response(status)
                    for name, value in {**headers, "content-length": str(len(content))}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:  # the client has given up
                    pass

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        self.thread = Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def encoder(self, policy: Policy = QUICK) -> ApiEncoder:
        return ApiEncoder("tiny", self.url, name=f"openai:tiny@{self.url}", policy=policy)

    def stop(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "OPENAI_BASE_URL", "UNEMBED_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    server = Server()
    yield server
    server.stop()


def status(code: int, message: str = "no", **headers: str) -> Behaviour:
    body = json.dumps({"error": {"message": message}}).encode()
    return lambda _: (code, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def test_batches_by_count_and_keeps_the_order(server: Server) -> None:
    encoder = server.encoder()
    np.testing.assert_array_equal(encoder.encode(TEXTS), rows(TEXTS))
    assert [len(request["input"]) for request in server.requests] == [4, 4, 2]
    assert server.requests[0]["model"] == "tiny"
    assert (encoder.dim, encoder.normalized) == (DIM, True)
    assert len(server.requests) == 3  # the dimension was known from the answers
    assert set(server.paths) == {"/v1/embeddings"}


def test_dimension_costs_one_request(server: Server) -> None:
    encoder = load(f"openai:tiny@{server.url}/")
    assert server.requests == []
    assert encoder.dim == DIM
    assert encoder.normalized
    assert encoder.encode([]).shape == (0, DIM)
    assert len(server.requests) == 1
    assert encoder.fingerprint == f"tiny@127.0.0.1:{server.http.server_port}"
    assert load(f"openai:tiny@{server.url}?dimensions=3").fingerprint != encoder.fingerprint


def test_vectors_of_other_lengths_are_not_called_normalized(server: Server) -> None:
    server.default = lambda _: data_answer([{"index": 0, "embedding": [3.0, 4.0]}])
    assert not server.encoder().normalized


def test_dimensions_are_asked_for(server: Server) -> None:
    load(f"openai:tiny@{server.url}?dimensions=3").encode(["a"])
    assert server.requests[0]["dimensions"] == 3


def test_answers_out_of_order_are_sorted_by_index(server: Server) -> None:
    server.default = lambda body: answer(body, order=-1)
    np.testing.assert_array_equal(server.encoder().encode(TEXTS), rows(TEXTS))


def test_server_without_base64_gets_float(server: Server) -> None:
    server.default = lambda body: status(400)(body) if body["encoding_format"] == "base64" else answer(body)
    np.testing.assert_array_equal(server.encoder().encode(TEXTS), rows(TEXTS))
    assert [request["encoding_format"] for request in server.requests] == ["base64", "float", "float", "float"]


@pytest.mark.parametrize("code", [413, 422])
def test_too_large_batches_are_halved(server: Server, code: int) -> None:
    server.default = lambda body: status(code)(body) if len(body["input"]) > 1 else answer(body)
    np.testing.assert_array_equal(server.encoder().encode(TEXTS), rows(TEXTS))
    assert [len(request["input"]) for request in server.requests][-10:] == [1] * 10


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 529])
def test_busy_server_is_asked_again(server: Server, code: int) -> None:
    server.script = [status(code), status(code)]
    np.testing.assert_array_equal(server.encoder().encode(TEXTS[:3]), rows(TEXTS[:3]))
    assert len(server.requests) == 3


def test_stalling_server_is_asked_again(server: Server) -> None:
    def stall(body: dict[str, Any]) -> Answer:
        time.sleep(0.6)
        return answer(body)

    server.script = [stall]
    encoder = server.encoder(Policy(timeout=0.2, attempts=5, wait=0.2))
    np.testing.assert_array_equal(encoder.encode(TEXTS[:3]), rows(TEXTS[:3]))
    assert len(server.requests) >= 2


def test_gives_up_after_the_last_attempt(server: Server) -> None:
    server.default = status(503, "overloaded")
    with pytest.raises(EncoderError, match="503 overloaded"):
        server.encoder().encode(["a"])
    assert len(server.requests) == QUICK.attempts


def test_server_that_is_not_there(server: Server) -> None:
    encoder = server.encoder()
    server.http.server_close()
    with pytest.raises(EncoderError, match="ConnectError"):
        encoder.encode(["a"])


def test_waits_grow_and_vary(server: Server) -> None:
    encoder = server.encoder(Policy(attempts=9, wait=1.0, longest_wait=20.0))
    first, second = list(encoder._pauses()), list(encoder._pauses())
    assert first[-1] is None
    assert first != second
    for attempt, pause in enumerate(first[:-1]):
        longest = min(20.0, 2.0**attempt)
        assert pause is not None
        assert longest / 2 <= pause <= longest


def test_retry_after_in_seconds_and_as_date_is_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("unembed.data.encoders.openai.time.sleep", waited.append)
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=40), usegmt=True)
    server.script = [status(429, retry_after="7"), status(503, retry_after=date), status(503, retry_after="soon")]
    server.encoder().encode(["a"])
    assert waited[0] == 7
    assert 20 < waited[1] <= 40
    assert waited[2] <= QUICK.longest_wait


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (status(429, retry_after="9000"), "asks to wait 9000 s"),
        (status(429, "You exceeded: insufficient_quota"), "insufficient_quota"),
    ],
)
def test_does_not_wait_in_vain(server: Server, behaviour: Behaviour, message: str) -> None:
    server.default = behaviour
    with pytest.raises(EncoderError, match=message):
        server.encoder().encode(["a"])
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        (status(401, "bad key"), "refuses the key.*UNEMBED_API_KEY"),
        (status(404, "no model"), "knows no model 'tiny'"),
        (status(307, "moved", location="http://127.0.0.1:1/"), "refuses the request \\(307\\)"),
        (status(400, "input\nis empty"), "input is empty"),
        (lambda _: (200, {}, b"<html>"), "check the base url"),
        (lambda _: (200, {}, b"[1]"), "check the base url"),
        (data_answer(None), "check the base url"),
        (data_answer([{"index": 0, "embedding": "%%%"}]), "check the base url"),
        (data_answer([{"index": 0, "embedding": [[1.0]]}]), "check the base url"),
        (data_answer([]), "gave 0 vectors for 2 texts"),
        (data_answer([{"index": 0, "embedding": [1.0]}] * 2), "indices that fit no text"),
        (data_answer([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]), "of 1 and 2 dim"),
        (data_answer([{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [float("nan")]}]), "NaN.* text 1"),
    ],
)
def test_bad_answers_are_explained(server: Server, behaviour: Behaviour | Answer, message: str) -> None:
    server.default = behaviour if callable(behaviour) else lambda _: behaviour
    with pytest.raises(EncoderError, match=message) as caught:
        server.encoder().encode(["a", "b"])
    assert "\n" not in str(caught.value)


def test_changing_dimension_is_refused(server: Server) -> None:
    encoder = server.encoder()
    encoder.encode(["a"])
    server.default = lambda _: data_answer([{"index": 0, "embedding": [1.0]}])
    with pytest.raises(EncoderError, match=f"1 dimensions, before it was {DIM}"):
        encoder.encode(["b"])


def test_key_comes_from_the_environment_and_shows_nowhere(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    encoder = server.encoder()
    encoder.encode(["a"])
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    encoder.encode(["a"])
    monkeypatch.setenv("UNEMBED_API_KEY", KEY)
    encoder.encode(["a"])
    assert server.keys == [None, "Bearer sk-other", f"Bearer {KEY}"]
    server.default = status(400, "x" * 190 + f" your key {KEY} is bad")
    messages = []
    for code in (400, 401, 503):
        server.default = status(code, "x" * 185 + f" the key {KEY} is bad")
        with pytest.raises(EncoderError) as caught:
            encoder.encode(["a"])
        messages.append(str(caught.value))
    shown = " ".join([*messages, caplog.text, repr(encoder), repr(vars(encoder))])
    assert KEY[:6] not in shown


def test_openai_key_is_not_sent_to_any_host_a_spec_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from unembed.data.encoders.openai import _key

    monkeypatch.delenv("UNEMBED_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert _key("api.openai.com") == _key("127.0.0.1") == KEY
    assert _key("evil.example") == _key("api.openai.com.evil.example") == ""
    monkeypatch.setenv("OPENAI_BASE_URL", "https://llm.example/v1")
    assert _key("llm.example") == KEY
    monkeypatch.setenv("UNEMBED_API_KEY", "other")
    assert _key("evil.example") == "other"


def test_default_address_and_odd_model_names() -> None:
    assert load("openai:text-embedding-3-small").fingerprint == "text-embedding-3-small@api.openai.com"
    assert load("openai:@cf/baai/bge@https://host.example/v1").fingerprint == "@cf/baai/bge@host.example"
    assert load("openai:org/model:tag@http://host:8000/v1").fingerprint == "org/model:tag@host:8000"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("openai:", "cannot read"),
        ("openai:model@host:8000", "write openai:<model>@https://host/v1"),
        ("openai:model@ftp://host", "write openai:<model>@https://host/v1"),
        ("openai:model@https:///v1", "no host"),
        ("openai:model@https://me:pass@host/v1", "no login"),
        ("openai:model@https://host/v1?api_key=pass", "unknown option"),
        ("openai:model?dimensions=many", "whole number"),
    ],
)
def test_bad_specs_are_explained_without_the_password(spec: str, message: str) -> None:
    with pytest.raises(EncoderError, match=message) as caught:
        load(spec)
    assert "pass" not in str(caught.value).replace("api_key=pass", "")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=8), max_size=12), size=st.integers(1, 5))
def test_any_texts_in_any_batches(server: Server, texts: list[str], size: int) -> None:
    vectors = server.encoder(Policy(batch=size, attempts=1)).encode(texts)
    np.testing.assert_array_equal(vectors, rows(texts).reshape(len(texts), DIM))
