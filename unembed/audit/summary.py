"""`audit.json`: the log in numbers, each with its interval. A pure function of the log, so it can be made again."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from unembed.audit import wording
from unembed.audit.log import Record
from unembed.measure import bootstrap

FORMAT = 1
RESAMPLES = 1000
LENGTHS = ((1, 8), (9, 16), (17, 32), (33, 64), (65, 128), (129, None))
"""Groups of texts by their number of tokens."""
GROUP = 10
"""The least number of vectors in a point of the calibration plot."""
SURE = 0.5
"""A topic is counted from this probability on."""
Number = dict[str, float]


def summarise(records: Sequence[Record]) -> dict[str, Any]:
    """All numbers of a finished audit."""
    stages = {record["kind"]: record for record in records if record["kind"] != "vector"}
    vectors = sorted((record for record in records if record["kind"] == "vector"), key=lambda record: record["row"])
    seed = stages["config"]["seed"]
    summary: dict[str, Any] = {
        "format": FORMAT,
        "store": _store(stages["sample"]),
        "encoder": _without(stages["identity"]),
        "method": _without(stages["method"]),
        "recovery": _recovery(vectors, seed),
        "feedback": _feedback(stages.get("feedback"), vectors, seed),
        "personal": _personal(vectors),
        "topics": _topics(vectors),
        "controls": _without(stages["controls"]) if "controls" in stages else None,
        "uniqueness": _without(stages["uniqueness"]),
        "examples": [_example(record) for record in vectors if record["pieces"]],
        "reveal": stages["config"]["reveal"],
        "seed": seed,
        "command": stages["done"]["command"],
        "versions": stages["done"]["versions"],
        "times": _times(stages, vectors),
    }
    summary["verdict"] = wording.verdict(summary)
    summary["limits"] = wording.limits(summary)
    summary["next"] = wording.next_steps(summary)
    return summary


def share(part: int, whole: int) -> Number | None:
    """A share with its 95 % interval (Wilson), which is honest for 0 of n, too."""
    if not whole:
        return None
    z, p = 1.959964, part / whole
    centre, span = p + z * z / (2 * whole), z * math.sqrt(p * (1 - p) / whole + z * z / (4 * whole * whole))
    scale = 1 + z * z / whole
    low, high = max(0.0, (centre - span) / scale), min(1.0, (centre + span) / scale)
    return {"value": p, "low": low, "high": high, "n": whole}


def mean(values: Sequence[float], seed: int) -> Number | None:
    """A mean with its bootstrap 95 % interval."""
    if not len(values):
        return None
    column = np.stack([np.asarray(values, dtype=np.float64), np.ones(len(values))], axis=1)
    # Any metric that is a mean will do: the name decides only how sums become the number.
    found = bootstrap.estimate({"token_f1": column}, resamples=RESAMPLES, seed=seed)["token_f1"]
    return {**dataclasses.asdict(found), "n": len(values)}


def _store(sample: Record) -> dict[str, Any]:
    kept = ("sampled", "with_text", "longer_than_window", "left_out", "loss", "notes")
    return {**sample["description"], **{key: sample[key] for key in kept}}


def _recovery(vectors: list[Record], seed: int) -> dict[str, Any]:
    truths = [record["truth"] for record in vectors if record["truth"]]
    estimates = [record["estimate"] for record in vectors if record["estimate"] is not None]
    f1 = [truth["token_f1"] for truth in truths]
    kind = "measured" if truths else "estimated" if estimates else "none"
    # One number for one set of vectors: with stored text, those that have it.
    lengths = [(r["tokens"], r["truth"]["token_f1"] if truths else r["estimate"]) for r in vectors if _counted(r, kind)]
    return {
        "kind": kind,
        "n": len(truths) if truths else len(estimates),
        "recovered": len(vectors),
        "token_f1": mean(f1 if truths else estimates, seed),
        "exact_match": share(sum(truth["exact_match"] == 1 for truth in truths), len(truths)),
        "rouge_l": mean([truth["rouge_l"] for truth in truths], seed),
        "text_cosine": mean([truth["cosine"] for truth in truths if "cosine" in truth], seed),
        "vector_cosine": mean([record["cosine"] for record in vectors if record["cosine"] is not None], seed),
        "estimate": mean(estimates, seed),
        "by_length": _by_length(lengths, seed),
        "cosines": [round(record["cosine"], 3) for record in vectors if record["cosine"] is not None],
        "check": _check(vectors, seed),
    }


def _counted(record: Record, kind: str) -> bool:
    return bool(record["truth"]) if kind == "measured" else record["estimate"] is not None


def _by_length(lengths: list[tuple[int, float]], seed: int) -> list[dict[str, Any]]:
    groups = []
    for low, high in LENGTHS:
        values = [value for tokens, value in lengths if low <= tokens and (high is None or tokens <= high)]
        if values:
            groups.append({"tokens": f"{low}–{high}" if high else f"{low} +", **(mean(values, seed) or {})})
    return groups


def _check(vectors: list[Record], seed: int) -> dict[str, Any] | None:
    """How good the estimates were on this store, where its texts tell."""
    rows = [
        (r["estimate"], r["truth"]["token_f1"], r["low"], r["high"]) for r in vectors if r["truth"] and _estimated(r)
    ]
    if len(rows) < GROUP:
        return None
    rows.sort()
    within = share(sum(low <= true <= high for _, true, low, high in rows), len(rows))
    curve = []
    for part in np.array_split(np.arange(len(rows)), min(6, len(rows) // GROUP)):
        some = [rows[place] for place in part]
        point = mean([true for _, true, _, _ in some], seed) or {}
        curve.append({"predicted": sum(row[0] for row in some) / len(some), **point})
    bias = sum(row[0] - row[1] for row in rows) / len(rows)
    return {"n": len(rows), "within_interval": within, "bias": bias, "curve": curve}


def _estimated(record: Record) -> bool:
    return record["estimate"] is not None


def _feedback(record: Record | None, vectors: list[Record], seed: int) -> dict[str, Any] | None:
    """What the encoder's help brings, on rows that were recovered both ways."""
    if record is None:
        return None
    alone = {one["row"]: one for one in vectors}
    truths = [(row, truth) for row, truth in zip(record["rows"], record["truth"], strict=True) if truth]
    return {
        "n": len(record["rows"]),
        "queries": record["queries"],
        "token_f1": mean([truth["token_f1"] for _, truth in truths], seed),
        "token_f1_without": mean([alone[row]["truth"]["token_f1"] for row, _ in truths], seed),
        "exact_match": share(sum(truth["exact_match"] == 1 for _, truth in truths), len(truths)),
        "cosine": mean(record["cosine"], seed),
        "cosine_without": mean([alone[row]["cosine"] for row in record["rows"]], seed),
    }


def _personal(vectors: list[Record]) -> dict[str, Any]:
    """Counts by kind; `stored` and `right` where texts are stored."""
    with_text = [record for record in vectors if record["truth"]]
    stored, found, right = (_total(r["personal"][key] for r in with_text) for key in ("stored", "found", "right"))
    anywhere = _total(record["personal"]["found"] for record in vectors)
    kinds = {
        kind: {
            "stored": stored[kind],
            "found": found[kind],
            "right": right[kind],
            "recall": share(right[kind], stored[kind]),
            "precision": share(right[kind], found[kind]),
            "found_in_all": anywhere[kind],
        }
        for kind in sorted(stored | anywhere, key=lambda kind: (-stored[kind], -anywhere[kind], kind))
    }
    given_away = sum(any(record["personal"]["right"].values()) for record in with_text)
    have = sum(any(record["personal"]["stored"].values()) for record in with_text)
    return {
        "kinds": kinds,
        "vectors_with_text": len(with_text),
        "vectors_that_hold_some": have,
        "vectors_that_gave_some_away": share(given_away, have),
    }


def _total(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return total


def _topics(vectors: list[Record]) -> dict[str, Any] | None:
    rows = [record["topics"] for record in vectors if record["topics"]]
    if not rows:
        return None
    return {
        topic: {
            "sure": share(sum(row[topic] >= SURE for row in rows), len(rows)),
            "expected": sum(r[topic] for r in rows),
        }
        for topic in sorted(rows[0], key=lambda topic: -sum(row[topic] for row in rows))
    }


def _example(record: Record) -> dict[str, Any]:
    truth = record["truth"] or {}
    return {
        "id": record["id"],
        "original": record["pieces"]["original"],
        "recovered": record["pieces"]["recovered"],
        "token_f1": truth.get("token_f1"),
        "estimate": [record["estimate"], record["low"], record["high"]] if _estimated(record) else None,
        "cosine": record["cosine"],
    }


def _times(stages: dict[str, Record], vectors: list[Record]) -> dict[str, Any]:
    """All that differs between two runs of the same audit is here."""
    seconds = {kind: record["seconds"] for kind, record in stages.items() if "seconds" in record}
    if vectors:
        seconds["vectors"] = round(sum(record["seconds"] for record in vectors), 3)
    return {"begun": stages["sample"]["date"], "finished": stages["done"]["date"], "seconds": seconds}


def _without(record: Record) -> Record:
    return {key: value for key, value in record.items() if key not in ("kind", "seconds", "date")}
