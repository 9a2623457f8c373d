"""Who may talk to the server, what a browser may do with its answers, and that nothing of the texts is left behind."""

from __future__ import annotations

import logging
import os

import httpx2
import pytest

from tests.serve.conftest import serving
from unembed.data import encoders
from unembed.errors import EncoderError
from unembed.serve.app import create_app
from unembed.serve.guard import name_of

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECRET = "my password is swordfish"


@pytest.mark.parametrize("path", ["/", "/docs", "/card", "/health", "/openapi.json", "/none", "/decode", "/static/x"])
def test_every_answer_has_the_headers(server, path):
    headers = server.http.get(path).headers
    assert headers["content-security-policy"] == CSP
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


def test_streams_and_refusals_have_them_too(server, vector):
    answers = [
        server.http.post("/decode", json={"vector": vector}),
        server.http.post("/decode", json={}),
        server.http.post("/decode", content=b"x" * (server.service.limits.body_bytes + 1)),
        server.http.get("/health", headers={"Host": "evil.example"}),
    ]
    assert [answer.status_code for answer in answers] == [200, 422, 413, 400]
    assert {answer.headers["content-security-policy"] for answer in answers} == {CSP}


@pytest.mark.parametrize("host", ["localhost", "localhost:1234", "127.0.0.1:8765", "[::1]", "[::1]:80", "LOCALHOST"])
def test_loopback_names_are_ours(server, host):
    assert server.http.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "["],
)
def test_other_names_are_refused_whatever_is_asked(server, vector, host):
    """DNS rebinding: a page elsewhere gives its own name the address 127.0.0.1."""
    for answer in (
        server.http.get("/health", headers={"Host": host}),
        server.http.post("/decode", json={"vector": vector}, headers={"Host": host}),
        server.http.get("/static/main.js", headers={"Host": host}),
    ):
        assert answer.status_code == 400
        assert answer.json()["error"] == "bad_host"


@pytest.mark.parametrize(
    ("bound", "allowed", "host", "status"),
    [
        ("192.168.1.5", (), "192.168.1.5:8765", 200),
        ("192.168.1.5", (), "192.168.1.6", 400),
        ("0.0.0.0", (), "192.168.1.5:8765", 200),  # a bare address cannot be rebound
        ("0.0.0.0", (), "demo.example.org", 400),
        ("0.0.0.0", ("Demo.example.org",), "demo.example.org", 200),
        ("::", (), "[2001:db8::1]:8765", 200),
        ("127.0.0.1", ("demo.example.org",), "demo.example.org:443", 200),
        ("127.0.0.1", ("demo.example.org",), "evil.example.org", 400),
    ],
)
def test_names_can_be_added(inverter, bound, allowed, host, status):
    import asyncio

    app, _ = create_app(inverter, host=bound, allow_hosts=allowed, encoder="none")

    async def ask() -> int:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.get("/random", headers={"Host": host})).status_code

    assert asyncio.run(ask()) == status


def test_the_name_in_a_host_header():
    assert name_of("Localhost.:80") == "localhost"
    assert name_of("[::1]:80") == "::1"


def test_no_other_page_may_read_answers_unless_named(server, vector):
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert server.http.options("/decode", headers=asked).status_code == 405
    assert "access-control-allow-origin" not in server.http.get("/health", headers=asked).headers
    with serving(allow_origins=["https://good.example"], encoder="none") as open_server:
        good = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST"}
        allowed = open_server.http.options("/decode", headers=good)
        assert allowed.headers["access-control-allow-origin"] == "https://good.example"
        answer = open_server.http.post("/decode", json={"vector": vector}, headers=good)
        assert answer.headers["access-control-allow-origin"] == "https://good.example"
        assert "Retry-After" in answer.headers["access-control-expose-headers"]
        large = open_server.http.post("/decode", content=b"x" * 2_000_001, headers=good)  # refused before the app
        assert (large.status_code, large.headers["access-control-allow-origin"]) == (413, "https://good.example")
        assert "access-control-allow-origin" not in open_server.http.post("/x", content=b"x" * 2_000_001).headers
        assert open_server.http.options("/decode", headers=asked).status_code == 400
        assert "access-control-allow-origin" not in open_server.http.get("/health", headers=asked).headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_what_a_form_on_another_page_could_send_is_refused(server, kind):
    """Such a request needs no leave from the browser, so it must have no effect."""
    answer = server.http.post("/encode", content=b'{"text": "hello"}', headers={"Content-Type": kind})
    assert answer.status_code == 422


def test_errors_never_echo_what_was_sent(server, vector):
    bodies = [
        {"text": SECRET * 1000},
        {"text": [SECRET]},
        {"text": {SECRET: SECRET}},
        {SECRET: SECRET},
        {"vector": SECRET},
        {"vector": [SECRET]},
        {"vector": vector, "strategy": SECRET},
        {"vector": vector, "steps": SECRET},
        {"vector": vector, SECRET: 1},
        {"vectors": [[SECRET]]},
    ]
    for path in ("/encode", "/decode", "/invert"):
        for body in bodies:
            answer = server.http.post(path, json=body)
            assert answer.status_code == 422
            assert "swordfish" not in answer.text
        assert "swordfish" not in server.http.post(path, content=SECRET.encode()).text
    assert "swordfish" not in server.http.get(f"/{SECRET}").text


def test_nothing_of_a_text_or_vector_is_logged(server, vector, caplog):
    caplog.set_level(logging.DEBUG)
    server.http.post("/encode", json={"text": SECRET})
    server.http.post("/encode", json={"text": SECRET * 1000})
    done = server.decode(vector)[-1][1]
    server.http.post("/invert", json={"vectors": [vector]})
    ours = "\n".join(
        record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
    )
    assert "swordfish" not in ours
    assert done["text"] not in ours
    assert str(vector[0])[:8] not in ours
    assert "/decode" not in ours  # no access log


def test_no_telemetry_whatever_the_environment_says(inverter, monkeypatch):
    """The framework would report requests and failures, with their messages, to an OpenTelemetry collector."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    guard, _ = create_app(inverter, encoder="none")
    settings = guard._app._telemetry
    assert not any(settings[name] for name in ("tracing", "metrics", "logs", "operation_spans", "auto_configure"))


def test_a_fault_is_logged_by_its_place_alone(encoder_installed, monkeypatch, caplog):
    class Broken:
        name, dim, normalized, fingerprint = "test", 16, True, ""

        def encode(self, texts):
            raise self.kind(f"cannot embed {texts[0]}")

    monkeypatch.setattr(encoders, "load", lambda spec: Broken())
    with serving() as server:
        Broken.kind = ValueError
        answer = server.http.post("/encode", json={"text": SECRET})
        assert (answer.status_code, answer.json()["error"]) == (500, "internal")
        Broken.kind = EncoderError
        answer = server.http.post("/encode", json={"text": SECRET})
        assert (answer.status_code, answer.json()["error"]) == (503, "encoder_failed")
    assert "ValueError at" in caplog.text
    assert "swordfish" not in caplog.text + answer.text


def test_nothing_is_written_to_disk(server, vector, monkeypatch):
    """Whatever opens a file for writing while requests are answered is caught."""
    import sys

    written: list[str] = []

    def watch(event: str, arguments: tuple) -> None:
        if event == "open" and watching and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            written.append(str(arguments[0]))

    watching = True
    sys.addaudithook(watch)
    try:
        server.decode(vector)
        server.http.post("/encode", json={"text": SECRET})
        server.http.post("/invert", json={"vectors": [vector], "n_best": 2})
        server.http.get("/docs")
    finally:
        watching = False
    assert written == []


def test_websockets_are_refused(server):
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Key": "x", "Sec-WebSocket-Version": "13"}
    assert server.http.get("/decode", headers=headers).status_code in (400, 405, 426)


@pytest.fixture(scope="module")
def inverter():
    from tests.decode.conftest import make_inverter

    return make_inverter()
