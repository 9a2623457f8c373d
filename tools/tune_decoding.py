"""Try decoding settings on validation texts; the defaults are chosen from this, before any test text is read.

    python tools/tune_decoding.py default /path/to/corpus -n 300 -o results/tuning.json
    python tools/tune_decoding.py default /path/to/corpus --set steps=16 --set lengths=3 ...     other arms

Each `--set` is one arm: changes to the default settings, as name=value, joined by commas.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

import numpy as np  # noqa: E402

import unembed  # noqa: E402
from unembed.data.dataset import Dataset, Examples  # noqa: E402
from unembed.data.shards import write_whole  # noqa: E402
from unembed.decode import DecodeConfig  # noqa: E402
from unembed.measure import provenance  # noqa: E402
from unembed.measure.bootstrap import estimate  # noqa: E402
from unembed.measure.metrics import Bleu, cosine, score_texts  # noqa: E402

ARMS = (
    "", "steps=4", "steps=16", "steps=32", "repeat_penalty=0", "repeat_penalty=1", "repeat_penalty=2.5",
    "distinct=false", "lengths=3", "lengths=3,score=pseudo", "steps=16,lengths=5,score=pseudo", "guidance=1.3",
    "strategy=entropy",
    "strategy=remask,steps=16", "strategy=sequential,steps=32",
)  # fmt: skip
METRICS = ("token_f1", "token_accuracy", "bleu", "bleu_text", "rouge_l", "exact_match", "length_error")


def main() -> int:
    """Run every arm on the same texts and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inverter")
    parser.add_argument("dataset", type=Path)
    parser.add_argument("-n", type=int, default=300)
    parser.add_argument("--set", action="append", dest="arms", metavar="NAME=VALUE,...")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    inverter = unembed.load() if options.inverter == "default" else unembed.Inverter.from_pretrained(options.inverter)
    examples = Dataset(options.dataset).sample("validation", options.n, 1)
    arms = [run(inverter, examples, arm) for arm in options.arms or ARMS]
    if options.output:
        result = {
            "split": "validation", "n": len(examples.texts), "seed": 1, "command": provenance.command_line(),
            "machine": provenance.machine(), "versions": provenance.versions(), "arms": arms,
        }  # fmt: skip
        text = json.dumps(result, indent=1) + "\n"
        write_whole(options.output, lambda part: part.write_text(text))
    return 0


def run(inverter: unembed.Inverter, examples: Examples, arm: str) -> dict[str, object]:
    """Decode the texts with these settings and score them."""
    config = settings(arm)
    began = time.perf_counter()
    found = inverter.invert(examples.vectors, config)
    seconds = time.perf_counter() - began
    tokens = [row.tolist() for row in examples.tokens]
    texts = [one.text for one in found]
    columns = score_texts(examples.texts, texts, tokens, [one.tokens for one in found], Bleu())
    again = unembed.encoder(inverter.encoder.spec).encode(texts)
    columns["cosine"] = np.stack([cosine(examples.vectors.astype(np.float32), again), np.ones(len(found))], 1)
    scores = estimate(columns, resamples=500, seed=0)
    shown = {name: scores[name] for name in (*METRICS, "cosine")}
    line = "  ".join(f"{name} {one.value:.3f} [{one.low:.3f}, {one.high:.3f}]" for name, one in shown.items())
    print(f"{arm or 'default':34s} {len(found) / seconds:6.1f} texts/s  {line}", flush=True)
    return {
        "arm": arm or "default",
        "settings": dataclasses.asdict(config),
        "texts_per_second": round(len(found) / seconds, 2),
        "scores": {name: dataclasses.asdict(one) for name, one in shown.items()},
    }


def settings(arm: str) -> DecodeConfig:
    """The default settings with the changes of an arm."""
    known = [field.name for field in dataclasses.fields(DecodeConfig)]
    changes: dict[str, object] = {}
    for change in filter(None, arm.split(",")):
        name, _, value = change.partition("=")
        if name not in known:
            raise SystemExit(f"no setting {name!r}; known: {', '.join(known)}")
        try:
            changes[name] = json.loads(value)
        except json.JSONDecodeError:  # a name, such as that of a strategy
            changes[name] = value
    return dataclasses.replace(DecodeConfig(), **changes)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main())
