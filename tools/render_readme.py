"""Render the tables of the README and the docs from results files, between marker comments.

    python tools/render_readme.py            rewrite README.md and docs/*.md
    python tools/render_readme.py --check    exit 1 and name the file if a table differs from its results

A place for a table of `results/main.json`, each marker on a line of its own:

    <!-- results:main view=systems columns=token_accuracy,bleu -->
    <!-- /results:main -->

`view` is systems (default), originals (near copies left out), source, length or samples; `system=` names the system of
the last three. `results:feedback...` is the table of `tools/feedback_curve.py`, of the arms and budgets that are named:
`arms=black-box,white-box` (- for a blank), `budgets=100,320`. `results:ablations` is that of `tools/ablate.py`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

from unembed.data.shards import write_whole  # noqa: E402
from unembed.errors import ConfigError, UnembedError  # noqa: E402
from unembed.measure.results import load  # noqa: E402
from unembed.measure.table import ablation_table, feedback_table, markdown_table  # noqa: E402

_BEGIN = re.compile(r"^<!-- results:(?P<name>[\w-]+)(?P<options>[^<>]*?) -->$", re.MULTILINE)
_OPTIONS = ("view", "columns", "system")
_FEEDBACK_OPTIONS = ("arms", "budgets")


def render(text: str, root: Path) -> str:
    """The page with every marked table made anew."""
    done, place = [], 0
    for begin in _BEGIN.finditer(text):
        closing = f"<!-- /results:{begin['name']} -->"
        end = text.find(closing, begin.end())
        if end < 0 or _BEGIN.search(text, begin.end(), end):
            raise ConfigError(f"the table {begin[0]} does not end: write {closing} on a line below it")
        path, words = root / "results" / f"{begin['name']}.json", begin["options"].split()
        made = _MAKERS.get(begin["name"].partition("_")[0], table)(path, words)
        done += [text[place : begin.end()], "\n", made, "\n"]
        place = end
    return "".join([*done, text[place:]])


def table(path: Path, words: list[str]) -> str:
    """The table that the options of a marker ask for."""
    options = read_options(words, _OPTIONS)
    columns = options["columns"].split(",") if options["columns"] else ()
    return markdown_table(load(path), options["view"] or "systems", columns, options["system"])


def feedback(path: Path, words: list[str]) -> str:
    """The table of encoder feedback."""
    options = read_options(words, _FEEDBACK_OPTIONS)
    arms, budgets = (value.split(",") if value else [] for value in options.values())
    return feedback_table(
        json.loads(path.read_text()), [arm.replace("-", " ") for arm in arms], [int(b) for b in budgets]
    )


def ablations(path: Path, words: list[str]) -> str:
    """The table of what each part of the recipe is worth."""
    read_options(words, ())
    return ablation_table(json.loads(path.read_text()))


_MAKERS = {"feedback": feedback, "ablations": ablations}


def read_options(words: list[str], known: tuple[str, ...]) -> dict[str, str]:
    """Words of the form name=value, of the names that are known."""
    options = dict.fromkeys(known, "")
    for word in words:
        key, equals, value = word.partition("=")
        if key not in options or not equals:
            raise ConfigError(f"cannot read {word!r} in a results marker: its options are {'=, '.join(known)}=")
        options[key] = value
    return options


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Render, or with --check only compare; the exit code."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python tools/render_readme.py [--check]\n")
        return 2
    stale = []
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        try:
            old = page.read_text("utf-8")
            new = render(old, root)
        except (OSError, UnembedError) as error:
            sys.stderr.write(f"{page}: {error}\n")
            return 2
        if new != old:
            stale.append(page)
            if not arguments:
                write_whole(page, lambda part, text=new: part.write_text(text, "utf-8"))  # type: ignore[misc]
    if stale and arguments:
        names = ", ".join(str(page.relative_to(root)) for page in stale)
        sys.stderr.write(f"{names}: tables differ from their results; run python tools/render_readme.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
