"""Every bound: the request after the last one that fits is refused, with a reason and when to come back."""

from __future__ import annotations

import http.client
import json
import socket
import time
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.decode.conftest import DIM, make_vectors
from tests.serve.conftest import Refused, serving
from unembed.decode import strategies
from unembed.errors import ConfigError
from unembed.serve import guard
from unembed.serve.limits import Limits


def refused(server, vector, **settings) -> Refused:
    with pytest.raises(Refused) as caught, server.stream(vector, **settings):
        pass
    return caught.value


def fill(server, stack: ExitStack, count: int, **settings) -> list:
    """So many streams that stand still."""
    server.gate.hold()
    streams = []
    for number, vector in enumerate(make_vectors(count), 1):
        streams.append(stack.enter_context(server.stream(vector, **settings)))
        server.until(lambda n=number: server.queue()["running"] + server.queue()["waiting"] == n)
        if number <= server.service.limits.capacity:
            server.gate.let(1)  # places are given between passes
            server.until(lambda n=number: server.queue()["running"] == n)
    return streams


def test_a_full_queue_refuses_with_the_time_to_wait(vector):
    with serving(limits=Limits(capacity=1, queue=2), encoder="none") as server, ExitStack() as stack:
        streams = fill(server, stack, 3, steps=8, length=12)
        for path in ("/decode", "/invert"):
            body = {"vector": vector} if path == "/decode" else {"vectors": [vector]}
            answer = server.http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]) == (503, "queue_full")
            assert int(answer.headers["Retry-After"]) >= 1
        server.gate.let()
        assert [list(events)[-1][0] for events in streams] == ["done"] * 3
        assert server.decode(vector)[-1][0] == "done"


def test_the_share_of_one_client_leaves_room_for_others(vector):
    with serving(limits=Limits(capacity=1, share=2), encoder="none") as server, ExitStack() as stack:
        fill(server, stack, 2, client="127.0.0.2", steps=8, length=12)
        answer = refused(server, vector, client="127.0.0.2")
        assert (answer.status, answer.body["error"]) == (429, "too_many_requests")
        assert int(answer.response.headers["Retry-After"]) >= 1
        with server.stream(vector, client="127.0.0.3") as events:
            server.gate.let()
            assert list(events)[-1][0] == "done"
    assert server.service.worker._shares == {}


def test_a_share_is_free_again_when_a_stream_has_ended(vector):
    with serving(limits=Limits(share=1), encoder="none") as server:
        for _ in range(3):
            assert server.decode(vector)[-1][0] == "done"


def test_who_shares_an_allowance():
    def client(host: str) -> str:
        return guard.client_of({"client": (host, 1)})

    assert client("10.0.0.1") != client("10.0.0.2")
    assert client("2001:db8::1") == client("2001:db8::ffff:1")
    assert client("2001:db8::1") != client("2001:db8:0:1::1")
    assert client("::ffff:10.0.0.1") == client("10.0.0.1") != client("::ffff:10.0.0.2")
    assert guard.client_of({"client": None}) == "unknown"


def test_one_client_cannot_hold_every_place_and_the_page_can_compare():
    limits = Limits()
    assert len(strategies.BUILT_IN) < limits.share <= limits.capacity // 4


def test_a_header_does_not_change_whose_share_is_used(vector):
    with serving(limits=Limits(capacity=1, share=1), encoder="none") as server, ExitStack() as stack:
        fill(server, stack, 1, steps=8, length=12)
        answer = server.http.post("/decode", json={"vector": vector}, headers={"X-Forwarded-For": "10.1.2.3"})
        assert (answer.status_code, answer.json()["error"]) == (429, "too_many_requests")
        server.gate.let()


def test_the_share_of_the_encoder(server):
    embedding = server.service.embedding
    embedding._shares["127.0.0.1"] = server.service.limits.encodings_share
    try:
        answer = server.http.post("/encode", json={"text": "hello"})
        assert (answer.status_code, answer.json()["error"]) == (429, "too_many_requests")
        assert "Retry-After" in answer.headers
    finally:
        del embedding._shares["127.0.0.1"]
    assert server.http.post("/encode", json={"text": "hello"}).status_code == 200
    assert embedding._shares == {}


def test_the_share_of_requests_under_way(vector):
    with serving(limits=Limits(connections_share=2), encoder="none") as server, ExitStack() as stack:
        guarded = server.server.config.loaded_app
        fill(server, stack, 1, client="127.0.0.2", steps=8, length=12)
        assert guarded._shares["127.0.0.2"] == 1
        guarded._shares["127.0.0.2"] += 1
        answer = refused(server, vector, client="127.0.0.2")
        assert (answer.status, answer.body["error"]) == (429, "too_many_requests")
        guarded._shares["127.0.0.2"] -= 1
        server.gate.let()
        assert server.http.get("/queue").status_code == 200


def connect(server, *addresses: str) -> list[socket.socket]:
    place = urlsplit(server.url)
    here = [(address, 0) for address in addresses]
    return [socket.create_connection((place.hostname, place.port), 20, source_address=one) for one in here]


def closed(line: socket.socket) -> bool:
    """Whether the server has closed it, with or without a word."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: loc", "after an answer"])
def test_a_connection_that_does_not_say_what_it_wants_is_closed(sent):
    with serving(limits=Limits(header_seconds=0.3), encoder="none") as server:
        (line,) = connect(server, "127.0.0.1")
        with line:
            if sent == "after an answer":  # uvicorn's own clock stops at the first byte
                line.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = http.client.HTTPResponse(line)
                answer.begin()
                assert answer.read()
                sent = b"G"
            line.sendall(sent)
            began = time.monotonic()
            assert closed(line)
            assert time.monotonic() - began < 4  # the time for silence after an answer is 5


def test_the_time_for_the_head_is_not_that_of_the_answer(vector):
    with serving(limits=Limits(header_seconds=0.3), encoder="none") as server:
        server.gate.hold()
        with server.stream(vector) as events:
            time.sleep(0.6)
            server.gate.let()
            assert list(events)[-1][0] == "done"


def test_the_number_of_connections():
    with (
        serving(limits=Limits(open_connections=4, connections_share=3), encoder="none") as server,
        ExitStack() as stack,
    ):
        server.http.close()
        server.until(lambda: not server.server.server_state.connections)
        lines = [stack.enter_context(line) for line in connect(server, *["127.0.0.2"] * 4)]
        assert closed(lines[3]), "one client has more than its share"
        others = [stack.enter_context(line) for line in connect(server, "127.0.0.3", "127.0.0.4")]
        assert closed(others[1]), "there are more than may be open"
        others[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = http.client.HTTPResponse(others[0])
        answer.begin()
        assert answer.status == 200


def test_a_body_that_says_it_is_too_large_is_not_read():
    with serving(limits=Limits(body_bytes=2_000), encoder="none") as server:
        answer = server.http.post("/invert", json={"vectors": [[0.123456] * DIM] * 100})
        assert (answer.status_code, answer.json()["error"]) == (413, "body_too_large")
        assert "2000 bytes" in answer.json()["message"]


def test_a_body_that_does_not_say_its_size_is_counted():
    with serving(limits=Limits(body_bytes=2_000), encoder="none") as server:

        def endless():
            for _ in range(100):
                yield b" " * 100

        answer = server.http.post("/decode", content=endless(), headers={"Content-Type": "application/json"})
        assert (answer.status_code, answer.json()["error"]) == (413, "body_too_large")


def test_a_body_that_does_not_come_is_dropped():
    with serving(limits=Limits(body_seconds=0.2), encoder="none") as server:
        place = urlsplit(server.url)
        with socket.create_connection((place.hostname, place.port), timeout=20) as line:
            line.sendall(b"POST /decode HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            answer = http.client.HTTPResponse(line)
            answer.begin()
            assert answer.status == 408
            assert json.loads(answer.read())["error"] == "too_slow"


def test_the_length_of_a_text(server):
    most = server.service.limits.text_chars
    assert server.http.post("/encode", json={"text": "x" * most}).status_code == 200
    answer = server.http.post("/encode", json={"text": "x" * (most + 1)})
    assert (answer.status_code, answer.json()["error"]) == (422, "text_too_long")


def test_the_number_of_vectors(vector):
    with serving(limits=Limits(vectors=3), encoder="none") as server:
        assert server.http.post("/invert", json={"vectors": [vector] * 3}).status_code == 200
        answer = server.http.post("/invert", json={"vectors": [vector] * 4})
        assert (answer.status_code, answer.json()["error"]) == (422, "too_many_vectors")


def test_the_duration_of_a_stream_running_or_waiting(vector):
    with serving(limits=Limits(capacity=1, stream_seconds=40), encoder="none") as server, ExitStack() as stack:
        streams = fill(server, stack, 2, steps=8, length=12)
        worker = server.service.worker
        jobs = [*worker._streams, *(job for job, _, _ in worker._running.values())]
        assert all(abs(job.expires - job.submitted - 40) < 1 for job in jobs)
        for job in jobs:
            job.expires = time.monotonic()  # the 40 seconds are over
        server.gate.let(1)  # the pass under way ends
        assert [list(events)[-1][1]["error"] for events in streams] == ["took_too_long"] * 2
        server.gate.let()
        assert server.decode(vector)[-1][0] == "done"


def test_a_client_that_does_not_read_is_cut_off(vector, monkeypatch):
    """Its text is decoded and forgotten; the connection must not stay for ever."""
    monkeypatch.setattr(guard, "MARGIN", 0.0)
    with serving(limits=Limits(stream_seconds=0.4), encoder="none") as server:
        server.gate.hold()
        with pytest.raises(Exception, match=r"incomplete|closed|peer"), server.stream(vector) as events:
            list(events)
        server.gate.let()
        server.until(lambda: server.queue()["running"] == 0)


def test_the_number_of_requests_under_way(vector):
    with serving(limits=Limits(connections=2), encoder="none") as server, ExitStack() as stack:
        server.gate.hold()
        for one in make_vectors(2):
            stack.enter_context(server.stream(one))
        answer = server.http.get("/queue")
        assert (answer.status_code, answer.json()["error"]) == (503, "busy")
        assert "Retry-After" in answer.headers
        server.gate.let()


def test_a_busy_encoder_refuses_texts_and_costs_streams_only_their_cosine(server, vector, monkeypatch):
    monkeypatch.setattr(server.service.embedding, "_asked", server.service.limits.encodings)
    answer = server.http.post("/encode", json={"text": "hello"})
    assert (answer.status_code, answer.json()["error"]) == (503, "queue_full")
    assert "Retry-After" in answer.headers
    assert server.decode(vector)[-1][1]["cosine"] is None


@pytest.mark.parametrize("name", Limits.__slots__)
def test_a_limit_of_nothing_is_refused(name):
    with pytest.raises(ConfigError, match=name):
        Limits(**{name: 0})


def test_more_vectors_than_any_request_may_have():
    with pytest.raises(ConfigError, match="up to 1024"):
        Limits(vectors=5000)
