"""Serving: many clients at once against the same clients one after another, through a real server process.

    python benchmarks/serve.py -o serve.json                         # the shipped inverter
    python benchmarks/serve.py --inverter FOLDER --clients 32

Each client sends one vector to `POST /decode` and reads its stream to the end. Concurrent streams share forward
passes, so all at once must take far less than their sum: `ratio` is (all at once) / (one after another), of the best
round of each. The texts of both must be the same. Also measured: the time from a request to its first step on an idle
server, and the slowest answer of `/health` while all clients are at work.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from unembed.measure.provenance import cpu_name

SECONDS = 600.0
# One for all: to make one reads certificates for 40 ms, on the cores that the server is measured on.
HTTP = httpx2.Client(timeout=SECONDS, verify=False, limits=httpx2.Limits(max_connections=None))


@contextmanager
def server(inverter: str, share: int) -> Iterator[tuple[int, str]]:
    """A server process of its own, and its address."""
    command = [sys.executable, "-m", "unembed", "serve", "--inverter", inverter, "--port", "0", "--no-open", "--json"]
    command += ["--share", str(share)]  # all clients have one address here
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            sys.exit("the server did not start: its message is above")
        try:
            yield process.pid, json.loads(line)["url"]
        finally:
            process.terminate()


def decode(url: str, vector: list[float], settings: dict[str, Any]) -> tuple[str, float]:
    """The text of one stream, and the seconds to its first step."""
    began, first, text = time.perf_counter(), 0.0, ""
    with HTTP.stream("POST", f"{url}/decode", json={"vector": vector, **settings}) as response:
        if response.status_code != 200:
            response.read()
            sys.exit(f"the server refused ({response.status_code}): {response.text}")
        name = ""
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line[7:]
                first = first or (time.perf_counter() - began if name == "step" else 0.0)
            elif line.startswith("data: ") and name == "done":
                text = json.loads(line[6:])["text"]
            elif line.startswith("data: ") and name == "error":
                sys.exit(f"a stream failed: {line[6:]}")
    return text, first


def make_vectors(url: str, count: int) -> list[list[float]]:
    """Of example sentences where the server has an encoder, else random ones of length 1."""
    health = HTTP.get(f"{url}/health").json()
    if health["encoder"]:
        texts: set[str] = set()
        while len(texts) < min(count, 40):
            texts.add(HTTP.get(f"{url}/random").json()["text"])
        found = [HTTP.post(f"{url}/encode", json={"text": text}).json()["vector"] for text in sorted(texts)]
        return [found[k % len(found)] for k in range(count)]
    vectors = np.random.default_rng(0).normal(size=(count, health["dim"]))
    rows: list[list[float]] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).tolist()
    return rows


class Pulse:
    """Asks /health all the time and remembers the slowest answer."""

    def __init__(self, url: str) -> None:
        self.slowest, self._url, self._end = 0.0, url, threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _ask(self) -> None:
        HTTP.get(f"{self._url}/health")
        while not self._end.wait(0.02):
            began = time.perf_counter()
            HTTP.get(f"{self._url}/health")
            self.slowest = max(self.slowest, time.perf_counter() - began)


def measure(url: str, clients: int, rounds: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Seconds of both ways, and what else there is to know."""
    vectors = make_vectors(url, clients)
    decode(url, vectors[0], settings)  # warm up
    in_turn, at_once, firsts, slowest = [], [], [], 0.0
    differ = 0
    for _ in range(rounds):
        began = time.perf_counter()
        alone = [decode(url, vector, settings) for vector in vectors]
        in_turn.append(time.perf_counter() - began)
        firsts += [first for _, first in alone]
        with ThreadPoolExecutor(clients) as threads, Pulse(url) as pulse:
            began = time.perf_counter()
            together = list(threads.map(lambda vector: decode(url, vector, settings), vectors))
            at_once.append(time.perf_counter() - began)
        slowest = max(slowest, pulse.slowest)
        differ += sum(a != b for (a, _), (b, _) in zip(alone, together, strict=True))
    return {
        "clients": clients,
        "rounds": rounds,
        "one_after_another_seconds": round(min(in_turn), 3),
        "at_once_seconds": round(min(at_once), 3),
        "ratio": round(min(at_once) / min(in_turn), 3),
        "texts_that_differ": differ,
        "first_step_seconds": {"median": round(statistics.median(firsts), 3), "slowest": round(max(firsts), 3)},
        "health_slowest_seconds": round(slowest, 3),
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="file for the JSON; standard output without")
    parser.add_argument("--inverter", default="default", help="folder; the shipped one without")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--strategy", default="confidence")
    parser.add_argument("--goal", type=float, default=1 / 3, help="exit with 1 when the ratio is above this")
    options = parser.parse_args()

    settings = {"steps": options.steps, "strategy": options.strategy}
    with server(options.inverter, options.clients) as (_, url):
        health = HTTP.get(f"{url}/health").json()
        report = {
            "benchmark": "serve",
            "model": health["model"],
            "versions": health["versions"],
            "machine": f"{cpu_name()}, {platform.machine()}",
            **settings,
            **measure(url, options.clients, options.rounds, settings),
        }
    text = json.dumps(report, indent=2)
    if options.output:
        options.output.write_text(text + "\n")
    else:
        print(text)
    if report["texts_that_differ"]:
        sys.exit(f"{report['texts_that_differ']} texts differ from those decoded alone")
    if report["ratio"] > options.goal:
        sys.exit(f"all at once take {report['ratio']} of one after another, the goal is {options.goal:.3f}")


if __name__ == "__main__":
    main()
