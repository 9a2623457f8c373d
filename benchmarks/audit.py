"""The audit: vectors per second by stage, against calling the encoder in a plain loop; memory as the store grows.

    python benchmarks/audit.py -o results/audit.json            some three minutes on two quiet cores
    python benchmarks/audit.py --rows 8 --memory 10000 100000   to see that it works

Speed: every stage of an audit, with the shipped weights, on made-up sentences of 6 to 26 words that are stored beside
their MiniLM vectors. The plain loop embeds the same texts one at a time, as a program that asks a service does. What
the audit adds to recovery (personal data, topics, links, log) must not cost more than that loop.

Memory: peak resident size of a fresh process that draws 1,000 rows of a store, and then audits it with a sample of
--rows rows, to the report. The stores are Parquet files of so many rows of MiniLM vectors in float16 with their texts,
and an .npy of --sparse rows of which only those that will be drawn are on the disk. The largest must not take 10 %
more than the smallest.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.encode import peak_mb, save, sentences  # noqa: E402

T = TypeVar("T")
Halves = NDArray[np.float16]
RATIO_WANTED = 1.0
GROWTH_WANTED = 0.1  # of the peak of the smallest run
DRAWN, GROUP = 1000, 10_000


def measure_speed(rows: int) -> dict[str, Any]:
    import unembed
    from unembed.audit import controls, leak, personal, stages
    from unembed.audit.identify import identify
    from unembed.audit.log import Log
    from unembed.audit.stores import open_store
    from unembed.audit.topics import TopicModel
    from unembed.audit.unique import uniqueness

    seconds: dict[str, float] = {}

    def timed(stage: str, call: Callable[[], T]) -> T:
        began = time.perf_counter()
        result = call()
        seconds[stage] = time.perf_counter() - began
        return result

    inverter, encoder = unembed.load(), unembed.encoder("minilm")
    personal.find("warm up")
    with tempfile.TemporaryDirectory() as place:
        texts = sentences(rows, Path(place)).read_text().splitlines()
        encoder.encode(texts[:8])
        vectors = np.concatenate(timed("plain loop", lambda: [encoder.encode([text]) for text in texts]))
        path = Path(place) / "store.parquet"
        pq.write_table(pa.table({"vector": list(vectors), "text": texts}), path)
        with open_store(str(path)) as store:
            sample = timed("sample", lambda: store.sample(rows, 0))
        timed("identify", lambda: identify(sample, inverter=inverter))
        model = timed("topics, once", lambda: TopicModel.build(encoder))
        timed("invert", lambda: inverter.invert(sample.vectors))
        found = timed(
            "recover", lambda: leak.recover(inverter, sample.vectors, sample.texts, encoder=encoder, calibration=None)
        )
        timed("topics", lambda: model.probabilities(sample.vectors))
        with Log(Path(place) / "audit", {"inverter": "default", "weights": ""}) as log:
            run = stages.Stages(log, sample, inverter, None, 0, reveal=False)
            records = timed("personal data", lambda: [run._about(row, one, True) for row, one in enumerate(found)])
            timed("log", lambda: log.append({"kind": "vector", **record} for record in records))
        timed("links", lambda: uniqueness(sample.vectors))
        timed(
            "controls",
            lambda: controls.controls(
                inverter, sample.vectors, sample.texts, found, encoder=encoder, find=personal.find
            ),
        )
    added = sum(seconds[stage] for stage in ("topics", "personal data", "log", "links"))
    whole = sum(seconds[stage] for stage in seconds if stage not in ("plain loop", "invert"))
    return {
        "rows": rows,
        "vectors_per_second": {stage: rows / max(spent, 1e-9) for stage, spent in seconds.items()},
        "audit_vectors_per_second": rows / whole,
        "audit_against_plain_loop": seconds["plain loop"] / whole,
        "added_against_plain_loop": seconds["plain loop"] / added,
        "ratio_wanted": RATIO_WANTED,
        "load_average": os.getloadavg()[0],
    }


def write_store(path: Path, rows: int, vectors: Halves, texts: list[str]) -> None:
    """A Parquet file of so many rows, written by groups: the vectors over and over, each time a little different."""
    rng = np.random.default_rng(0)
    kind = pa.schema({"vector": pa.list_(pa.float16(), vectors.shape[1]), "text": pa.string()})
    with pq.ParquetWriter(path, kind, compression="none") as writer:
        for start in range(0, rows, GROUP):
            some = np.arange(start, min(start + GROUP, rows)) % len(vectors)
            changed = vectors[some] * rng.uniform(0.99, 1.01, (len(some), 1)).astype(np.float16)
            column = pa.FixedSizeListArray.from_arrays(pa.array(changed.ravel()), vectors.shape[1])
            writer.write_table(pa.table([column, pa.array([texts[row] for row in some])], schema=kind))


def write_sparse(path: Path, rows: int, vectors: Halves, samples: list[int]) -> None:
    """An .npy of so many rows, with holes wherever none of these samples will look."""
    from unembed.audit.stores.base import choose

    with path.open("wb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": (rows, vectors.shape[1])}
        np.lib.format.write_array_header_1_0(file, header)
        begin, size = file.tell(), vectors.shape[1] * 2
        file.truncate(begin + rows * size)
        for row in sorted({row for n in samples for row in choose(rows, n, 0).tolist()}):
            file.seek(begin + row * size)
            file.write(vectors[row % len(vectors)].tobytes())


def one_memory_run(path: str, rows: int) -> None:
    """Draw, then audit, in this process, and print its peak memory in MB as JSON (called in a fresh process)."""
    from unembed.audit.stores import open_store

    began = time.perf_counter()
    with open_store(path) as store:
        stored, drawn = store.describe().rows, len(store.sample(DRAWN, 0).ids)
    result: dict[str, Any] = {"store": Path(path).name, "rows": stored, "drawn": drawn, "draw_peak_mb": peak_mb()}
    result["draw_seconds"] = time.perf_counter() - began
    from unembed.audit import run

    with tempfile.TemporaryDirectory() as place:
        for _ in run.audit(path, Path(place), run.Options(sample=rows, encoder="minilm")):
            pass
        result["audited"] = run.load(Path(place))["recovery"]["recovered"]
    print(json.dumps({**result, "peak_mb": peak_mb(), "seconds": time.perf_counter() - began}))


def measure_memory(counts: list[int], sparse: int, rows: int) -> dict[str, Any]:
    import unembed

    with tempfile.TemporaryDirectory() as place:
        texts = sentences(GROUP // 40, Path(place)).read_text().splitlines()
        vectors = unembed.encoder("minilm").encode(texts).astype(np.float16)
        runs = []
        for count in [*counts, sparse]:
            path = Path(place) / f"{count}.{'npy' if count == sparse else 'parquet'}"
            if count == sparse:
                write_sparse(path, count, vectors, [DRAWN, rows])
            else:
                write_store(path, count, vectors, texts)
            command = [sys.executable, __file__, "--one-memory-run", str(path), "--rows", str(rows)]
            runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
            path.unlink()
    peaks = {name: [run[name] for run in runs] for name in ("draw_peak_mb", "peak_mb")}
    growth = max(max(peak) / peak[0] - 1 for peak in peaks.values())
    return {"runs": runs, "growth_share": growth, "growth_share_wanted": GROWTH_WANTED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256, help="rows to audit")
    parser.add_argument("--memory", type=int, nargs="*", default=[10_000, 1_000_000])
    parser.add_argument("--sparse", type=int, default=10_000_000, help="rows of the .npy")
    parser.add_argument("--only-memory", action="store_true", help="leave out the speed")
    parser.add_argument("--one-memory-run", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--goal", type=float, default=RATIO_WANTED, help="exit with 1 below this ratio")
    given = parser.parse_args()
    if given.one_memory_run:
        one_memory_run(given.one_memory_run, given.rows)
        return
    result: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    if given.memory:
        result["memory"] = measure_memory(given.memory, given.sparse, given.rows)
    if not given.only_memory:
        result["speed"] = measure_speed(given.rows)
    save(result, given.output)
    print(json.dumps(result, indent=2))
    missed = goals_missed(result, given.goal)
    if missed:
        sys.exit("; ".join(missed))


def goals_missed(result: dict[str, Any], ratio: float) -> list[str]:
    missed = []
    if "speed" in result and result["speed"]["added_against_plain_loop"] < ratio:
        found = result["speed"]["added_against_plain_loop"]
        missed.append(f"what the audit adds to recovery runs at {found:.2f} of a plain loop, the goal is {ratio}")
    if "memory" in result and result["memory"]["growth_share"] > GROWTH_WANTED:
        grown = result["memory"]["growth_share"]
        missed.append(f"memory grows by {grown:.0%} with the store, the goal is {GROWTH_WANTED:.0%}")
    return missed


if __name__ == "__main__":
    main()
