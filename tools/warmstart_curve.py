"""Draw what a warm start saves: training runs for another encoder, from the shipped inverter and without it.

    bash runs/warmstart.sh SET OUT      # trains both
    python tools/warmstart_curve.py OUT/warm OUT/cold --data results/warmstart.json -o docs/images/warmstart.svg
    python tools/warmstart_curve.py --data results/warmstart.json -o docs/images/warmstart.svg

The numbers are those that the runs wrote at their validations: the cross-entropy at three shares of masks, and token F1
of some texts recovered from nothing but masks. Without runs the chart is drawn anew from what is kept.
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
from unembed.measure import provenance  # noqa: E402
from unembed.measure.plot import Point, Series, line_chart  # noqa: E402

NAMES = {
    "warm": "the shipped inverter behind a map",
    "map": "the map alone",
    "language": "its language only",
    "cold": "neither",
}
DRAWN = "entropy_0.5"


def main(arguments: list[str]) -> int:
    """Keep the numbers of the runs, draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of `unembed train`, named warm and cold")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.runs:
        about = {"machine": provenance.machine(), "command": provenance.command_line(), "date": provenance.now()}
        kept = {**about, "runs": {run.name: read(run) for run in options.runs}}
        text = json.dumps(kept, indent=1) + "\n"
        write_whole(options.data, lambda part: part.write_text(text))
    chart = draw(json.loads(options.data.read_text()))
    write_whole(options.output, lambda part: part.write_text(chart))
    return 0


def read(run: Path) -> dict[str, Any]:
    """The settings of a run and all its validations."""
    described = json.loads((run / "config.json").read_text())
    lines = (run / "training" / "metrics.jsonl").read_text().splitlines()
    found = [event["metrics"] for event in map(json.loads, lines) if "token_f1" in event["metrics"]]
    return {"train": described["train"], "encoder": described["encoder"]["spec"], "validations": found}


def draw(kept: dict[str, Any]) -> str:
    """The chart."""
    series = []
    for name, run in kept["runs"].items():
        points = [Point(one["texts"], one[DRAWN]) for one in run["validations"]]
        series.append(Series(NAMES.get(name, name), points))
    (encoder,) = {run["encoder"] for run in kept["runs"].values()}
    title = f"Cross-entropy with half of a text masked, {encoder}"
    return line_chart(series, title=title, x_label="texts that the denoiser had seen", y_label="")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
