"""`unembed serve` as a process: the line it prints, how it ends, and what it says when it cannot start."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.decode.conftest import make_inverter, make_vectors
from tests.processes import unembed
from tests.serve.conftest import PATIENCE, read_events, serving
from unembed.serve.limits import Limits, stopping

pytestmark = pytest.mark.alone
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return make_inverter().save_pretrained(tmp_path_factory.mktemp("serve") / "tiny")


@contextmanager
def process(folder: Path, *more: str):
    """A running server and its address."""
    server = unembed("serve", "--inverter", folder, "--no-open", "--port", "0", "--json", *more)
    try:
        line = server.line()
        assert line, server.wait().stderr
        yield server, json.loads(line)
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGKILL)


def test_one_line_when_ready_then_an_orderly_end(folder):
    with process(folder, "--encoder", "none") as (server, where):
        assert where["url"].startswith("http://127.0.0.1:")
        assert where["model"] == "tiny"
        assert httpx2.get(where["url"] + "/health").json()["status"] == "ready"
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        done = server.wait(PATIENCE)
        assert done.returncode == 0
        assert time.monotonic() - began < 5
        assert json.loads(done.stdout) == where
        assert done.stdout.count("\n") == 1
        assert "Traceback" not in done.stderr


def test_sigterm_ends_or_tells_running_streams(folder):
    """A stream and a long batch are under way when the signal comes: both hear of it."""
    body = {"vector": make_vectors(1)[0].tolist(), "strategy": "sequential", "steps": 128, "length": 12}
    with (
        process(folder, "--encoder", "none") as (server, where),
        httpx2.Client(base_url=where["url"], timeout=PATIENCE) as http,
    ):
        batch = {"vectors": make_vectors(128).tolist(), "n_best": 5, "steps": 128}
        with http.stream("POST", "/decode", json=body) as first:
            lines = first.iter_lines()
            next(lines)
            with httpx2.Client(base_url=where["url"], timeout=PATIENCE) as other:
                request = other.build_request("POST", "/invert", json=batch)
                answers: list[int] = []
                asking = threading.Thread(target=lambda: answers.append(other.send(request).status_code))
                asking.start()
                while not httpx2.get(where["url"] + "/queue").json()["waiting"]:
                    time.sleep(0.01)
                began = time.monotonic()
                server.send_signal(signal.SIGTERM)
                last = list(read_events(lines))[-1][0]
                asking.join(PATIENCE)
            assert last in ("done", "error")
            assert answers == [503]
        assert server.wait(PATIENCE).returncode == 0
        assert time.monotonic() - began < 5


def test_sigterm_in_the_middle_of_a_long_pass_is_told_too(vector):
    """Whoever waits when the server's patience ends gets the documented answer, a stream its last event."""
    with ThreadPoolExecutor(1) as threads, serving(limits=Limits(stop_seconds=0.1), encoder="none") as server:
        server.server.config.timeout_graceful_shutdown = 0.3
        server.gate.hold()
        with server.stream(vector) as events:
            server.until(lambda: server.queue()["running"] == 1)
            with httpx2.Client(base_url=server.url, timeout=PATIENCE) as http:
                batch = threads.submit(http.post, "/invert", json={"vectors": [vector], "n_best": 2})
                server.until(lambda: server.queue()["waiting"] == 1)
                server.server.should_exit = True
                assert list(events)[-1] == ("error", {"error": "stopping", "message": stopping().message})
                answer = batch.result(PATIENCE)
                assert (answer.status_code, answer.json()["error"]) == (503, "stopping")


@pytest.mark.parametrize("when", ["_warm_up", "_announce"])
def test_a_decoder_that_dies_ends_the_command_with_one_line(folder, monkeypatch, capsys, caplog, when):
    """While it loads, or later: here when the first request comes."""
    from unembed.cli import console, main
    from unembed.serve.worker import Worker

    def ask(answer: dict) -> None:
        body = {"vector": make_vectors(1)[0].tolist()}
        threading.Thread(target=lambda: httpx2.post(answer["url"] + "/decode", json=body), daemon=True).start()

    monkeypatch.setattr(console, "print_json", ask)
    monkeypatch.setattr(Worker, when, lambda _: 1 / 0)
    before = signal.getsignal(signal.SIGTERM)
    try:
        code = main(["serve", "--inverter", str(folder), "--port", "0", "--no-open", "--encoder", "none", "--json"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert code == 1
    ours = [record for record in caplog.records if record.name.startswith("unembed")]
    (line,) = [record.getMessage() for record in ours if record.levelno >= logging.WARNING]
    assert "the decoder failed (ZeroDivisionError at" in line
    assert capsys.readouterr().err == ""


def test_a_host_name_goes_with_the_url_that_is_printed(folder):
    """The machine's own name may stand for another loopback address, or for one on the network."""
    name = socket.gethostname()
    try:
        socket.gethostbyname(name)
    except OSError:
        pytest.skip("this machine does not know its own name")
    with process(folder, "--encoder", "none", "--host", name) as (_, where):
        assert httpx2.get(where["url"] + "/health").status_code == 200


def test_ctrl_c_is_130_as_everywhere(folder):
    with process(folder, "--encoder", "none") as (server, _):
        server.send_signal(signal.SIGINT)
        done = server.wait(PATIENCE)
        assert done.returncode == 130
        assert "unembed: stopped." in done.stderr
        assert "Traceback" not in done.stderr


def test_another_host_is_said_in_one_line(folder):
    with process(folder, "--encoder", "none", "--host", "0.0.0.0") as (server, where):
        assert where["url"].startswith("http://localhost:")
        server.send_signal(signal.SIGTERM)
        (line,) = server.wait(PATIENCE).stderr.splitlines()
        assert "--host 0.0.0.0" in line
        assert "without a password" in line


def test_a_port_in_use_is_one_line_and_exit_2(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = unembed("serve", "--inverter", folder, "--no-open", "--port", port).wait(60)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"port {port} is in use" in line
    assert "--port" in line
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--port", "99999"], "65535"),
        (["--host", "no.such.host.invalid"], "not known"),
        (["--host", "203.0.113.7"], "cannot listen"),
        (["--queue", "0"], "queue"),
        (["--inverter", "/no/such/folder"], "no inverter folder"),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_2(folder, arguments, hint, capsys):
    from unembed.cli import main

    defaults = {"--inverter": str(folder), "--port": "0"}
    options = {**defaults, **dict([arguments])}
    assert main(["serve", "--no-open", *(word for pair in options.items() for word in pair)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert hint in line


def test_the_extra_is_named_when_it_is_missing(monkeypatch, capsys):
    from unembed.cli import main

    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve"]) == 2
    assert "pip install 'unembed[serve]'" in capsys.readouterr().err


def test_the_shipped_inverter_answers_from_a_text():
    """Text to vector to text with the real weights; the first step comes within a second on a free machine."""
    pytest.importorskip("unembed.data.encoders.minilm").model_folder()
    with (
        subprocess.Popen(
            [sys.executable, "-m", "unembed", "serve", "--port", "0", "--json", "--no-open"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ},
        ) as server,
    ):
        try:
            url = json.loads(server.stdout.readline())["url"]
            with httpx2.Client(base_url=url, timeout=60) as http:
                vector = http.post("/encode", json={"text": "The parcel will arrive on Tuesday."}).json()["vector"]
                began = time.monotonic()
                with http.stream("POST", "/decode", json={"vector": vector}) as response:
                    events = read_events(response.iter_lines())
                    first = next(data for name, data in events if name == "step")
                    waited = time.monotonic() - began
                    done = list(events)[-1][1]
                assert first["step"] == 1
                assert waited < 5  # generous: tests share the machine
                assert done["cosine"] > 0.3
                assert done["check_queries"] == 1
        finally:
            server.terminate()
            assert server.wait(PATIENCE) == 0
