"""Draw how an inverter learned: what comes back of unseen texts, against the texts that it had seen.

    bash runs/stages.sh /tmp/stages     # the weights of all stages, out of the repository's history
    python tools/learning_curve.py /tmp/stages/* --dataset D --data results/learning_curve.json -o CHART.svg
    python tools/learning_curve.py --data results/learning_curve.json -o docs/images/learning_curve.svg

All stages are measured on the same validation texts, from nothing but masks and at unknown length; one whose numbers on
these texts are kept already is not measured again. Without inverters the chart is drawn anew from what is kept.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

import unembed  # noqa: E402
from unembed.data.dataset import Dataset, Examples  # noqa: E402
from unembed.data.shards import write_whole  # noqa: E402
from unembed.measure import provenance  # noqa: E402
from unembed.measure.bootstrap import estimate  # noqa: E402
from unembed.measure.metrics import token_f1  # noqa: E402
from unembed.measure.plot import Point, Series, line_chart  # noqa: E402
from unembed.model import batches, objective  # noqa: E402

LEVELS = (1.0, 0.5, 0.15)
CURVES = {"token_f1": "token F1", "cosine": "cosine"}


def main(arguments: list[str]) -> int:
    """Measure the stages, keep the numbers, draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inverters", nargs="*", type=Path, help="inverter folders, one for each stage")
    parser.add_argument("--dataset", type=Path, help="whose validation texts to recover")
    parser.add_argument("-n", type=int, default=500, help="texts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.inverters:
        dataset = Dataset(options.dataset)
        examples = dataset.sample("validation", options.n, options.seed)
        texts = {"n": len(examples.texts), "seed": options.seed, "dataset": dataset.fingerprint}
        about = {"machine": provenance.machine(), "command": provenance.command_line(), "date": provenance.now()}
        stages = known(options.data, texts)
        for folder in options.inverters:
            if folder.name not in stages:
                stages[folder.name] = measure(folder, examples, options.seed)
                keep(options.data, {**texts, **about, "stages": sorted(stages.values(), key=_texts)})
    chart = draw(json.loads(options.data.read_text()))
    write_whole(options.output, lambda part: part.write_text(chart))
    return 0


def known(path: Path, texts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The stages that were measured on the same texts before, by name."""
    if not path.exists():
        return {}
    kept = json.loads(path.read_text())
    same = all(kept.get(key) == value for key, value in texts.items())
    return {stage["inverter"]: stage for stage in kept["stages"]} if same else {}


def keep(path: Path, found: dict[str, Any]) -> None:
    """Write the numbers, whole or not at all."""
    text = json.dumps(found, indent=1) + "\n"
    write_whole(path, lambda part: part.write_text(text))


def measure(folder: Path, examples: Examples, seed: int) -> dict[str, Any]:
    """Scores of one stage with their intervals, and its cross-entropy at three noise levels."""
    inverter = unembed.load(folder)
    encoder = unembed.encoder(inverter.encoder.spec)
    targets = examples.vectors.astype(np.float32)
    found = inverter.invert(targets)
    seen = encoder.encode([one.text for one in found])
    cosine = (seen * targets).sum(1) / np.linalg.norm(seen, axis=1) / np.linalg.norm(targets, axis=1)
    f1 = [token_f1(a.tolist(), list(b.tokens)) for a, b in zip(examples.tokens, found, strict=True)]
    columns = {"token_f1": np.array(f1), "cosine": cosine}
    columns = {name: np.stack([values, np.ones(len(values))], 1) for name, values in columns.items()}
    batch = batches.collate(examples.tokens, examples.vectors)
    entropy = {
        f"{level:g}": objective.validation_entropy(inverter.artifact.net, batch, level, seed) for level in LEVELS
    }
    data = inverter.artifact.info["data"]
    return {
        "inverter": folder.name,
        "texts": data["texts seen"],
        "seconds": data["seconds"],
        "metrics": {key: asdict(value) for key, value in estimate(columns, resamples=1000, seed=seed).items()},
        "entropy": {key: round(value, 4) for key, value in entropy.items()},
    }


def draw(results: dict[str, Any]) -> str:
    """The chart."""
    series = []
    for key, name in CURVES.items():
        values = [(stage["texts"], stage["metrics"][key]) for stage in results["stages"]]
        series.append(Series(name, [Point(x, value["value"], value["low"], value["high"]) for x, value in values]))
    return line_chart(
        series,
        title=f"What comes back of {results['n']} unseen texts, without asking the encoder",
        x_label="texts that the denoiser had seen",
        y_label="",
    )


def _texts(stage: dict[str, Any]) -> int:
    return int(stage["texts"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
