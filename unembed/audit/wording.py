"""What an audit says in sentences. Each one follows from numbers of the summary, and claims no more than they do."""

from __future__ import annotations

from typing import Any

from unembed.audit.topics import PRIOR

Summary = dict[str, Any]
UNREAD = "Nothing was recovered, because nothing here could read these vectors."
UNMEASURED = "Texts came back, but how much of them is right could not be measured."
UNMEASURABLE = "no text is stored beside the vectors, and there is no calibration to estimate from"
WRONG = "the same texts against what came back of other rows"


def verdict(summary: Summary) -> dict[str, Any]:
    """The one sentence (whole, and in parts: before, number, interval, after), its number, and what chance gives."""
    recovery, number = summary["recovery"], summary["recovery"]["token_f1"]
    if number is None:
        sentence, why = (UNMEASURED, UNMEASURABLE) if recovery["recovered"] else (UNREAD, summary["method"]["why_not"])
        second = _sentence(why) + " That is no proof that the vectors are safe."
        return {"parts": [sentence], "sentence": sentence, "second": second, "token_f1": None, "chance": None}
    before = "From a vector alone, an estimated" if recovery["kind"] == "estimated" else "From a vector alone,"
    parts = [before, *percent(number), "of the words of a text came back."]
    chance = _chance(summary)
    if chance is None:
        second = ""
    elif number["low"] <= chance:
        second = f"That is no more than chance: {WRONG} give {100 * chance:.0f} %."
    else:
        second = f"Chance gives {100 * chance:.0f} %: {WRONG}."
    return {"parts": parts, "sentence": " ".join(parts), "second": second, "token_f1": number, "chance": chance}


def percent(number: dict[str, float]) -> tuple[str, str]:
    """A share and its interval: 48 %, [45, 51]."""
    return f"{100 * number['value']:.0f} %", f"[{100 * number['low']:.0f}, {100 * number['high']:.0f}]"


def limits(summary: Summary) -> list[str]:
    """What the numbers do not say."""
    store, recovery, method = summary["store"], summary["recovery"], summary["method"]
    found = [_sample(store)]
    if not recovery["recovered"]:
        return [*found, "No text was recovered: leakage was not measured."]
    found.append(
        "This is what one inverter recovered without asking the encoder. Somebody with a stronger one gets more."
    )
    if summary["feedback"]:
        found.append(f"The encoder was asked on {summary['feedback']['n']} rows only; the verdict is without its help.")
    if store["longer_than_window"]:
        found.append(
            f"{store['longer_than_window']} of {store['with_text']} stored texts are longer than the "
            f"{method['max_tokens']} tokens that the inverter writes. What lies beyond counts as not recovered."
        )
    if recovery["kind"] == "estimated":
        found.append(_estimate(method))
    if why := uncalibrated(summary):
        found.append(why)
    if summary["personal"]["kinds"] or store["with_text"]:
        found.append(
            "Personal data is found by patterns and word lists. Some is missed and some is none; what is covered up in "
            "this report was found by the same rules, so read it before you pass it on."
        )
    if store["loss"]:
        found.append(f"The store keeps quantised vectors (cosine {store['loss']['cosine']:.3f} to the originals).")
    if summary["topics"]:
        found.append(
            "Topics are guesses from example sentences in English. Their probabilities take one text in "
            f"{1 / PRIOR:.0f} to be on a topic: where more are, too few are counted."
        )
    return found


def uncalibrated(summary: Summary) -> str | None:
    """That nothing was estimated, and why; None where there was a calibration, or nothing to estimate."""
    why = summary["method"].get("uncalibrated")  # logs of earlier versions do not say
    return f"Token F1 was not estimated: {why}." if why else None


def next_steps(summary: Summary) -> list[str]:
    """What to do about it."""
    steps = []
    number, chance = summary["verdict"]["token_f1"], summary["verdict"]["chance"]
    if not summary["recovery"]["recovered"]:
        steps.append(summary["encoder"]["advice"] or "Name the encoder with --encoder, or an inverter with --inverter.")
    elif number is None or chance is None or number["low"] > chance:
        steps.append(
            "Treat the vectors like the texts they were made from: the same access rules, the same retention, and "
            "deleted when the text is deleted."
        )
    steps += _about_people(summary)
    if summary["uniqueness"]["near_duplicates"]:
        steps.append("Near-duplicates link rows to each other: remove those that are not needed.")
    if summary["recovery"]["recovered"] and not summary["store"]["with_text"]:
        steps.append("Give the texts with --texts, or name their field with --text, to measure instead of to estimate.")
    steps.append("Audit again after a change of encoder, of quantisation or of what is stored; --fail-above guards it.")
    return steps


def _about_people(summary: Summary) -> list[str]:
    kinds = summary["personal"]["kinds"]
    back = {kind: scores["right"] for kind, scores in kinds.items() if scores["right"]}
    if back:
        told = ", ".join(f"{count} × {kind}" for kind, count in back.items())
        return [f"Remove or replace personal data before texts are embedded. Came back here: {told}."]
    if any(scores["stored"] for scores in kinds.values()):
        return [
            "The stored texts hold personal data. No value came back here; that does not show that none could: embed "
            "texts without it."
        ]
    return []


def _chance(summary: Summary) -> float | None:
    controls = summary["controls"] or {}
    shuffled = controls.get("shuffled", {}).get("token_f1")
    return None if shuffled is None else float(shuffled)


def _sample(store: dict[str, Any]) -> str:
    about = "" if store["rows_exact"] else "about "
    if store["sampled"] >= store["rows"] and store["rows_exact"]:
        return (
            f"All {store['rows']:,} rows were read. The intervals say how much another set of rows like these varies."
        )
    return (
        f"{store['sampled']:,} of {about}{store['rows']:,} rows were drawn at random. The intervals cover that draw "
        "and nothing else."
    )


def _estimate(method: dict[str, Any]) -> str:
    fit = method["calibration"]
    return (
        f"No text is stored, so token F1 is estimated. On {fit['checked']} held-out texts the mean estimate was off by "
        f"{100 * abs(fit['bias_of_mean']):.1f} points, a single one by {100 * fit['error']:.0f}, and "
        f"{100 * fit['coverage']:.0f} % lay within "
        "their 95 % interval. The interval of the verdict covers the draw of rows only. On texts unlike those, the "
        "estimate can be further off."
    )


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
