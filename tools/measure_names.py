"""How well names and places are found: planted into real sentences and templates, in case and as the inverter writes.

    python tools/measure_names.py CORPUS [-n 400]

CORPUS is a folder of .txt.xz files with `wikipedia_en`, whose articles give names of people and places that nobody
chose for the word lists. The sentences are of other sources and have no capitalised word inside, so that whatever is
found in them besides the planted is wrong. The numbers are quoted in unembed/audit/names.py.
"""

from __future__ import annotations

import argparse
import lzma
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

import numpy as np  # noqa: E402

import unembed  # noqa: E402
from unembed.audit.leak import tokens_of  # noqa: E402
from unembed.audit.names import find_names  # noqa: E402
from unembed.data.shards import load_tokenizer  # noqa: E402
from unembed.data.text import decode  # noqa: E402

PERSON = re.compile(r"^([A-Z][a-z]+(?: [A-Z]\.)?(?: [A-Z][a-z]+){1,2}) \((?:born|[^()]{0,40}\d{4})")
PLACE = re.compile(
    r"^([A-Z][a-z]+(?: [A-Z][a-z]+)?),? (?:[^.]{0,40} )?is a (?:city|town|village|municipality|commune|suburb) "
)
SOURCES = ("reddit_top2.5m", "changelog_transcripts", "eltec_novels", "tatoeba_sentences", "spamassassin_ham_emails")
PRONOUN = re.compile(r"(?<=[a-z] )(?:he|she)(?= (?:was|is|had|has|said|did|could|would|went|came|saw|took|made)\b)")
SOMEWHERE = re.compile(
    r"(?:(?<=\bin )|(?<=\bto )|(?<=\bfrom )|(?<=\bnear ))(?:town|there|here|school|bed|court)(?=[ .,])"
)
NAME_TEMPLATES = (
    "The invoice was sent to {} last week.", "{} asked for a refund on Monday.", "Please call {} about the results.",
    "My name is {} and I want to cancel.", "Patient {} was seen in the clinic today.", "I spoke with {} yesterday.",
)  # fmt: skip
PLACE_TEMPLATES = (
    "She lives in {} with her two sons.", "We flew to {} in the summer.", "He was born in {} before the war.",
    "The office in {} will be closed.", "They moved from {} last year.", "The weather near {} was bad.",
)  # fmt: skip


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("-n", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    tokenizer = load_tokenizer(unembed.SHIPPED / "tokenizer.json")
    articles = list(lines(options.corpus, "wikipedia_en", 400_000))
    plain = [line for source in SOURCES for line in lines(options.corpus, source, 60_000) if is_plain(line)]
    print(f"{'':28s} {'recall':>7s} {'precision':>10s}   (by word; n {options.n} each)")
    for kind, pattern, slot, templates in (
        ("NAME", PERSON, PRONOUN, NAME_TEMPLATES), ("PLACE", PLACE, SOMEWHERE, PLACE_TEMPLATES)
    ):  # fmt: skip
        names = sorted({match.group(1) for line in articles if (match := pattern.match(line))})
        carriers = [
            slot.sub("{}", line.replace("{", "").replace("}", ""), count=1) for line in plain if slot.search(line)
        ]
        for what, frames in (("real sentences", carriers), ("templates", list(templates))):
            texts, planted = plant(rng, frames, names, options.n)
            written = decode(tokenizer, tokens_of(tokenizer, texts))
            for case, some in (("cased", texts), ("as the inverter writes", written)):
                recall, precision = score(kind, some, planted)
                print(f"{kind:5s} {what:15s} {case:22s} {recall:7.2f} {precision:10.2f}")
        print(f"{kind}: {len(names):,} different ones in the articles, {len(carriers):,} sentences to plant them in")
    return 0


def lines(corpus: Path, source: str, most: int) -> Iterator[str]:
    """The first lines of a source."""
    with lzma.open(corpus / f"{source}.txt.xz", "rt", encoding="utf8") as file:
        for _, line in zip(range(most), file, strict=False):
            yield line.strip()


def is_plain(line: str) -> bool:
    """Whether no word but the first of a sentence (and I) has a capital."""
    return 30 < len(line) < 160 and not re.search(r"(?<![.!?] )(?<!^)\b(?!I\b)[A-Z]", line) and "{" not in line


def plant(rng: np.random.Generator, frames: list[str], names: list[str], n: int) -> tuple[list[str], list[str]]:
    """Sentences with a name in each, and the names."""
    some = [names[i] for i in rng.choice(len(names), n, replace=len(names) < n)]
    chosen = [frames[i] for i in rng.choice(len(frames), n, replace=len(frames) < n)]
    return [frame.replace("{}", name, 1) for frame, name in zip(chosen, some, strict=True)], some


def score(kind: str, texts: list[str], planted: list[str]) -> tuple[float, float]:
    """Recall and precision by word; whatever kind is found where nothing is planted is wrong."""
    wanted = right = found = 0
    for text, name in zip(texts, planted, strict=True):
        truth = set(re.findall(r"[a-z]{2,}", name.lower()))
        here = [
            word
            for what, start, end, _ in find_names(text)
            if what == kind
            for word in re.findall(r"[a-z]{2,}", text[start:end].lower())
        ]
        wanted, right, found = wanted + len(truth), right + len(truth & set(here)), found + len(here)
    return right / max(wanted, 1), right / max(found, 1)


if __name__ == "__main__":
    sys.exit(main())
