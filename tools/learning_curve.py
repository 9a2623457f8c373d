"""Draw how an inverter learned: what comes back of unseen texts, against the texts that it had seen.

    bash runs/stages.sh /tmp/stages     # the weights of all stages, out of the repository's history
    python tools/learning_curve.py /tmp/stages/* --dataset D --data results/learning_curve.json -o CHART.svg
    python tools/learning_curve.py --data results/learning_curve.json -o docs/images/learning_curve.svg

All stages are measured on the same validation texts, at unknown length, with today's decoding: by the denoiser, from
the stage on that has one by the writer, and then with the echo. One whose numbers on these texts are kept already is
not measured again. Without inverters the chart is drawn anew from what is kept.
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
from unembed.measure.metrics import Bleu, cosine, score_texts  # noqa: E402
from unembed.measure.plot import Point, Series, line_chart  # noqa: E402
from unembed.model import batches, objective  # noqa: E402

LEVELS = (1.0, 0.5, 0.15)
CURVES = {"cosine": "cosine", "token_f1": "token F1", "bleu_text": "BLEU of each text / 100"}
SCALES = {"bleu_text": 0.01}


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
    found = inverter.invert(examples.vectors.astype(np.float32))
    texts, tokens = [one.text for one in found], [list(one.tokens) for one in found]
    scored = score_texts(examples.texts, texts, [row.tolist() for row in examples.tokens], tokens, Bleu())
    columns = {name: scored[name] for name in ("token_f1", "bleu_text")}
    near = cosine(encoder.encode(texts), examples.vectors)
    columns["cosine"] = np.stack([near, np.ones(len(near))], 1)
    batch = batches.collate(examples.tokens, examples.vectors)
    entropy = {
        f"{level:g}": objective.validation_entropy(inverter.artifact.net, batch, level, seed) for level in LEVELS
    }
    parts = [inverter.artifact.info["data"]]  # the denoiser's, and then the writer's on top of it
    if inverter.artifact.writer is not None:
        written = inverter.artifact.info["writer"]
        parts.append({**written["data"], "seconds": written["seconds"]})
    return {
        "inverter": folder.name,
        "texts": sum(part["texts seen"] for part in parts),
        "seconds": sum(part["seconds"] for part in parts),
        "metrics": {key: asdict(value) for key, value in estimate(columns, resamples=1000, seed=seed).items()},
        "entropy": {key: round(value, 4) for key, value in entropy.items()},
    }


def draw(results: dict[str, Any]) -> str:
    """The chart."""
    series = []
    for key, name in CURVES.items():
        values = [(stage["texts"], stage["metrics"][key]) for stage in results["stages"]]
        scale = SCALES.get(key, 1.0)
        points = [Point(x, *(scale * value[bound] for bound in ("value", "low", "high"))) for x, value in values]
        series.append(Series(name, points))
    return line_chart(
        series,
        title=f"What comes back of {results['n']} unseen texts, without asking the encoder",
        x_label="texts that the denoiser, and then the writer, had seen",
        y_label="",
    )


def _texts(stage: dict[str, Any]) -> int:
    return int(stage["texts"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
