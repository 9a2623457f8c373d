"""Encoding: the pipeline against a bare loop over the encoder, and its memory as the corpus grows.

    python benchmarks/encode.py -o encode.json
    python benchmarks/encode.py --texts 2000 --rounds 2 --memory 10000 100000

Speed: the same texts, in turn through `write_vectors` and through a bare loop over length-sorted batches that keeps
its result in memory; the ratio is that of the best rounds. The encoder is MiniLM.

Memory: peak resident size of a fresh process that runs both stages over so many made-up sentences. What the pipeline
itself holds is the same with every encoder, so the encoder here is a model2vec table made on the spot (real texts
in, real vectors out, 384 dimensions): a million texts then take minutes and not hours.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from unembed.data.dataset import Dataset
from unembed.data.encoders import Encoder, load
from unembed.data.shards import file_sha256, load_tokenizer
from unembed.data.tokens import default_tokenizer, write_tokens
from unembed.data.vectors import write_vectors

WORDS = """
time person year way day thing man world life hand part child eye woman place work week case point
company number group problem fact city water money story result change morning reason research girl moment air teacher
force door car office health art war history party paper month music garden river winter letter bridge station kitchen
""".split()  # noqa: SIM905


def sentences(count: int, folder: Path) -> Path:
    """Write `count` different made-up sentences of 6 to 26 words to a file."""
    path, rng = folder / "made_up.txt", np.random.default_rng(0)
    with path.open("w") as file:
        for start in range(0, count, 10_000):
            drawn = rng.integers(0, len(WORDS), (10_000, 25)).tolist()
            lengths = rng.integers(5, 25, 10_000).tolist()
            for number in range(start, min(start + 10_000, count)):
                words = [WORDS[i] for i in drawn[number - start][: lengths[number - start]]]
                file.write(f"{' '.join(words)} {number}.\n")
    return path


RATIO_WANTED = 0.9
GROWTH_WANTED = 0.1  # of the peak of the smallest run: what allocators take and keep varies by a few per cent
# Smaller than the smallest run, so that every run holds a full shard: it is the growth beyond that which counts.
MEMORY_SHARD = 8192
MEMORY_ENCODER = "model2vec table of random token vectors, 384 dimensions, made on the spot"


def static_encoder(folder: Path) -> Encoder:
    """A cheap real encoder: a static model with a random vector for each token."""
    from model2vec import StaticModel

    tokenizer = load_tokenizer(default_tokenizer())
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), 384)).astype(np.float32)
    StaticModel(vectors, tokenizer, config={"normalize": True}, normalize=True).save_pretrained(folder)
    return load(f"model2vec:{folder}")


Seconds = tuple[float, float]
"""Wall clock, and CPU time of all threads; the second can still be trusted on a busy machine."""


def since(began: Seconds) -> Seconds:
    return time.perf_counter() - began[0], time.process_time() - began[1]


def bare_loop(encoder: Encoder, texts: list[str], batch: int) -> Seconds:
    """Time for the texts in length-sorted batches, with nothing around it."""
    began = (time.perf_counter(), time.process_time())
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    out = np.empty((len(texts), encoder.dim), dtype=np.float32)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        out[rows] = encoder.encode([texts[i] for i in rows])
    return since(began)


def pipeline(encoder: Encoder, folder: Path) -> Seconds:
    """Time for the vectors stage over all shards of a folder that has none yet."""
    for path in folder.glob("*/*"):
        if path.parent.name != "tokens":
            path.unlink()
    began = (time.perf_counter(), time.process_time())
    for _ in write_vectors(folder, encoder):
        pass
    return since(began)


def measure_speed(spec: str, count: int, rounds: int, batch: int) -> dict[str, object]:
    encoder = load(spec)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "corpus"
        for _ in write_tokens([sentences(count, Path(place))], folder, default_tokenizer()):
            pass
        pipeline(encoder, folder)  # warm up, and texts for the loop
        data = Dataset(folder)
        texts = [text for split in ("train", "validation", "test") for text in data.sample(split, count, 0).texts]
        bare, ours = [], []
        for _ in range(rounds):
            bare.append(bare_loop(encoder, texts, batch))
            ours.append(pipeline(encoder, folder))
    (bare_wall, bare_cpu), (our_wall, our_cpu) = (
        [min(column) for column in zip(*rounds_, strict=True)] for rounds_ in (bare, ours)
    )
    return {
        "encoder": spec,
        "texts": len(texts),
        "bare_texts_per_second": len(texts) / bare_wall,
        "pipeline_texts_per_second": len(texts) / our_wall,
        "ratio": bare_wall / our_wall,
        "ratio_of_cpu_time": bare_cpu / our_cpu,
        "ratio_wanted": RATIO_WANTED,
        "rounds": {"bare": bare, "pipeline": ours},
        "load_average": os.getloadavg()[0],
    }


def peak_mb() -> float:
    """Peak resident memory of this process (Linux).

    Not ru_maxrss: a child begins with its parent's value there, and the parent has the encoder loaded.
    """
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def one_memory_run(count: int) -> None:
    """Run both stages in this process and print its peak memory in MB as JSON (called in a fresh process)."""
    with tempfile.TemporaryDirectory() as place:
        path = sentences(count, Path(place))
        folder = Path(place) / "corpus"
        began = time.monotonic()
        for _ in write_tokens([path], folder, default_tokenizer(), shard_size=MEMORY_SHARD):
            pass
        tokens, tokens_seconds = peak_mb(), time.monotonic() - began
        encoder = static_encoder(Path(place) / "static")
        began, done = time.monotonic(), 0
        for step in write_vectors(folder, encoder):
            done = step.done
        both, vectors_seconds = peak_mb(), time.monotonic() - began
    run = {"texts": done, "tokens_peak_mb": tokens, "both_peak_mb": both}
    print(json.dumps({**run, "tokens_seconds": tokens_seconds, "vectors_seconds": vectors_seconds}))


def measure_memory(counts: list[int]) -> dict[str, object]:
    runs = []
    for count in counts:
        command = [sys.executable, __file__, "--one-memory-run", str(count)]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        runs.append(json.loads(out))
    first, last = runs[0], runs[-1]
    growth = last["both_peak_mb"] - first["both_peak_mb"]
    return {
        "encoder": MEMORY_ENCODER,
        "shard_size": MEMORY_SHARD,
        "runs": runs,
        "growth_mb": growth,
        "growth_bytes_per_text": growth * 2**20 / max(last["texts"] - first["texts"], 1),
        "growth_share": growth / first["both_peak_mb"],
        "growth_share_wanted": GROWTH_WANTED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--memory", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--one-memory-run", type=int, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--goal", type=float, default=RATIO_WANTED, help="exit with 1 below this ratio")
    given = parser.parse_args()
    if given.one_memory_run:
        one_memory_run(given.one_memory_run)
        return
    result: dict[str, object] = {
        "command": " ".join(sys.argv),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "tokenizer_sha256": file_sha256(default_tokenizer()),
    }
    if given.rounds:
        result["speed"] = measure_speed(given.encoder, given.texts, given.rounds, given.batch)
        save(result, given.output)  # memory takes long; what is measured stays
    if given.memory:
        result["memory"] = measure_memory(given.memory)
        save(result, given.output)
    print(json.dumps(result, indent=2))
    missed = goals_missed(result, given.goal)
    if missed:
        sys.exit("; ".join(missed))


def goals_missed(result: dict[str, Any], ratio: float) -> list[str]:
    missed = []
    if "speed" in result and result["speed"]["ratio"] < ratio:
        missed.append(f"encoding runs at {result['speed']['ratio']:.2f} of a bare loop, the goal is {ratio}")
    if "memory" in result and result["memory"]["growth_share"] > GROWTH_WANTED:
        grown = result["memory"]["growth_share"]
        missed.append(
            f"memory grows by {grown:.0%} from the smallest run to the largest, the goal is {GROWTH_WANTED:.0%}"
        )
    return missed


def save(result: dict[str, object], path: Path | None) -> None:
    if path:
        path.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
