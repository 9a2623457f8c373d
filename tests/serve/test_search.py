"""Encoder feedback over HTTP: better texts after the decoded one, within bounds."""

from __future__ import annotations

import threading
import time

import pytest

from tests.decode.conftest import make_inverter
from tests.serve.conftest import LetterEncoder, Refused, serving
from unembed.data import encoders
from unembed.errors import EncoderError
from unembed.serve import run
from unembed.serve.limits import Limits

SENTENCE = "the cat sat on the mat"


class Watched(LetterEncoder):
    """Counts what it is asked, and can be held or broken."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.held, self.free, self.fails_after = 0, threading.Event(), threading.Event(), None
        self.free.set()

    def encode(self, texts):
        if threading.current_thread().name.startswith("unembed-search"):
            self.held.set()
            assert self.free.wait(30)
            self.asked += len(texts)
            if self.fails_after is not None and self.asked > self.fails_after:
                raise EncoderError("gone")
        return super().encode(texts)


@pytest.fixture
def encoder(monkeypatch):
    watched = Watched()
    monkeypatch.setattr(encoders, "load", lambda spec: watched)
    return watched


@pytest.fixture
def vector(encoder):
    return encoder.encode([SENTENCE])[0].tolist()


def test_better_texts_follow_the_decoded_one(encoder, vector):
    with serving(limits=Limits(search_budget=40)) as server:
        assert server.http.get("/models").json()["models"][0]["feedback"] is True
        plain, events = server.decode(vector), server.decode(vector, feedback=True)
        done, before = events[-1][1], plain[-1][1]
        assert 0 < done["encoder_queries"] <= 40
        assert encoder.asked <= 40
        assert done["check_queries"] == 0
        assert done["cosine"] >= before["cosine"]
        steps = [data for name, data in events if name == "step"]
        assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
        assert steps[-1]["text"] == done["text"]
        assert done["tokens"] == steps[-1]["tokens"]


def test_without_an_encoder_there_is_no_feedback(encoder, vector):
    with serving(encoder="none") as server:
        assert server.http.get("/models").json()["models"][0]["feedback"] is False
        with pytest.raises(Refused) as refused:
            server.decode(vector, feedback=True)
        assert (refused.value.status, refused.value.body["error"]) == (422, "no_feedback")


def test_searches_are_bounded_and_a_place_comes_back(encoder, vector):
    with serving(limits=Limits(searches=1, search_budget=10)) as server:
        encoder.free.clear()
        with server.stream(vector, feedback=True) as events:
            next(events)
            assert encoder.held.wait(30)
            with pytest.raises(Refused) as refused:
                server.decode(vector, feedback=True)
            assert (refused.value.status, refused.value.body["error"]) == (503, "queue_full")
            assert server.decode(vector)[-1][0] == "done"  # decoding goes on meanwhile
            encoder.free.set()
            assert [name for name, _ in events][-1] == "done"
        assert server.decode(vector, feedback=True)[-1][0] == "done"


def test_one_client_cannot_take_every_place(encoder, vector):
    with serving(limits=Limits(searches=2, searches_share=1, search_budget=10)) as server:
        encoder.free.clear()
        with server.stream(vector, feedback=True) as events:
            next(events)
            assert encoder.held.wait(30)
            with pytest.raises(Refused) as refused:
                server.decode(vector, feedback=True)
            assert (refused.value.status, refused.value.body["error"]) == (429, "too_many_requests")
            with server.stream(vector, client="127.0.0.2", feedback=True) as others:
                next(others)
                encoder.free.set()
                assert [name for name, _ in others][-1] == "done"


def test_the_end_of_the_server_is_told_to_who_searches_and_who_waits(encoder, vector, monkeypatch):
    monkeypatch.setattr(run, "CLOSE_SECONDS", 25)  # nobody is to wait for the connections to be closed
    with serving(limits=Limits(search_budget=100_000)) as server:
        encoder.free.clear()
        with (
            server.stream(vector, feedback=True) as running,
            server.stream(vector, client="127.0.0.2", feedback=True) as waiting,
        ):
            next(running), next(waiting)
            assert encoder.held.wait(30)
            server.server.should_exit = True
            server.until(lambda: server.service.status == "stopping")
            encoder.free.set()
            began = time.monotonic()
            ends = [list(events)[-1] for events in (running, waiting)]
        assert [(name, data["error"]) for name, data in ends] == [("error", "stopping")] * 2
        assert time.monotonic() - began < 15


def test_the_time_for_a_request_holds_for_searches_that_wait(encoder, vector):
    with serving(limits=Limits(search_budget=10, stream_seconds=3)) as server:
        encoder.free.clear()
        with server.stream(vector, feedback=True) as events:
            name, error = list(events)[-1]
        encoder.free.set()
        assert (name, error["error"]) == ("error", "took_too_long")


def test_a_client_that_goes_away_ends_its_search(encoder, vector):
    with serving(limits=Limits(searches=1, search_budget=10_000)) as server:
        with server.stream(vector, feedback=True) as events:
            while encoder.asked == 0:
                next(events)
        server.until(lambda: server.service.searches.idle, "the search goes on for nobody")
        assert encoder.asked < 10_000


def test_an_encoder_that_fails_on_the_way_leaves_the_best_so_far(encoder, vector):
    encoder.fails_after = 12
    with serving(limits=Limits(search_budget=500)) as server:
        name, done = server.decode(vector, feedback=True)[-1]
    assert name == "done"
    assert done["cosine"] is not None


def test_an_encoder_that_never_answers_is_named(encoder, vector):
    encoder.fails_after = 0
    with serving() as server:
        name, error = server.decode(vector, feedback=True)[-1]
    assert (name, error["error"]) == ("error", "encoder_failed")


def test_an_encoder_on_the_network_is_not_asked_that_often(encoder):
    encoder.name = "openai:some-model@http://127.0.0.1:1"
    inverter = make_inverter()
    with serving(inverter, encoder="test") as server:
        assert not server.service.searches.possible
