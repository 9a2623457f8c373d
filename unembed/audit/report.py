"""`report.html`: the summary as one page for people. No script, nothing from outside, readable on paper."""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

from markupsafe import Markup

from unembed.audit import charts
from unembed.audit.personal import KINDS
from unembed.audit.wording import percent

Summary = dict[str, Any]
TOPICS_SHOWN = 12
FULL_NAMES = {"minilm": "all-MiniLM-L6-v2"}
"""Of encoders whose spec is short."""


def render(summary: Summary) -> str:
    """The page. All text of the store is escaped by the template engine; only our own SVG is not."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["prose"] = prose
    folder = resources.files("unembed.audit") / "templates"
    template = environment.from_string((folder / "report.html.j2").read_text("utf-8"))
    return template.render(
        css=Markup((folder / "report.css").read_text("utf-8")),
        audit=summary,
        **{
            key: summary[key]
            for key in ("store", "verdict", "recovery", "personal", "uniqueness", "encoder", "controls")
        },
        with_originals=any(example["original"] for example in summary["examples"]),
        figures=_figures(summary),
        charts=_charts(summary),
        personal_line=personal_line(summary),
        encoder_line=encoder_line(summary),
        feedback_line=feedback_line(summary),
        control_rows=_control_rows(summary),
        calibration_line=_calibration_line(summary),
        method_facts=_method_facts(summary),
        meaning=KINDS,
    )


def prose(text: str) -> Markup:
    """A sentence for the page: options and `code` set as such, numbers kept together with what belongs to them."""
    kept = re.sub(r"(?<=\d) (?=%)|(?<=%) (?=\[)|(?<=\[\d), (?=\d+\])|(?<=\[\d\d), (?=\d+\])", _glued, text)
    parts = re.split(r"(`[^`]+`|(?<!\w)--[a-z][a-z-]+|unembed (?:encode|train) .*$)", kept)
    return Markup("").join(_code(part) if number % 2 else part for number, part in enumerate(parts))


def _code(part: str) -> Markup:
    """An option stays on one line, a command may not fit on one."""
    shape = '<code class="option">{}</code>' if part.startswith("--") else "<code>{}</code>"
    return Markup(shape).format(part.strip("`"))


def _glued(match: re.Match[str]) -> str:
    return match.group().replace(" ", "\u00a0")


def encoder_line(summary: Summary) -> str:
    """Which encoder, how sure, and by what."""
    encoder = summary["encoder"]
    if encoder["encoder"] is None:
        return "Unknown: no encoder that unembed knows makes vectors like these."
    if encoder["sure"] == "unknown":
        return f"Named as {encoder['encoder']}, but the vectors contradict."
    how = {
        "told": "so it was named",
        "text": "stored texts, embedded again, give the stored vectors",
        "fingerprint": "the statistics of the vectors are those of its vectors",
        "round trip": "recovered texts, embedded again, come near the stored vectors",
    }.get(encoder["how"], encoder["how"])
    if encoder["sure"] == "certain":
        return f"{encoder['encoder']}, for certain: {how}."
    return f"{encoder['encoder']}, likely ({100 * encoder['confidence']:.0f} %): {how}."


def personal_line(summary: Summary) -> str:
    """How many vectors gave personal data away."""
    personal = summary["personal"]
    given = personal["vectors_that_gave_some_away"]
    if given is None:
        return f"None was found in the {personal['vectors_with_text']:,} stored texts."
    value, interval = percent(given)
    right = sum(row["right"] for row in personal["kinds"].values())
    stored = sum(row["stored"] for row in personal["kinds"].values())
    return (
        f"{given['n']:,} of {personal['vectors_with_text']:,} stored texts hold some. At least one value came back "
        f"from {value} {interval} of their vectors: {right} of {stored} values in all."
    )


def feedback_line(summary: Summary) -> str:
    """What came back when the encoder was asked, too; empty if it was not."""
    found = summary["feedback"]
    if found is None:
        return ""
    asked = f"With the encoder asked up to {found['queries']} times a vector, on {found['n']} rows,"
    if found["token_f1"] is None:
        return (
            f"{asked} the cosine rises from {found['cosine_without']['value']:.2f} to {found['cosine']['value']:.2f}."
        )
    value, interval = percent(found["token_f1"])
    without, _ = percent(found["token_f1_without"])
    return f"{asked} {value} {interval} of the words came back; of the same rows without, {without}."


def _figures(summary: Summary) -> list[tuple[str, str, str]]:
    """The few numbers of the first screen: (name, value, detail)."""
    recovery, personal, store = summary["recovery"], summary["personal"], summary["store"]
    rows = []
    if recovery["exact_match"]:
        value, interval = percent(recovery["exact_match"])
        rows.append(("came back word for word", value, f"{interval} of {recovery['n']:,} texts"))
    if personal["vectors_that_gave_some_away"]:
        value, interval = percent(personal["vectors_that_gave_some_away"])
        rows.append(("gave personal data away", value, f"{interval} of the vectors whose text holds some"))
    elif recovery["recovered"] and not store["with_text"]:
        found = sum(row["found_in_all"] for row in personal["kinds"].values())
        rows.append(("looks like personal data", f"{found:,}", "values in the recovered texts, not checked"))
    encoder = summary["encoder"]
    known = [FULL_NAMES[encoder["encoder"]]] if encoder["encoder"] in FULL_NAMES else []
    detail = ", ".join([*known, encoder["sure"]]) if encoder["encoder"] else ""
    rows.append(("encoder", encoder["encoder"] or "unknown", detail))
    rows.append(("vectors audited", f"{store['sampled']:,}", drawn(store)))
    return rows


def drawn(store: dict[str, Any]) -> str:
    """How many rows there are, and how the sample was taken."""
    if store["rows_exact"] and store["sampled"] >= store["rows"]:
        return "all rows of the store"
    return f"of {'' if store['rows_exact'] else 'about '}{store['rows']:,} rows, drawn at random"


def _charts(summary: Summary) -> dict[str, Markup | None]:
    recovery, controls = summary["recovery"], summary["controls"] or {}
    cosine = length = personal = topics = calibration = None
    if recovery["cosines"]:
        others = [_control_group(name, controls.get(name)) for name in ("shuffled", "random")]
        groups = [charts.Group("recovered", "real", recovery["cosines"]), *others]
        cosine = charts.histogram(groups, title="Cosine of vector and recovered text", x_label="cosine")
    if recovery["by_length"]:
        dots = [
            charts.Dot(row["tokens"], row["value"], row["low"], row["high"], row["n"]) for row in recovery["by_length"]
        ]
        chance = summary["verdict"]["chance"]
        length = charts.by_group(dots, title="Token F1 by length", x_label="tokens of the text", chance=chance)
    # Where the stored texts hold none, what was found is made up: the table says so, and there is nothing to draw.
    if rows := _personal_bars(summary["personal"]["kinds"], bool(summary["store"]["with_text"])):
        personal = charts.bars(rows, title="Personal data by kind")
    if summary["topics"]:
        topics = charts.bars(_topic_bars(summary["topics"]), title="Vectors by sensitive topic")
    if curve := _curve(summary):
        title = "Estimated against true token F1"
        dots = [charts.Dot("", p["value"], p["low"], p["high"], int(p["n"]), p["predicted"]) for p in curve]
        calibration = charts.calibration(dots, title=title)
    return {"cosine": cosine, "length": length, "personal": personal, "topics": topics, "calibration": calibration}


def _control_group(name: str, control: dict[str, Any] | None) -> charts.Group:
    """The cosines of a control, each one where it has them, else their mean."""
    if control is None or control["cosine"] is None:
        return charts.Group(name, name, [])
    values = control.get("cosines")
    return charts.Group(name, name, values) if values else charts.Group(f"{name} (mean)", name, [control["cosine"]])


def _personal_bars(kinds: dict[str, Any], with_text: bool) -> list[charts.Bar]:
    if with_text:
        rows = [(kind, row) for kind, row in kinds.items() if row["stored"]]
        return [charts.Bar(k, row["right"], row["stored"], f"{row['right']} of {row['stored']}") for k, row in rows]
    return [
        charts.Bar(k, row["found_in_all"], row["found_in_all"], str(row["found_in_all"])) for k, row in kinds.items()
    ]


def _topic_bars(topics: dict[str, Any]) -> list[charts.Bar]:
    shown = list(topics.items())[:TOPICS_SHOWN]
    return [
        charts.Bar(name, row["sure"]["value"], row["sure"]["value"], " ".join(percent(row["sure"])))
        for name, row in shown
    ]


def _curve(summary: Summary) -> list[dict[str, float]]:
    """Points of the calibration plot: of this store where its texts allow, else of the held-out texts."""
    if summary["recovery"]["check"]:
        return list(summary["recovery"]["check"]["curve"])
    fit = summary["method"]["calibration"]
    return [{**point, "value": point["observed"]} for point in fit["curve"]] if fit else []


def _calibration_line(summary: Summary) -> str:
    check, fit = summary["recovery"]["check"], summary["method"]["calibration"]
    if check:
        value, interval = percent(check["within_interval"])
        return (
            f"This store keeps its texts, so the estimates that are made without them can be checked: {value} "
            f"{interval} of {check['n']:,} true values lie within the 95 % interval of their estimate, and the mean "
            f"estimate is off by {100 * check['bias']:+.1f} points."
        )
    if not fit:
        return ""
    return (
        f"The estimates were calibrated on held-out texts and checked on {fit['checked']:,} others, shown here: "
        f"{100 * fit['coverage']:.0f} % of these lay within their 95 % interval."
    )


def _control_rows(summary: Summary) -> list[dict[str, Any]]:
    """The real thing and both controls: (name, n, token F1, cosine, personal data found and right)."""
    recovery, controls, kinds = summary["recovery"], summary["controls"], summary["personal"]["kinds"].values()
    if not controls:
        return []
    real = {
        "n": recovery["recovered"],
        "token_f1": recovery["token_f1"] and recovery["token_f1"]["value"],
        "cosine": recovery["vector_cosine"] and recovery["vector_cosine"]["value"],
        "found": sum(row["found_in_all"] for row in kinds),
        "right": sum(row["right"] for row in kinds) if summary["store"]["with_text"] else None,
    }
    rows = [{"name": "recovered", **real}]
    for key, name in (("shuffled", "recovered from other rows"), ("random", "recovered from random vectors")):
        row = dict(controls[key])
        row["found"] = sum((row["personal"] or {}).values())
        row["right"] = None if row["personal_right"] is None else sum(row["personal_right"].values())
        rows.append({"name": name, **row})
    return rows


def _method_facts(summary: Summary) -> list[tuple[str, str]]:
    store, method = summary["store"], summary["method"]
    metric = f", metric {store['metric']}" if store["metric"] else ""
    dim = store["dim"] or summary["encoder"]["form"]["dim"]
    text = f"{store['with_text']:,} rows have one ({store['text_field']})" if store["with_text"] else "none stored"
    facts = [
        ("store", f"{store['kind']}, {dim} dimensions, {store['dtype']}{metric}"),
        ("sample", f"{store['sampled']:,} rows, uniform, without replacement, seed {summary['seed']}; read only"),
        ("text", text),
    ]
    if method["why_not"] is None:
        facts += [
            (
                "inverter",
                f"{method['inverter']}, weights {method['weights'][:12]}, at most {method['max_tokens']} tokens",
            ),
            (
                "decoding",
                ", ".join(f"{k} {v}" for k, v in method["decode"].items() if k in DECODING and v is not None),
            ),
            ("encoder asked", method["asked"]),
        ]
    return [*facts, *((f"note {number}", note) for number, note in enumerate(method["notes"], 1))]


DECODING = ("strategy", "steps", "guidance", "lengths", "n_best", "temperature")
