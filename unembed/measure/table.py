"""Results as tables: plain text for a terminal, Markdown for a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unembed.errors import ConfigError
from unembed.measure.metrics import METRICS, Metric
from unembed.measure.results import Estimate, Results, Scores, SystemResult

Rows = list[list[str]]


def terminal_table(results: Results) -> str:
    """Every system, then the best strategy by source and by length, then what a reader must know."""
    parts = [f"{results.n:,} texts of the split {results.split} · 95 % intervals from {results.resamples:,} resamples"]
    parts.append(plain(systems_rows(results, intervals=True)))
    best = best_strategy(results)
    if best is not None:
        for title, groups in (("source", best.by_source), ("tokens", best.by_length)):
            parts.append(f"{best.name}, by {title}\n" + plain(group_rows(title, groups, intervals=False)))
    if results.near_copies is not None:
        parts.append(near_copies_line(results))
        if results.near_copies.left_out and any(system.without_copies for system in results.systems):  # not all are
            parts.append("without them\n" + plain(systems_rows(results, intervals=True, copies=False)))
    parts.extend(f"note: {note}" for note in results.notes)
    return "\n\n".join(parts)


def markdown_table(results: Results, view: str = "systems", columns: Sequence[str] = (), system: str = "") -> str:
    """One Markdown table: `systems`, `originals` (no near copies), or of one system `source`, `length`, `samples`."""
    if view in ("systems", "originals"):
        return markdown(systems_rows(results, columns=columns, intervals=True, copies=view == "systems"))
    chosen = results.system(system) if system else best_strategy(results)
    if chosen is None:
        raise ConfigError("these results hold no strategy to break down: name a system")
    if view == "source":
        return markdown(group_rows("source", chosen.by_source, columns=columns, intervals=True))
    if view == "length":
        return markdown(group_rows("tokens", chosen.by_length, columns=columns, intervals=True))
    if view == "samples":
        return markdown([["original", "recovered"], *([s.original, s.recovered] for s in chosen.samples)], left=2)
    raise ConfigError(f"no table named {view!r}: choose one of systems, originals, source, length, samples")


def feedback_table(results: dict[str, Any], arms: Sequence[str] = (), budgets: Sequence[int] = ()) -> str:
    """Encoder feedback, as `tools/feedback_curve.py` measures it: a row for each arm and budget, or for some."""
    wanted = ("token_f1", "bleu", "bleu_text", "exact_match", "cosine")
    keys = [key for key in wanted if any(key in row["metrics"] for row in results["rows"])]  # older files lack some
    rows = [["", "budget", *(METRICS[key].title for key in keys), "CPU s"]]
    for row in results["rows"]:
        if (arms and row["arm"] not in arms) or (budgets and row["budget"] not in (0, *budgets)):
            continue
        found = {key: Estimate(**row["metrics"][key]) for key in keys if key in row["metrics"]}
        cells = _cells([METRICS[key] for key in keys], found, True)
        rows.append([row["arm"], str(row["budget"]), *cells, f"{row['cpu_seconds']:.1f}"])
    return markdown(rows)


def ablation_table(results: dict[str, Any]) -> str:
    """What each part of the recipe is worth, as `tools/ablate.py` measures it."""
    rows = [["change", "texts", "CPU s", "100 % masks", "50 %", "15 %", "token F1 %"]]
    for row in results["rows"]:
        entropies = [f"{row[key]:.3f}" for key in ("entropy_1", "entropy_0.5", "entropy_0.15")]
        f1 = f"{100 * row['token_f1']:.1f}"
        rows.append([row["arm"], f"{row['texts']:,}", str(row["cpu_seconds"]), *entropies, f1])
    return markdown(rows)


def systems_rows(results: Results, columns: Sequence[str] = (), *, intervals: bool, copies: bool = True) -> Rows:
    """A row for each system; `copies=False` leaves out near copies of training texts."""
    scores = [system.overall if copies else system.without_copies or {} for system in results.systems]
    if not any(scores):
        raise ConfigError("near copies were not looked for here: evaluate with the baseline nearest")
    metrics = _metrics(columns, scores)
    rows = [["system", *(metric.title for metric in metrics), "s/text", "passes"]]
    for system, found in zip(results.systems, scores, strict=True):
        passes = "" if system.passes_per_text is None else f"{system.passes_per_text:.1f}"
        seconds = "" if system.kind == "reference" else f"{system.seconds_per_text:.4f}"
        rows.append([system.name, *_cells(metrics, found, intervals), seconds, passes])
    return rows


def group_rows(title: str, groups: dict[str, Scores], columns: Sequence[str] = (), *, intervals: bool) -> Rows:
    """A row for each group of texts, with its size."""
    metrics = _metrics(columns, list(groups.values()))
    rows = [[title, "n", *(metric.title for metric in metrics)]]
    for name, scores in groups.items():
        size = next(iter(scores.values())).n
        rows.append([name, f"{size:,}", *_cells(metrics, scores, intervals)])
    return rows


def best_strategy(results: Results) -> SystemResult | None:
    """The strategy with the highest token accuracy; None if there is none."""
    strategies = [system for system in results.systems if system.kind == "inverter"]
    return max(strategies, key=lambda system: system.overall["token_accuracy"].value, default=None)


def near_copies_line(results: Results) -> str:
    """One sentence about how close the texts are to the training texts."""
    near = results.near_copies
    assert near is not None
    quantiles = near.cosine_quantiles
    by_cosine = "" if near.cosine_copies is None else f", {near.cosine_copies:,} a cosine above {near.cosine_threshold}"
    either = "" if near.left_out is None else f" ({near.left_out:,} by either)"
    return (
        f"near copies: {near.copies:,} of {near.n:,} texts have token F1 above {near.f1_threshold}{by_cosine} to the "
        f"nearest of {near.training_texts:,} training texts{either}; cosine to it: median {quantiles['0.5']:.3f}, "
        f"95 % below {quantiles['0.95']:.3f}"
    )


def show(metric: Metric, estimate: Estimate, *, interval: bool) -> str:
    """A value as people write it, such as `41.3 [40.1, 42.5]`."""
    scale = 100 if metric.percent else 1
    value, low, high = (f"{scale * x:.{metric.decimals}f}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]" if interval else value


def plain(rows: Rows) -> str:
    """Aligned columns; the first is a name and stands on the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    rule = "  ".join("─" * width for width in widths)
    return "\n".join(line.rstrip() for line in [lines[0], rule, *lines[1:]])


def markdown(rows: Rows, left: int = 1) -> str:
    """A GitHub table; the first `left` columns stand on the left."""
    rule = ["---" if i < left else "---:" for i in range(len(rows[0]))]
    return "\n".join("| " + " | ".join(_escape(cell) for cell in row) + " |" for row in [rows[0], rule, *rows[1:]])


def _escape(cell: str) -> str:
    """Texts are of anywhere: none may break the table, or become HTML or a link in the page."""
    for character in "\\`*_[]<|":
        cell = cell.replace(character, "\\" + character)
    return " ".join(cell.split())


def _metrics(columns: Sequence[str], scores: list[Scores]) -> list[Metric]:
    for name in columns:
        if name not in METRICS:
            raise ConfigError(f"no metric named {name!r}: choose from {', '.join(METRICS)}")
    present = {name for each in scores for name in each}
    return [METRICS[name] for name in columns or METRICS if name in present]


def _cells(metrics: list[Metric], scores: Scores, intervals: bool) -> list[str]:
    return [show(m, scores[m.name], interval=intervals) if m.name in scores else "" for m in metrics]
