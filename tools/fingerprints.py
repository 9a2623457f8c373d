"""Make the fingerprints by which `unembed audit` knows an encoder again, from real vectors of real texts.

    python tools/fingerprints.py CORPUS minilm all-mpnet-base-v2

CORPUS is a folder of text files. Each encoder's entry in unembed/audit/fingerprints.json is replaced, the others stay.
Sources in UNSEEN are left out; the score that each of them reaches is kept in the file, and printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

from unembed.audit import fingerprint  # noqa: E402
from unembed.data import encoders  # noqa: E402
from unembed.data.shards import write_whole  # noqa: E402
from unembed.data.sources import find_sources, mix  # noqa: E402

TEXTS, UNSEEN_TEXTS = 2000, 100
UNSEEN = ("medquad_health_qa", "spamassassin_ham_emails")
EVERY = 7  # lines of a file that follow each other are of one document
WORDS = (4, 80)
"""Texts are cut to a length between these, since stores hold sentences as well as chunks."""


def main(arguments: Sequence[str], place: Path = fingerprint.FILE, texts: int = TEXTS) -> int:
    """Write the file; the exit code."""
    if len(arguments) < 2:
        sys.stderr.write("usage: python tools/fingerprints.py CORPUS ENCODER...\n")
        return 2
    corpus, *specs = arguments
    there = {source.name for source in find_sources([corpus])}
    unseen = [name for name in UNSEEN if name in there]
    wanted = take(corpus, texts, exclude=unseen)
    tests = {name: take(corpus, UNSEEN_TEXTS, exclude=there - {name}) for name in unseen}
    entries = {entry["spec"]: entry for entry in json.loads(place.read_text())["encoders"]} if place.exists() else {}
    for spec in specs:
        encoder = encoders.load(spec)
        made = fingerprint.make(spec, encoder.encode(wanted), unit=encoder.normalized)
        scores = {name: score(encoder.encode(tests[name]), made) for name in tests}
        entries[spec] = {**fingerprint.to_json(made), "fingerprint": encoder.fingerprint, "unseen": scores}
        print(f"{spec}: {len(wanted)} texts, {encoder.dim} dimensions; scores of unseen sources {scores}")
        lines = ",\n".join(json.dumps(entry) for entry in entries.values())
        text = f'{{"encoders": [\n{lines}\n]}}\n'
        write_whole(place, lambda part, text=text: part.write_text(text))
    return 0


def take(corpus: str, count: int, exclude: Sequence[str] | set[str]) -> list[str]:
    """Texts of all sources, mixed, of many lengths."""
    sources = find_sources([corpus], exclude=exclude)
    random = np.random.default_rng(0)
    lines = (text.split() for _, text in islice(mix(sources, [0] * len(sources)), 0, None, EVERY))
    cut = (words[: random.integers(*WORDS)] for words in lines if len(words) >= WORDS[0])
    return list(islice((" ".join(words) for words in cut), count))


def score(vectors: npt.NDArray[np.float32], made: fingerprint.Fingerprint) -> float | None:
    """How far vectors of other texts fit."""
    found = fingerprint.match(vectors, made)
    return None if found is None else round(found.score, 3)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
