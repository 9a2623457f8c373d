"""Encoder feedback: 64 vectors searched at once against one at a time, on a local encoder and on one behind a network.

    python benchmarks/feedback.py -o feedback.json

Both arms run the same searches with the same budget. On a local encoder the gain is that of larger matrix products
only: a single search already fills and embeds the proposals of a round together, and a CPU of few cores is busy with
those; `shares` says where the seconds go, `cpu_ratio` what is gained in CPU time. Behind a
network every call waits (`--latency`), and a batch waits as often as one vector does; but the denoiser's work stays.
The goal of 5 is for a machine on which a pass over 12 texts and one over 768 take about the same time (a GPU); one
thread beside other work reached 1.4 in CPU time (24 vectors, budget 30).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import unembed
from unembed.data.encoders import Encoder
from unembed.decode import DecodeConfig
from unembed.decode.feedback import FeedbackConfig
from unembed.decode.feedback.refill import Filler
from unembed.decode.feedback.runner import Runner
from unembed.inverter import Inverter

Vectors = npt.NDArray[np.float32]
WORDS = (
    "the river was slow and wide in summer a doctor asked for new results of every test before friday we sold our "
    "old house near station last year please send me your report about costs they found three small stones under it"
)


class Watched:
    """An encoder that adds a wait to every call, and adds up its own time."""

    def __init__(self, encoder: Encoder, latency: float) -> None:
        self.name, self.dim, self.normalized, self.fingerprint = encoder.name, encoder.dim, True, encoder.fingerprint
        self._encoder, self._latency = encoder, latency
        self.seconds, self.calls, self.texts = 0.0, 0, 0

    def encode(self, texts: list[str]) -> Vectors:
        """As the encoder does it."""
        began = time.perf_counter()
        time.sleep(self._latency)
        rows = self._encoder.encode(texts)
        self.seconds += time.perf_counter() - began
        self.calls += 1
        self.texts += len(texts)
        return rows


def run(
    inverter: Inverter, encoder: Encoder, vectors: Vectors, batch: int, config: FeedbackConfig, latency: float
) -> dict[str, Any]:
    """Search for all vectors, `batch` at a time."""
    watched = Watched(encoder, latency)
    model = inverter.artifact
    net, tokenizer, surrogate = model.net, model.tokenizer, model.surrogate
    parts = (surrogate, None if surrogate is None else surrogate.word_vectors(), model.writer, model.echo)
    filling = Stopwatch(Filler.fill)
    Filler.fill = filling.method  # type: ignore[method-assign]
    began, worked = time.perf_counter(), time.process_time()
    try:
        for first in range(0, len(vectors), batch):
            found = list(
                Runner(net, tokenizer, watched, DecodeConfig(), config, *parts).run(vectors[first : first + batch], 64)
            )
            assert all(one.queries <= config.budget for one in found)
    finally:
        Filler.fill = filling.original  # type: ignore[method-assign]
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked
    return {
        "vectors": len(vectors),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "per_second": round(len(vectors) / seconds, 3),
        "per_cpu_second": round(len(vectors) / cpu_seconds, 3),
        "calls": watched.calls,
        "texts": watched.texts,
        "shares": {
            "encoder": round(watched.seconds / seconds, 3),
            "denoiser": round(filling.seconds / seconds, 3),
            "rest": round(1 - (watched.seconds + filling.seconds) / seconds, 3),
        },
    }


class Stopwatch:
    """Adds up the time of a method."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original, self.seconds = original, 0.0

    @property
    def method(self) -> Callable[..., Any]:
        """The method, timed."""

        def timed(*arguments: Any, **keywords: Any) -> Any:
            began = time.perf_counter()
            try:
                return self.original(*arguments, **keywords)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="file for the JSON; standard output without")
    parser.add_argument("--count", type=int, default=64, help="vectors searched at once")
    parser.add_argument("--singles", type=int, default=4, help="vectors searched one at a time")
    parser.add_argument("--budget", type=int, default=60)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds that a call of the distant encoder waits")
    parser.add_argument("--goal", type=float, default=5.0, help="exit with 1 below this local ratio")
    options = parser.parse_args()

    inverter = unembed.load()
    encoder = unembed.encoder(inverter.encoder.spec)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS.split(), int(rng.integers(5, 20)))) for _ in range(options.count)]
    vectors = encoder.encode(texts)
    config = FeedbackConfig(budget=options.budget, gradients="off", batch=options.count)
    run(inverter, encoder, vectors[:1], 1, FeedbackConfig(budget=5, gradients="off"), 0.0)  # warm up
    report: dict[str, Any] = {
        "benchmark": "feedback",
        "budget": options.budget,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
    }
    for name, latency in (("local", 0.0), ("distant", options.latency)):
        alone = run(inverter, encoder, vectors[: options.singles], 1, config, latency)
        together = run(inverter, encoder, vectors, options.count, config, latency)
        report[name] = {
            "latency": latency,
            "one at a time": alone,
            "together": together,
            "ratio": round(together["per_second"] / alone["per_second"], 2),
            "cpu_ratio": round(together["per_cpu_second"] / alone["per_cpu_second"], 2),  # for a busy machine
        }
    text = json.dumps(report, indent=2)
    if options.output:
        options.output.write_text(text + "\n")
    else:
        print(text)
    ratio = report["local"]["ratio"]
    if ratio < options.goal:
        sys.exit(f"{options.count} at once are {ratio} times as fast as one at a time, the goal is {options.goal}")


if __name__ == "__main__":
    main()
