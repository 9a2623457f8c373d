"""Measure encoder feedback: quality against what was spent, for every arm on the same held-out texts.

    unembed encode /work/shared/corpus/en -o /tmp/fb --split test --limit 400
    python tools/feedback_curve.py /tmp/fb -n 100 -o results/feedback.json --chart docs/images/feedback.svg
    python tools/feedback_curve.py -o results/feedback.json --chart docs/images/feedback.svg   # draw again

A search does not look ahead to its budget, so one run at the largest budget gives the whole curve: the answer that
stood when so much was spent. "no feedback" is the first text of each search. What was searched is kept in
`<output>.part` after each batch of texts; the same command goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

import unembed  # noqa: E402
from unembed.data.dataset import Dataset, Examples  # noqa: E402
from unembed.data.shards import write_whole  # noqa: E402
from unembed.decode import DecodeConfig  # noqa: E402
from unembed.decode.feedback import FeedbackConfig  # noqa: E402
from unembed.decode.feedback.runner import Runner  # noqa: E402
from unembed.inverter import Inverter  # noqa: E402
from unembed.measure import provenance  # noqa: E402
from unembed.measure.bootstrap import estimate  # noqa: E402
from unembed.measure.metrics import Bleu, score_texts  # noqa: E402
from unembed.measure.plot import Point, Series, line_chart  # noqa: E402

BUDGETS = (10, 32, 100, 320)
ARMS: dict[str, dict[str, Any]] = {
    "black box": {"gradients": "off"},
    "swaps": {"gradients": "swaps"},
    "guidance": {"gradients": "guidance"},
    "all": {"gradients": "all"},
    "black box, no overshoot": {"gradients": "off", "overshoot": 0.0},
}
NO_FEEDBACK = "no feedback"


def main(arguments: list[str]) -> int:
    """Search, score, keep, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path, help="a dataset folder; without one the chart is drawn again")
    parser.add_argument("-n", type=int, default=100, help="texts")
    parser.add_argument("--batch", type=int, default=20, help="texts searched together; kept after each")
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of all arms, to try them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args(arguments)
    if options.dataset:
        results = measure(options)
        write_whole(options.output, lambda part: part.write_text(json.dumps(results, indent=1) + "\n"))
        Path(f"{options.output}.part").unlink(missing_ok=True)
    results = json.loads(options.output.read_text())
    if options.chart:
        write_whole(options.chart, lambda part: part.write_text(draw(results)))
    sys.stdout.write(table(results) + "\n")
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All arms on the same texts."""
    dataset = Dataset(options.dataset)
    examples = dataset.sample("test", options.n, options.seed)
    inverter = unembed.load()
    given = {name: json.loads(value) for name, _, value in (one.partition("=") for one in options.set)}
    base = replace(FeedbackConfig(budget=max(options.budgets), seed=options.seed), **given)
    arms = {name: replace(base, **ARMS[name]) for name in options.arms}
    keeper = Keeper(Path(f"{options.output}.part"), f"{dataset.fingerprint} {_weights(inverter)} {options.n}")
    searches = {name: search(name, inverter, examples, config, options.batch, keeper) for name, config in arms.items()}
    most = max(options.budgets)
    rows = [score(NO_FEEDBACK, 0, searches[options.arms[0]], examples, inverter, options.seed, False)]
    for name, found in searches.items():
        for budget in options.budgets:
            rows.append(score(name, budget, found, examples, inverter, options.seed, budget == most))
    return {
        "n": len(examples.texts),
        "seed": options.seed,
        "split": "test",
        "dataset": dataset.fingerprint,
        "weights": _weights(inverter),
        "settings": {name: asdict(config) for name, config in arms.items()},
        "rows": rows,
        "versions": provenance.versions(),
        "machine": provenance.machine(),
        "command": provenance.command_line(),
        "date": provenance.now(),
    }


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


def search(
    name: str, inverter: Inverter, examples: Examples, config: FeedbackConfig, batch: int, keeper: Keeper
) -> dict[str, Any]:
    """The history of every text's search, and the time all took."""
    total: dict[str, Any] = {"histories": [], "spent": [], "seconds": 0.0, "cpu_seconds": 0.0}
    encoder = unembed.encoder(inverter.encoder.spec)
    for first in range(0, len(examples.texts), batch):
        what = (asdict(config), first, batch)
        kept = keeper.get(*what)
        if kept is None:
            runner = Runner(inverter.artifact.net, inverter.artifact.tokenizer, encoder, DecodeConfig(), config)
            vectors = examples.vectors[first : first + batch].astype(np.float32)
            began, worked = time.perf_counter(), time.process_time()
            found = sorted(runner.run(vectors, 64), key=lambda one: one.row)
            kept = {
                "histories": [one.history for one in found],
                "spent": [(one.queries, one.gradients) for one in found],
                "seconds": time.perf_counter() - began,
                "cpu_seconds": time.process_time() - worked,
            }
            keeper.put(kept, *what)
        total = {key: total[key] + kept[key] for key in total}
        sys.stderr.write(f"{name}: {min(first + batch, len(examples.texts))} of {len(examples.texts)}\n")
    return total


def score(
    name: str, budget: int, found: dict[str, Any], examples: Examples, inverter: Inverter, seed: int, whole: bool
) -> dict[str, Any]:
    """Metrics of the answers that stood when the budget was spent; at 0 of the first ones."""
    answers = [[one for one in history if one[0] <= max(budget, history[0][0])][-1] for history in found["histories"]]
    texts = [text for _, text, _ in answers]
    tokenize = inverter.artifact.tokenizer.encode_batch_fast
    true, tokens = ([e.ids for e in tokenize(some, add_special_tokens=False)] for some in (examples.texts, texts))
    columns = score_texts(examples.texts, texts, true, tokens, Bleu())
    columns["cosine"] = np.array([[cosine, 1.0] for _, _, cosine in answers])
    wanted = {key: columns[key] for key in ("token_f1", "bleu", "exact_match", "cosine", "rouge_l")}
    metrics = estimate(wanted, resamples=1000, seed=seed)
    row: dict[str, Any] = {"arm": name, "budget": budget}
    row["metrics"] = {key: asdict(value) for key, value in metrics.items()}
    if whole:  # what was spent, and the time, are known of whole searches only
        queries, gradients = np.mean(found["spent"], axis=0)
        row |= {"queries": round(float(queries), 1), "gradients": round(float(gradients), 1)}
        row |= {key: round(found[key] / len(texts), 2) for key in ("seconds", "cpu_seconds")}
    return row


def draw(results: dict[str, Any], metric: str = "token_f1") -> str:
    """The curves."""
    base = next(row for row in results["rows"] if row["arm"] == NO_FEEDBACK)["metrics"][metric]["value"]
    arms = list(dict.fromkeys(row["arm"] for row in results["rows"] if row["arm"] != NO_FEEDBACK))
    series = [
        Series(
            arm,
            [
                Point(row["budget"], m["value"], m["low"], m["high"])
                for row in results["rows"]
                if row["arm"] == arm
                for m in [row["metrics"][metric]]
            ],
        )
        for arm in arms
    ]
    budgets = sorted({row["budget"] for row in results["rows"]} - {0})
    series.append(Series(NO_FEEDBACK, [Point(budgets[0], base), Point(budgets[-1], base)]))
    return line_chart(
        series,
        title=f"Encoder feedback: token F1 against what was spent ({results['n']} unseen texts)",
        x_label="encoder queries and backward passes for one text",
        y_label="token F1",
        log_x=True,
    )


def table(results: dict[str, Any]) -> str:
    """A row for each arm and budget, as markdown."""
    lines = [
        "| arm | budget | queries / gradients | token F1 | BLEU | exact % | cosine | CPU s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        f1, bleu, exact, cosine = (row["metrics"][key] for key in ("token_f1", "bleu", "exact_match", "cosine"))
        whole = "queries" in row
        spent = f"{row['queries']:.0f} / {row['gradients']:.0f}" if whole else ""
        lines.append(
            f"| {row['arm']} | {row['budget']} | {spent} | {f1['value']:.3f} [{f1['low']:.3f}, {f1['high']:.3f}] | "
            f"{bleu['value']:.1f} | {100 * exact['value']:.1f} | {cosine['value']:.3f} | "
            f"{row['cpu_seconds'] if whole else ''} |"
        )
    return "\n".join(lines)


def _weights(inverter: Inverter) -> str:
    """A hash of the weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(inverter.artifact.net.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
