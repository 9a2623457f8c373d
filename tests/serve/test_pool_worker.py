"""The worker: shared passes, the line, who goes first, and what happens when a client or the net fails.

Each test holds the gate before a pass, so that what waits and what runs is known and not a matter of time.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from tests.decode.conftest import make_inverter, make_vectors
from tests.serve.conftest import PATIENCE, serving
from unembed.serve.limits import Limits
from unembed.serve.worker import Worker, use_threads


def test_concurrent_decodes_share_passes():
    """Ten clients at once cost as many passes as the longest of them, not as all together."""
    vectors = make_vectors(10)
    with serving(limits=Limits(share=10), encoder="none") as server, ThreadPoolExecutor(10) as threads:
        alone = [server.decode(vector, steps=6, length=8)[-1][1] for vector in vectors]
        server.gate.hold()
        before, wanted = server.gate.passes, server.gate.wanted
        answers = [threads.submit(server.decode, vector, steps=6, length=8) for vector in vectors]
        server.until(lambda: server.gate.wanted > wanted)  # the first waits at the gate, others come
        server.until(lambda: server.queue()["waiting"] + server.queue()["running"] == 10)
        server.gate.let()
        together = [answer.result(PATIENCE)[-1][1] for answer in answers]
        assert [one["text"] for one in together] == [one["text"] for one in alone]
        assert all(one["passes"] == 6 for one in together)
        assert server.gate.passes - before <= 6 + 1  # the first had a pass to itself


def test_the_line_moves_and_says_so(gated, monkeypatch):
    """Two run, three wait; each that waits hears of every place it gains, and nobody overtakes."""
    worker, started = gated.service.worker, []
    real = worker._add
    monkeypatch.setattr(worker, "_add", lambda job: (started.append(job.submitted), real(job)))
    vectors = make_vectors(5)
    gated.gate.hold()
    with ExitStack() as stack:
        streams = []
        for count, vector in enumerate(vectors, 1):
            streams.append(stack.enter_context(gated.stream(vector, steps=3, length=6, strategy="sequential")))
            gated.until(lambda n=count: gated.queue()["running"] + gated.queue()["waiting"] == n)
            if count == 2:  # a place is taken between two passes: the second waits for the pass at the gate to end
                gated.gate.let(1)
                gated.until(lambda: gated.queue()["running"] == 2)
        gated.until(lambda: gated.queue() == {"waiting": 3, "running": 2, "capacity": 2, "limit": 3})
        gated.gate.let()
        heard = [list(events) for events in streams]
    places = [[data["position"] for name, data in events if name == "queued"] for events in heard]
    assert all(line[-1] == 0 for line in places)
    assert all(line == sorted(line, reverse=True) for line in places)
    assert [line[0] for line in places[2:]] == [1, 2, 3]
    assert [events[-1][0] for events in heard] == ["done"] * 5
    assert started == sorted(started), "somebody overtook"


def test_the_expected_wait_is_measured(gated):
    """A text takes so long, places become free evenly: that, times the place in the line."""
    worker = gated.service.worker
    seconds = worker._text_seconds
    assert seconds > 0
    assert worker._wait(4) == pytest.approx(4 * seconds / 2)


def test_a_client_that_goes_away_frees_its_place_at_the_next_step(gated):
    gated.gate.hold()
    vectors = make_vectors(3)
    with ExitStack() as stack:
        first = [gated.stream(vector, steps=8, length=12) for vector in vectors[:2]]
        for stream in first:
            stack.enter_context(stream)
        gated.gate.let(2)
        gated.until(lambda: gated.queue()["running"] == 2)
        third = stack.enter_context(gated.stream(vectors[2], steps=2))
        gated.until(lambda: gated.queue()["waiting"] == 1)
        first[0].__exit__(None, None, None)
        job = next(iter(gated.service.worker._running.values()))[0]
        gated.until(lambda: job.gone, "the server does not see that the client left")
        assert gated.queue()["waiting"] == 1
        gated.gate.let(1)  # the pass under way ends; before the next one the place changes hands
        gated.until(lambda: gated.queue() == {"waiting": 0, "running": 2, "capacity": 2, "limit": 3})
        assert len(gated.service.worker._pool) == 2
        gated.gate.let()
        assert list(third)[-1][0] == "done"
        first[1].__exit__(None, None, None)
    gated.until(lambda: gated.queue()["running"] == 0)
    assert gated.service.worker._shares == {}


def test_one_that_waits_can_leave_too(gated):
    gated.gate.hold()
    with ExitStack() as stack:
        for vector in make_vectors(2):
            stack.enter_context(gated.stream(vector))
        gated.gate.let(2)
        gated.until(lambda: gated.queue()["running"] == 2)
        with gated.stream(make_vectors(1)[0]):
            gated.until(lambda: gated.queue()["waiting"] == 1)
        gated.until(lambda: gated.service.worker._streams[0].gone)
        gated.gate.let(1)
        gated.until(lambda: gated.queue()["waiting"] == 0)
        gated.gate.let()


def test_a_batch_whose_client_left_is_dropped(gated):
    gated.gate.hold()
    body = {"vectors": make_vectors(20).tolist()}
    with pytest.raises(Exception, match="timed out"):
        gated.http.post("/invert", json=body, timeout=0.3)
    job = next(iter(gated.service.worker._running.values()))[0]
    gated.until(lambda: job.gone)
    gated.gate.let(1)
    gated.until(lambda: gated.queue()["running"] == gated.queue()["waiting"] == 0)
    gated.gate.let()


def test_a_batch_does_not_starve_streams(gated):
    """A stream that comes behind a batch of 16 texts, which needs 16 rounds of passes alone, ends within its own."""
    gated.gate.hold()
    body = {"vectors": make_vectors(16).tolist(), "steps": 4, "length": 6}
    with ThreadPoolExecutor(1) as threads:
        batch = threads.submit(gated.http.post, "/invert", json=body)
        gated.until(lambda: gated.queue()["running"] == 1)
        with gated.stream(make_vectors(1, seed=9)[0], steps=4, length=6) as events:
            gated.gate.let(1 + 4)  # the pass that it missed, then its own
            assert list(events)[-1][0] == "done"
        assert not batch.done()
        gated.gate.let()
        assert len(batch.result(PATIENCE).json()["results"]) == 16


def test_batches_leave_half_of_the_places(gated):
    gated.gate.hold()
    with ThreadPoolExecutor(1) as threads:
        batch = threads.submit(gated.http.post, "/invert", json={"vectors": make_vectors(6).tolist()})
        gated.until(lambda: gated.queue()["running"] == 1)
        with gated.stream(make_vectors(1)[0]) as events:
            gated.gate.let(1)
            gated.until(lambda: gated.queue()["running"] == 2)
            gated.gate.let()
            assert list(events)[-1][0] == "done"
        assert batch.result(PATIENCE).status_code == 200


def test_n_best_is_stepped_with_the_streams(gated):
    """Its texts take places as all others do: a stream beside it waits for no pass but those it takes part in."""
    gated.gate.hold()
    body = {"vectors": make_vectors(2).tolist(), "n_best": 3, "steps": 4, "length": 6}
    with ThreadPoolExecutor(1) as threads:
        batch = threads.submit(gated.http.post, "/invert", json=body)
        gated.until(lambda: gated.queue()["running"] == 1, "n-best does not count as running")
        assert gated.queue()["waiting"] == 1
        with gated.stream(make_vectors(1, seed=9)[0], steps=4, length=6) as events:
            gated.gate.let(1 + 4)  # the pass that it missed, then its own
            assert list(events)[-1][0] == "done"
        assert not batch.done()
        gated.gate.let()
        assert len(batch.result(PATIENCE).json()["results"]) == 2


def test_n_best_whose_client_left_is_dropped_at_the_next_step(gated):
    gated.gate.hold()
    body = {"vectors": make_vectors(1).tolist(), "n_best": 5, "steps": 128, "length": 12}
    with pytest.raises(Exception, match="timed out"):
        gated.http.post("/invert", json=body, timeout=0.5)
    job = next(iter(gated.service.worker._running.values()))[0]
    gated.until(lambda: job.gone)
    before = gated.gate.passes
    gated.gate.let()
    gated.until(lambda: gated.queue()["running"] == gated.queue()["waiting"] == 0)
    assert gated.gate.passes - before <= 2


def test_batches_take_turns(gated):
    """One text of each: a batch of one that comes behind a batch of ten ends long before it."""
    gated.gate.hold()
    with ThreadPoolExecutor(2) as threads:
        long = threads.submit(gated.http.post, "/invert", json={"vectors": make_vectors(10).tolist(), "length": 3})
        gated.until(lambda: gated.queue()["running"] == 1)
        short = threads.submit(gated.http.post, "/invert", json={"vectors": make_vectors(1).tolist(), "length": 3})
        gated.until(lambda: gated.queue()["waiting"] == 2)
        gated.gate.let(3 * 3)
        assert short.result(PATIENCE).status_code == 200
        assert not long.done()
        gated.gate.let()
        assert len(long.result(PATIENCE).json()["results"]) == 10


def test_one_bad_question_leaves_the_other_streams_alone(gated, monkeypatch):
    """A pass that fails for all is repeated for each."""
    from unembed.decode import pool

    real = pool.answer

    def picky(net, asks):
        if any(ask.sampling.temperature == 0.5 for ask in asks):
            raise IndexError
        return real(net, asks)

    monkeypatch.setattr(pool, "answer", picky)
    gated.gate.hold()
    vectors = make_vectors(2)
    with gated.stream(vectors[0], steps=8, length=12) as good:
        gated.until(lambda: gated.queue()["running"] == 1)
        with gated.stream(vectors[1], temperature=0.5) as bad:
            gated.gate.let()
            assert list(bad)[-1][1]["error"] == "internal"
        assert list(good)[-1][0] == "done"
    assert gated.service.worker._shares == {}


def test_a_worker_that_dies_tells_all_and_is_seen(vector, monkeypatch, caplog):
    with serving(limits=Limits(capacity=1, queue=3), encoder="none") as server:
        server.gate.hold()
        worker = server.service.worker
        with server.stream(vector) as running:
            server.until(lambda: server.queue()["running"] == 1)
            with server.stream(vector) as waiting:
                server.until(lambda: server.queue()["waiting"] == 1)
                monkeypatch.setattr(worker, "_announce", lambda: 1 / 0)
                server.gate.let()
                assert list(running)[-1][1]["error"] == "internal"
                assert list(waiting)[-1][1]["error"] == "internal"
        assert server.http.get("/health").json()["status"] == "failed"
        answer = server.http.post("/decode", json={"vector": vector})
        assert (answer.status_code, answer.json()["error"]) == (503, "failed")
        assert worker._shares == {}
    assert "ZeroDivisionError at" in caplog.text


def test_a_thread_that_is_gone_without_a_word_is_seen(vector):
    with serving(encoder="none") as server:
        worker = server.service.worker
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        real, worker._thread = worker._thread, thread
        assert server.http.get("/health").json()["status"] == "failed"
        worker._thread = real


def test_nobody_is_told_to_wait_while_places_are_free():
    """Five that come during one pass all start at the next one: none of them has a number in a line."""
    with serving(limits=Limits(capacity=8, share=100), encoder="none") as server, ExitStack() as stack:
        server.gate.hold()
        streams = []
        for number, vector in enumerate(make_vectors(6), 1):
            streams.append(stack.enter_context(server.stream(vector)))
            server.until(lambda n=number: server.queue()["running"] + server.queue()["waiting"] == n)
        server.gate.let()
        heard = [[data["position"] for name, data in events if name == "queued"] for events in streams]
        assert heard == [[0]] * 6


def test_a_fault_in_a_strategy_ends_that_text_only(server_with_a_fault):
    server, vectors = server_with_a_fault
    with ThreadPoolExecutor(2) as threads:
        good = threads.submit(server.decode, vectors[0])
        bad = threads.submit(server.decode, vectors[1], strategy="faulty")
        assert bad.result(PATIENCE)[-1] == (
            "error",
            {"error": "internal", "message": "the server failed at this request: its log names the place"},
        )
        assert good.result(PATIENCE)[-1][0] == "done"
    assert server.decode(vectors[0])[-1][0] == "done"
    assert server.queue()["running"] == 0
    assert server.service.worker._shares == {}


@pytest.fixture
def server_with_a_fault(monkeypatch):
    from unembed.decode import strategies

    real_load, real_names = strategies.load, strategies.names()

    def faulty(batch, config):
        yield from ()
        raise ValueError("a text that nobody should see")

    monkeypatch.setattr(strategies, "load", lambda name: faulty if name == "faulty" else real_load(name))
    monkeypatch.setattr(strategies, "names", lambda: (*real_names, "faulty"))
    with serving(encoder="none") as server:
        yield server, make_vectors(2)


def test_a_fault_in_a_pass_ends_what_runs_and_no_more(gated, vector, monkeypatch, caplog):
    net = gated.service.inverter.artifact.net
    with monkeypatch.context() as patch:
        patch.setattr(net, "place_logits", lambda hidden, words: 1 / 0)
        name, data = gated.decode(vector)[-1]
    assert (name, data["error"]) == ("error", "internal")
    assert "ZeroDivisionError at" in caplog.text
    assert gated.decode(vector)[-1][0] == "done"
    assert gated.http.post("/invert", json={"vectors": [vector], "n_best": 2}).status_code == 200


def test_a_fault_in_a_batch_answers_500_and_no_more(gated, vector, monkeypatch):
    body = {"vectors": [vector] * 3, "n_best": 2}
    with monkeypatch.context() as patch:
        patch.setattr(gated.service.inverter.artifact.net, "place_logits", lambda hidden, words: 1 / 0)
        refused = gated.http.post("/invert", json=body)
    assert (refused.status_code, refused.json()["error"]) == (500, "internal")
    assert gated.http.post("/invert", json=body).status_code == 200
    assert gated.queue()["running"] == gated.queue()["waiting"] == 0
    assert gated.service.worker._shares == {}


def test_stopping_tells_who_waits_at_once_and_who_runs_after_the_grace(gated):
    gated.gate.hold()
    with ExitStack() as stack:
        running = [stack.enter_context(gated.stream(vector, steps=8, length=12)) for vector in make_vectors(2)]
        gated.gate.let(2)
        gated.until(lambda: gated.queue()["running"] == 2)
        waiting = stack.enter_context(gated.stream(make_vectors(1)[0]))
        gated.until(lambda: gated.queue()["waiting"] == 1)
        gated.service.worker.stop(grace=0.3)
        assert gated.http.get("/health").json()["status"] == "stopping"
        refused = gated.http.post("/invert", json={"vectors": make_vectors(1).tolist()})
        assert (refused.status_code, refused.json()["error"]) == (503, "stopping")
        gated.gate.let(1)
        assert list(waiting)[-1][1]["error"] == "stopping"
        time.sleep(0.4)
        gated.gate.let()
        assert [list(events)[-1][1]["error"] for events in running] == ["stopping"] * 2
    assert gated.service.worker.join(PATIENCE)


def test_stopping_lets_a_short_stream_end(gated, vector):
    gated.gate.hold()
    with gated.stream(vector) as events:
        gated.until(lambda: gated.queue()["running"] == 1)
        gated.service.worker.stop(grace=PATIENCE)
        gated.gate.let()
        assert list(events)[-1][0] == "done"


def test_the_event_loop_is_never_behind_the_net(gated, vector):
    """While a pass takes its time, the rest of the server answers."""
    gated.gate.hold()
    with gated.stream(vector):
        gated.until(lambda: gated.queue()["running"] == 1)
        began = time.monotonic()
        assert gated.http.get("/health").status_code == 200
        assert time.monotonic() - began < 5
        gated.gate.let()


def test_the_worker_can_be_stopped_before_it_has_work():
    worker = Worker(make_inverter(), Limits())
    worker._thread.start()
    worker.stop(0)
    assert worker.join(PATIENCE)
    assert threading.active_count() < 50


def test_decoder_and_encoder_keep_their_own_number_of_threads():
    """torch hands the number that was set last to every thread that has not settled yet."""
    before, found, settled = torch.get_num_threads(), {}, threading.Barrier(2)

    def work(count: int) -> None:
        use_threads(count)
        settled.wait(PATIENCE)
        found[count] = torch.get_num_threads()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, [1, 3]))
    use_threads(before)
    assert found == {1: 1, 3: 3}
