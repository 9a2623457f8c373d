"""Put a trained inverter in place as the shipped one, with its card.

    python tools/ship.py RUN                        weights and card
    python tools/ship.py RUN results/minilm.json    the same, with scores and random examples in the card

Scores need the weights in place first, so the usual order is: ship, `unembed evaluate default ...`, ship again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

from unembed.measure import results  # noqa: E402
from unembed.measure.table import markdown_table  # noqa: E402
from unembed.model import artifact  # noqa: E402

PLACE = ROOT / "unembed" / "weights" / "minilm"
CARD = ROOT / "runs" / "minilm_card.md"
LARGEST = 64_000_000
SCORES = ("token_f1", "rouge_l", "cosine", "bleu", "bleu_text", "exact_match")


def main(arguments: list[str], place: Path = PLACE) -> int:
    """Write the folder; the exit code."""
    if len(arguments) not in (1, 2):
        sys.stderr.write("usage: python tools/ship.py RUN [RESULTS.json]\n")
        return 2
    inverter = artifact.load(arguments[0])
    notes = CARD.read_text()
    if len(arguments) == 2:
        notes += measured(Path(arguments[1]), "confidence" if inverter.writer is None else "writer")
    artifact.save(place, replace(inverter, info={**inverter.info, "notes": notes.strip()}), "int8")
    for file in place.iterdir():
        if file.stat().st_size > LARGEST:
            sys.stderr.write(f"{file} has {file.stat().st_size:,} bytes, more than {LARGEST:,}: do not commit it\n")
            return 1
    return 0


def measured(path: Path, default: str) -> str:
    """What the card says about quality: scores, and examples drawn at random (by seed, when the texts were drawn)."""
    found = results.load(path)
    scores = markdown_table(found, "systems", SCORES, "")
    samples = markdown_table(found, "samples", (), default)
    title = f"{found.n:,} unseen texts, {found.split} split, seed {found.seed}"
    return f"\n## Scores ({title})\n{scores}\n\n## Examples, drawn at random, good and bad\n{samples}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
