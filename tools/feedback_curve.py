"""Measure encoder feedback: quality against what was spent, for every arm on the same held-out texts.

    unembed encode /work/shared/corpus/en -o /tmp/fb --split test --limit 2200
    python tools/feedback_curve.py /tmp/fb -n 300 -o results/feedback.json --chart docs/images/feedback.svg
    python tools/feedback_curve.py -o results/feedback.json --chart docs/images/feedback.svg   # draw again

A search does not look ahead to its budget, so one run at the largest budget gives the whole curve: the answer that
stood when so much was spent, and the CPU time that a text had taken by then. "no feedback" is the first text of each
search. Batches of texts are searched in `--jobs` processes of one thread. What was searched is kept in
`<output>.part`; the same command goes on from there, and one with other arms, more texts or a larger budget adds to
the rows that are in the file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

import unembed  # noqa: E402
from unembed.data.dataset import Dataset, Examples  # noqa: E402
from unembed.data.shards import write_whole  # noqa: E402
from unembed.decode import DecodeConfig  # noqa: E402
from unembed.decode.config import Precision  # noqa: E402
from unembed.decode.feedback import FeedbackConfig  # noqa: E402
from unembed.decode.feedback.runner import Runner  # noqa: E402
from unembed.inverter import Inverter  # noqa: E402
from unembed.measure import provenance  # noqa: E402
from unembed.measure.bootstrap import estimate  # noqa: E402
from unembed.measure.metrics import Bleu, score_texts  # noqa: E402
from unembed.measure.plot import Point, Series, line_chart  # noqa: E402
from unembed.measure.table import feedback_table  # noqa: E402
from unembed.model.artifact import weights_hash  # noqa: E402

Vectors = npt.NDArray[np.float32]

BUDGETS = (10, 32, 100, 320)
# Vec2Text's loop with a beam of 4: each is corrected into four texts a round, and the cosine alone decides.
LOOP = {
    "gradients": "off", "corrector": "only", "population": 4, "likelihood_weight": 0.0, "foresight": False,
}  # fmt: skip
BLACK = {"gradients": "off"}
ARMS: dict[str, dict[str, Any]] = {
    "black box": BLACK,
    "white box": {"gradients": "swaps"},
    "Vec2Text's loop": LOOP,
    "black box, no corrector": {**BLACK, "corrector": "off"},
    "black box, no writer": {**BLACK, "writer": False},
    "black box, no foresight": {**BLACK, "foresight": False},
    "white box, no foresight": {"gradients": "swaps", "foresight": False},
    "black box, no overshoot": {**BLACK, "overshoot": 0.0},
    "guidance": {"gradients": "guidance"},
    "white box and guidance": {"gradients": "all"},
    "float32 vectors": BLACK,
    "int8 vectors": BLACK,
    "3 decimals": BLACK,
    "first 128 dimensions": BLACK,
}
PRECISIONS: dict[str, Callable[[Vectors], Vectors]] = {
    "float32 vectors": lambda exact: exact,
    "int8 vectors": lambda exact: np.rint(exact * 127 / np.abs(exact).max(1, keepdims=True)).astype(np.float32),
    "3 decimals": lambda exact: np.round(exact, 3),
    "first 128 dimensions": lambda exact: np.where(np.arange(exact.shape[1]) < 128, exact, np.float32(0)),
}
"""How the target vectors were stored, where it is not float16."""
NO_FEEDBACK = "no feedback"
CURVES = ("black box", "black box, no writer", "white box", "Vec2Text's loop")


def main(arguments: list[str]) -> int:
    """Search, score, keep, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path, help="a folder; without one the charts are drawn again")
    parser.add_argument("-n", type=int, default=300, help="texts")
    parser.add_argument("--split", default="test", choices=["test", "validation"])
    parser.add_argument("--batch", type=int, default=25, help="texts searched together; kept after each")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--arms", nargs="+", default=list(ARMS)[:2], choices=list(ARMS))
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of all arms, to try them")
    parser.add_argument("--inverter", help="a folder; without one the shipped inverter")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "auto"], help="of the nets that make texts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--chart", type=Path, help="an SVG; a second one, against seconds, is put beside it")
    options = parser.parse_args(arguments)
    if options.dataset:
        results = measure(options)
        write_whole(options.output, lambda part: part.write_text(json.dumps(results, indent=1) + "\n"))
    results = json.loads(options.output.read_text())
    if options.chart:
        write_whole(options.chart, lambda part: part.write_text(draw(results)))
        beside = options.chart.with_stem(options.chart.stem + "_seconds")
        write_whole(beside, lambda part: part.write_text(draw(results, against="cpu_seconds")))
    sys.stdout.write(feedback_table(results) + "\n")
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All arms on the same texts; rows of other arms that the file has of the same texts and weights stay."""
    dataset = Dataset(options.dataset)
    examples = dataset.sample(options.split, options.n, options.seed)
    inverter = unembed.load(options.inverter)
    given = {name: json.loads(value) for name, _, value in (one.partition("=") for one in options.set)}
    base = replace(FeedbackConfig(budget=max(options.budgets), seed=options.seed), **given)
    arms = {name: replace(base, **ARMS[name]) for name in options.arms}
    what = {"n": len(examples.texts), "seed": options.seed, "split": options.split, "dataset": dataset.fingerprint}
    what["precision"] = options.precision
    what["weights"] = weights_hash(inverter.artifact.net)
    if inverter.artifact.writer is not None:
        what["writer"] = weights_hash(inverter.artifact.writer)
    if inverter.artifact.echo is not None:
        what["echo"] = weights_hash(inverter.artifact.echo)
    keeper = Keeper(Path(f"{options.output}.part"), json.dumps(what))
    with ProcessPoolExecutor(
        options.jobs,
        multiprocessing.get_context("spawn"),
        initializer=_prepare,
        initargs=(options.inverter, options.precision),
    ) as pool:
        searches = {name: search(name, pool, examples, arms[name], options.batch, keeper) for name in arms}
    rows: list[dict[str, Any]] = []
    for name, found in searches.items():
        rows += [score(name, budget, found, examples, inverter, options.seed) for budget in sorted(options.budgets)]
    settings = {name: asdict(config) for name, config in arms.items()}
    commands = [provenance.command_line()]
    before = json.loads(options.output.read_text()) if options.output.exists() else {}
    if all(before.get(key) == value for key, value in what.items()):
        rows += [row for row in before["rows"] if row["arm"] not in arms]
        settings, commands = {**before["settings"], **settings}, [*before["commands"], *commands]
    # The answers without feedback are compared with vectors as they are, if some arm has those.
    exact = next((name for name in searches if name not in PRECISIONS), None)
    if exact is not None or all(row["arm"] != NO_FEEDBACK for row in rows):
        rows = [row for row in rows if row["arm"] != NO_FEEDBACK]
        rows.append(score(NO_FEEDBACK, 0, searches[exact or next(iter(searches))], examples, inverter, options.seed))
    rows.sort(key=lambda row: row["arm"] != NO_FEEDBACK)
    return {
        **what, "settings": settings, "rows": rows, "versions": provenance.versions(),
        "machine": provenance.machine(), "commands": commands, "date": provenance.now(),
    }  # fmt: skip


class Keeper:
    """What was searched so far, by arm, settings and batch of texts."""

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        self._kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def get(self, *what: object) -> Any:
        """What was kept under these names, or None."""
        return self._kept.get(self._name(*what))

    def put(self, value: Any, *what: object) -> None:
        """Keep it on disk."""
        self._kept[self._name(*what)] = value
        write_whole(self._path, lambda part: part.write_text(json.dumps(self._kept)))

    def _name(self, *what: object) -> str:
        return hashlib.sha256(json.dumps([self._key, *what], default=str).encode()).hexdigest()[:24]


_here: dict[str, Any] = {}


def _prepare(inverter: str | None, precision: Precision) -> None:
    """What a process loads once."""
    torch.set_num_threads(1)
    _here["precision"] = precision
    _here["inverter"] = unembed.load(inverter)
    _here["encoder"] = unembed.encoder(_here["inverter"].encoder.spec)


def search_batch(name: str, texts: list[str], vectors: Vectors, config: FeedbackConfig) -> dict[str, Any]:
    """The history of every text's search, what was spent, and how the CPU time of the batch grew with that."""
    inverter, encoder = _here["inverter"], _here["encoder"]
    if name in PRECISIONS:
        vectors = PRECISIONS[name](encoder.encode(texts))
        if inverter.encoder.normalized:  # as the reader of vectors does
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    model = inverter.artifact
    # All of the surrogate or nothing, and so of the writer.
    strategy = "auto" if config.writer else "confidence"
    decoding = DecodeConfig(strategy, precision=_here["precision"])
    if not config.foresight and config.corrector != "only":
        decoding = replace(decoding, steering=0)
    parts = (model.net, model.tokenizer, encoder, decoding, config, model.surrogate)
    runner = Runner(
        *parts, None if model.surrogate is None else model.surrogate.word_vectors(), model.writer, model.echo
    )
    began = time.process_time()
    pace: list[tuple[float, float]] = []

    def clock(spent: int, total: int) -> None:
        pace.append((spent / len(texts), time.process_time() - began))

    found = sorted(runner.run(vectors, 64, clock), key=lambda one: one.row)
    return {
        "histories": [one.history for one in found],
        "spent": [(one.queries, one.gradients) for one in found],
        "pace": [pace],
    }


def search(
    name: str, pool: Executor, examples: Examples, config: FeedbackConfig, batch: int, keeper: Keeper
) -> dict[str, Any]:
    """All texts, in batches."""
    waiting = {}
    known = {}
    for first in range(0, len(examples.texts), batch):
        what = (name if name in PRECISIONS else "", asdict(config), first, batch)
        known[first] = keeper.get(*what)
        if known[first] is None:
            rows = slice(first, first + batch)
            vectors = examples.vectors[rows].astype(np.float32)
            waiting[pool.submit(search_batch, name, examples.texts[rows], vectors, config)] = what
    for done in as_completed(waiting):
        what = waiting[done]
        known[what[2]] = done.result()
        keeper.put(known[what[2]], *what)
        count = sum(one is not None for one in known.values())
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {name}: {count} of {len(known)} batches\n")
    return {
        key: [one for first in sorted(known) for one in known[first][key]] for key in ("histories", "spent", "pace")
    }


def score(
    name: str, budget: int, found: dict[str, Any], examples: Examples, inverter: Inverter, seed: int
) -> dict[str, Any]:
    """Metrics of the answers that stood when the budget was spent; at 0 of the first ones."""
    answers = [[one for one in history if one[0] <= max(budget, history[0][0])][-1] for history in found["histories"]]
    texts = [text for _, text, _ in answers]
    tokenize = inverter.artifact.tokenizer.encode_batch_fast
    true, tokens = ([e.ids for e in tokenize(some, add_special_tokens=False)] for some in (examples.texts, texts))
    columns = score_texts(examples.texts, texts, true, tokens, Bleu())
    columns["cosine"] = np.array([[cosine, 1.0] for _, _, cosine in answers])
    wanted = {key: columns[key] for key in ("token_f1", "bleu", "bleu_text", "exact_match", "cosine", "rouge_l")}
    metrics = estimate(wanted, resamples=1000, seed=seed)
    row: dict[str, Any] = {"arm": name, "budget": budget}
    row["metrics"] = {key: asdict(value) for key, value in metrics.items()}
    # A batch's rounds are at the same step for all its texts: between two of them the time is drawn as a line.
    seconds = [np.interp(budget, *np.transpose(pace)) / share for pace, share in _shares(found)]
    row["cpu_seconds"] = round(float(np.mean(seconds)), 3)
    queries, gradients = (np.array(column) for column in zip(*found["spent"], strict=True))
    if budget >= (queries + gradients).max():  # how it divides is known of whole searches only
        row |= {"queries": round(float(queries.mean()), 1), "gradients": round(float(gradients.mean()), 1)}
    return row


def _shares(found: dict[str, Any]) -> list[tuple[list[tuple[float, float]], int]]:
    """Of every batch its pace, and the texts in it."""
    batches = len(found["pace"])
    size = -(-len(found["histories"]) // batches)
    counts = [len(found["histories"][k * size : (k + 1) * size]) for k in range(batches)]
    return list(zip(found["pace"], counts, strict=True))


def draw(results: dict[str, Any], metric: str = "token_f1", against: str = "budget") -> str:
    """The curves of the main arms."""
    base = next(row for row in results["rows"] if row["arm"] == NO_FEEDBACK)
    series = []
    for arm in [name for name in CURVES if any(row["arm"] == name for row in results["rows"])]:
        points = []
        for row in results["rows"]:
            if row["arm"] == arm:
                value = row["metrics"][metric]
                points.append(Point(row[against], value["value"], value["low"], value["high"]))
        series.append(Series(arm, points))
    places = sorted(point.x for one in series for point in one.points)
    level = base["metrics"][metric]["value"]
    series.append(Series(NO_FEEDBACK, [Point(places[0], level), Point(places[-1], level)]))
    spent = "encoder queries and backward passes" if against == "budget" else "CPU seconds"
    return line_chart(
        series,
        title=f"Token F1 with encoder feedback ({results['n']} unseen texts)",
        x_label=f"{spent} for one text",
        y_label="token F1",
        log_x=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
