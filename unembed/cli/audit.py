"""`unembed audit`: what the vectors of a store give away, as a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from unembed.cli import console
from unembed.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import RenderableType

GO_ON = "What was found is kept: run the same command again to go on."
FOLDER = Path("unembed-audit")


def audit(
    source: str,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))] = FOLDER,
    sample: int = 1000,
    seed: int = 0,
    table: str | None = None,
    column: str | None = None,
    text: str | None = None,
    texts: Path | None = None,
    encoder: str | None = None,
    inverter: str = "default",
    feedback: int = 0,
    reveal: bool = False,
    fail_above: float | None = None,
    overwrite: Annotated[bool, Parameter(negative="--resume")] = False,
    json: bool = False,
) -> int:
    """Find out what the vectors of a store give away, and write a report.

    ```
    unembed audit vectors.parquet -o audit
    unembed audit postgresql://me@db.example/app --table docs --column embedding -o audit
    unembed audit qdrant:http://localhost:6333 --table docs --fail-above 0.3 --json
    unembed audit index.faiss --texts texts.jsonl -o audit
    ```

    The store is only read. A sample is inverted, personal data is looked for in what came back, and three files appear
    in the folder: audit.jsonl (every vector's result), audit.json (the numbers) and report.html (for people). Give
    passwords by PGPASSWORD, ~/.pgpass or QDRANT_API_KEY.

    Args:
        source: A file or folder with vectors, a FAISS index, postgresql://..., or kind:place such as qdrant:URL.
        output: The folder for log, numbers and report.
        sample: How many rows to draw at random.
        seed: Decides which rows are drawn, and which the report shows.
        table: Table or collection, where there are several.
        column: Column or name of the vectors, where there are several.
        text: Field with the text of each vector; by default one with a usual name.
        texts: A file with the text of each row, for stores that keep none.
        encoder: The encoder that made the vectors, if you know it; otherwise it is found out.
        inverter: An inverter folder or hub id; `default` is the shipped one, for all-MiniLM-L6-v2.
        feedback: Recover so many rows once more with the help of the encoder, as somebody who has it could. It is asked
            hundreds of times for each, which takes many seconds.
        reveal: Write personal data down as it is, instead of its kind. Then keep the folder as safe as the store.
        fail_above: Exit with 1 if token F1, measured or estimated, is above this number between 0 and 1.
        overwrite: Begin anew, instead of going on with the audit in the folder.
        json: Print the numbers as JSON instead of a summary.
    """
    if fail_above is not None and not 0 <= fail_above <= 1:
        raise ConfigError(f"--fail-above is {fail_above:g}: give a token F1 between 0 and 1, such as 0.3")
    if feedback < 0:
        raise ConfigError(f"--feedback is {feedback}: give a number of rows, or 0 for none")
    from unembed.audit import run
    from unembed.audit.stores import StoreOptions

    where = StoreOptions(table, column, text, texts)
    options = run.Options(where, sample, seed, encoder, inverter, reveal, feedback)
    with console.resumable(GO_ON), console.progress("audit") as bar:
        for step in run.audit(source, output, options, overwrite=overwrite):
            bar.show(step.done, step.total, label=step.stage)
    summary = run.load(output)
    show(summary, output / run.REPORT, json=json)
    return judge(summary, fail_above)


def judge(summary: dict[str, Any], fail_above: float | None) -> int:
    """The exit code: 1 if too much came back."""
    if fail_above is None:
        return 0
    number = summary["verdict"]["token_f1"]
    if number is None:
        raise ConfigError("--fail-above has no token F1 to look at: none was measured or estimated, see the report")
    if number["value"] <= fail_above:
        return 0
    console.warn([f"token F1 is {number['value']:.2f}, above the {fail_above:g} of --fail-above"])
    return 1


def show(summary: dict[str, Any], report: Path, *, json: bool) -> None:
    """The few lines that matter, and where the rest is; or everything as JSON."""
    from unembed.audit.wording import uncalibrated

    if summary["reveal"]:
        console.warn([f"{report.parent} holds personal data as it is: keep it as safe as the store"])
    if why := uncalibrated(summary):
        console.warn([why])
    if json:
        console.print_json(summary)
        return
    from rich.markup import escape
    from rich.text import Text

    out = console.out()
    verdict = summary["verdict"]
    out.print(Text(verdict["sentence"], style="bold"))
    if verdict["second"]:
        out.print(Text(verdict["second"]))
    out.print(_lines(summary))
    out.print(f"[dim]report[/dim]    {escape(str(report))}", soft_wrap=True)


def _lines(summary: dict[str, Any]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    from unembed.audit.report import drawn, encoder_line, feedback_line, personal_line

    store, topics = summary["store"], summary["topics"]
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, min_width=8)
    rows.add_column()

    def add(name: str, text: str) -> None:
        rows.add_row(name, Text(text))  # not markup: [26, 59] is no colour

    add("store", f"{store['place']}: {store['sampled']:,} vectors, {drawn(store)}")
    add("encoder", encoder_line(summary))
    if store["with_text"] and summary["personal"]["kinds"]:
        add("personal", personal_line(summary))
    if line := feedback_line(summary):
        add("feedback", line)
    if topics:
        most = [f"{name} {100 * row['sure']['value']:.0f} %" for name, row in topics.items() if row["sure"]["value"]]
        add("topics", ", ".join(most[:5]) or "none")
    if not summary["recovery"]["recovered"]:
        add("next", summary["next"][0])
    for note in [*store["notes"], *summary["method"]["notes"]]:
        add("note", note)
    return rows
