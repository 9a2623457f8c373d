"""Draw how an inverter learned: cross-entropy at three noise levels against texts seen, from the logs of its stages.

    python tools/learning_curve.py RUN... -o docs/images/learning_curve.svg --data results/learning_curve.json
    python tools/learning_curve.py --data results/learning_curve.json -o docs/images/learning_curve.svg

Without runs the chart is drawn again from the kept numbers: logs of a run do not travel with the repository, these do.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

from unembed.data.shards import write_whole  # noqa: E402
from unembed.measure.plot import Point, Series, line_chart  # noqa: E402
from unembed.model.runlog import MetricsLog  # noqa: E402

LEVELS = {"entropy_1": "everything masked", "entropy_0.5": "half masked", "entropy_0.15": "15 % masked"}


def main(arguments: list[str]) -> int:
    """Collect the validations of the stages, keep them, draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="run folders, in the order of the stages")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.runs:
        text = json.dumps({"validations": validations(options.runs)}, indent=1) + "\n"
        write_whole(options.data, lambda part: part.write_text(text))
    chart = draw(json.loads(options.data.read_text())["validations"])
    write_whole(options.output, lambda part: part.write_text(chart))
    return 0


def validations(runs: list[Path]) -> list[dict[str, float]]:
    """What was measured at every validation of the stages, in order of the texts seen."""
    lines = [line["metrics"] for run in runs for line in MetricsLog(run / "training").lines() if line["metrics"]]
    return sorted(lines, key=lambda metrics: metrics["texts"])


def draw(measured: list[dict[str, Any]]) -> str:
    """The chart."""
    series = [
        Series(name, [Point(one["texts"], one[key]) for one in measured if key in one]) for key, name in LEVELS.items()
    ]
    return line_chart(
        series,
        title="Cross-entropy per token on unseen texts, in nats",
        x_label="texts seen by the denoiser",
        y_label="nats",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
