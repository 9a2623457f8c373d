"""Decoding: batches of this package against the reference's way, with the same net, steps and texts.

    python benchmarks/decode.py -o decode.json                       # the shipped inverter, or random weights
    python benchmarks/decode.py --inverter FOLDER --vectors v.npy

The reference's way: one vector at a time, a canvas of 32 positions, 32 full passes, logits at every position of every
pass. The arms between it and ours add one thing at a time, so that the table shows where the ratio comes from. All
decode left to right, one token a step, at the likeliest length; the texts are compared token by token. `ratio` is that
of the fp32 arm; where the CPU is fast in bf16, a last arm shows that too, with the number of texts it changes.

`arithmetic` says what can be had: the GFLOP of a text both ways, the rate each arm reaches, that of a bare matrix
product, and the ratio if ours ran at that rate (`ceiling`). Nothing is saved from one pass to the next: attention looks
both ways and t changes, so every hidden state does.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import unembed
from unembed.config import cpu
from unembed.decode import DecodeConfig, engine
from unembed.decode.plan import plan
from unembed.model.denoiser import Denoiser, parameter_counts
from unembed.precision import fast_bf16

Vectors = npt.NDArray[np.float32]
Tokens = tuple[int, ...]
CONFIG = DecodeConfig(strategy="sequential", steps=32, lengths=1, n_best=1, repeat_penalty=0.0, precision="fp32")


def planned_length(net: Denoiser, c: Tensor) -> int:
    """All arms write texts of the same lengths."""
    return plan(net, c, CONFIG)[0].length


@torch.inference_mode()
def reference(net: Denoiser, vector: Vectors) -> Tokens:
    """A canvas of the longest text, as many full passes as positions, all logits in each."""
    c = net.condition(torch.from_numpy(vector[None]))
    length, canvas = planned_length(net, c), net.config.max_tokens
    tokens = torch.full((1, canvas), net.config.mask_id)
    valid = (torch.arange(canvas) < length)[None]
    for place in range(canvas):
        t = (tokens[:, :length] == net.config.mask_id).float().mean(1)
        logits = net.logits(net(tokens, t, c, valid))  # (1, 32, vocab)
        tokens[0, place] = logits[0, place].argmax()
    return tuple(tokens[0, :length].tolist())


@torch.inference_mode()
def own_length(net: Denoiser, vector: Vectors, *, all_logits: bool) -> Tokens:
    """The same without the positions and passes behind the end of the text."""
    c = net.condition(torch.from_numpy(vector[None]))
    tokens: Tensor = torch.full((1, planned_length(net, c)), net.config.mask_id)
    for place in range(tokens.shape[1]):
        t = (tokens == net.config.mask_id).float().mean(1)
        hidden = net(tokens, t, c)
        logits = net.logits(hidden)[0, place] if all_logits else net.logits(hidden[0, place])
        tokens[0, place] = logits.argmax()
    return tuple(tokens[0].tolist())


def random_net() -> Denoiser:
    """The net of `cpu()` with random weights; speed does not depend on what they are."""
    torch.manual_seed(0)
    net = Denoiser(cpu().model)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=0.05)
        net.length[2].weight.mul_(100)  # lengths of 9 to 32 all occur, 20 on average, as in the corpus
        net.length[2].bias[:8] = -1e6
    return net.eval()


def timed(work: Callable[[], list[Tokens]], rounds: int) -> tuple[list[Tokens], float, float]:
    """What it gives, and the seconds of the best round: by the clock, and of all threads' work."""
    clock, cpu_time = [], []
    for _ in range(rounds):
        began, worked = time.perf_counter(), time.process_time()
        found = work()
        clock.append(time.perf_counter() - began)
        cpu_time.append(time.process_time() - worked)
    return found, min(clock), min(cpu_time)


def gflop(net: Denoiser, canvas: int, passes: int, *, everywhere: bool) -> float:
    """Matrix products of one text: `passes` over `canvas` positions, logits and the last MLP everywhere or at one."""
    model = net.config
    places, width = canvas + model.prefix_tokens, model.width
    asked = canvas if everywhere else 1
    attention = 4 * places * width  # for each position: scores and mixture, two operations each
    block = 2 * width * (4 * width + 2 * model.ffn)
    last = 2 * width * 3 * width * places + (block - 2 * width * 3 * width) * (places if everywhere else asked)
    modulation = 2 * model.layers * width * 6 * width
    body = places * (block * (model.layers - 1) + attention * model.layers) + last + modulation
    return passes * (body + asked * 2 * width * model.vocab_size) / 1e9


def gemm_rate(net: Denoiser, batch_size: int) -> float:
    """GFLOPS of a bare matrix product of the size that dominates."""
    rows, width, ffn = 22 * batch_size, net.config.width, net.config.ffn
    a, b = torch.randn(rows, width), torch.randn(width, ffn)
    best = min(timed(lambda: [tuple((a @ b).shape)], 1)[1] for _ in range(10))
    return 2 * rows * width * ffn / best / 1e9


def arithmetic(net: Denoiser, lengths: list[int], arms: dict[str, Any], batch_size: int) -> dict[str, float]:
    """What the ratio is made of: less to compute, and computed faster."""
    longest = net.config.max_tokens
    before = gflop(net, longest, longest, everywhere=True)
    ours = float(np.mean([gflop(net, length, length, everywhere=False) for length in lengths]))
    rate = gemm_rate(net, batch_size)
    reached = {name: cost * arms[name]["per_second"] for name, cost in (("reference", before), ("+ batches", ours))}
    return {
        "gflop_reference": round(before, 2),
        "gflop_ours": round(ours, 2),
        "less_work": round(before / ours, 2),
        "gflops_reference": round(reached["reference"], 1),
        "gflops_ours": round(reached["+ batches"], 1),
        "gflops_bare_product": round(rate, 1),
        "ceiling": round(before / ours * rate / reached["reference"], 1),
    }


def measure(net: Denoiser, vectors: Vectors, singles: int, rounds: int, batch_size: int) -> dict[str, Any]:
    """Vectors per second of each arm, and how many texts differ from the reference's."""
    few = vectors[:singles]
    arms: dict[str, tuple[Callable[[], list[Tokens]], int]] = {
        "reference": (lambda: [reference(net, v) for v in few], len(few)),
        "+ own length": (lambda: [own_length(net, v, all_logits=True) for v in few], len(few)),
        "+ logits where needed": (lambda: [own_length(net, v, all_logits=False) for v in few], len(few)),
        "+ batches": (
            lambda: [found[0].tokens for found in engine.decode(net, vectors, CONFIG, batch_size=batch_size)],
            len(vectors),
        ),
    }
    if fast_bf16(torch.device("cpu")):
        in_bf16 = replace(CONFIG, precision="bf16")
        arms["+ bf16"] = (
            lambda: [found[0].tokens for found in engine.decode(net, vectors, in_bf16, batch_size=batch_size)],
            len(vectors),
        )
    for work in (reference, lambda net, v: own_length(net, v, all_logits=False)):
        work(net, vectors[0])  # warm up
    results: dict[str, Any] = {}
    expected: list[Tokens] = []
    for name, (work, count) in arms.items():
        found, seconds, cpu_seconds = timed(work, rounds)
        expected = expected or found
        results[name] = {
            "vectors": count,
            "seconds": round(seconds, 3),
            "cpu_seconds": round(cpu_seconds, 3),
            "per_second": round(count / seconds, 3),
            "texts_that_differ": sum(a != b for a, b in zip(expected, found[:singles], strict=True)),
        }
    base = results["reference"]
    for result in results.values():
        share = result["vectors"] / base["vectors"]
        result["ratio"] = round(share * base["seconds"] / result["seconds"], 2)
        result["cpu_ratio"] = round(share * base["cpu_seconds"] / result["cpu_seconds"], 2)  # for a busy machine
    lengths = [len(tokens) for tokens in found]
    return {
        "mean_length": round(float(np.mean(lengths)), 2),
        "ratio": results["+ batches"]["ratio"],
        "arithmetic": arithmetic(net, lengths, results, batch_size),
        "arms": results,
    }


def main() -> None:
    """Measure and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="file for the JSON; standard output without")
    parser.add_argument("--inverter", help="folder; the shipped one, or random weights, without")
    parser.add_argument("--vectors", type=Path, help=".npy (n, d); random unit vectors without")
    parser.add_argument("--count", type=int, default=1024, help="vectors in the batched arm")
    parser.add_argument("--singles", type=int, default=16, help="vectors in the arms that take one at a time")
    parser.add_argument("--rounds", type=int, default=2, help="the best of so many counts")
    parser.add_argument("--batch-size", type=int, default=engine.BATCH)
    parser.add_argument("--goal", type=float, default=20.0, help="exit with 1 below this ratio")
    options = parser.parse_args()

    folder = options.inverter or (unembed.SHIPPED if (unembed.SHIPPED / "config.json").is_file() else None)
    net = unembed.load(folder).artifact.net if folder else random_net()
    if options.vectors:
        vectors = np.load(options.vectors, allow_pickle=False)[: options.count].astype(np.float32)
    else:
        vectors = np.random.default_rng(0).normal(size=(options.count, net.config.vector_dim)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    report = {
        "benchmark": "decode",
        "weights": str(folder or "random"),
        "parameters": parameter_counts(net)[0],
        "batch_size": options.batch_size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        **measure(net, vectors, options.singles, options.rounds, options.batch_size),
    }
    text = json.dumps(report, indent=2)
    if options.output:
        options.output.write_text(text + "\n")
    else:
        print(text)
    if report["ratio"] < options.goal:
        sys.exit(f"decoding is {report['ratio']} times as fast as the reference's way, the goal is {options.goal}")


if __name__ == "__main__":
    main()
