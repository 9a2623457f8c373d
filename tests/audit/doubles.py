"""Records as an audit writes them, made up: for what reads a log and needs no model."""

from __future__ import annotations

import numpy as np

WORDS = ("the", "patient", "was", "seen", "by", "a", "doctor", "in", "march", "and", "asked", "for", "a", "letter")
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "</style><script>document.title='owned'</script>",
    "{{ 7 * 7 }} {% for %} <svg onload=alert(1)> & \"quotes\" 'single' <!-- -->",
    "x" * 400,
    "‮right to left‬ \u2028 zero\u200bwidth 日本語 🙂",
)


def records(n: int = 60, *, texts: bool = True, readable: bool = True, hostile: bool = False, reveal: bool = False):
    """The records of a finished audit."""
    rng = np.random.default_rng(0)
    found = [config(reveal=reveal), sample(n, texts, hostile), identity(readable), method(readable)]
    if readable:
        found += [vector(rng, row, texts, hostile) for row in range(n)]
    found.append({
        "kind": "uniqueness", "seconds": 0.1, "n": n, "near_duplicates": 2, "linked": 4, "threshold": 0.7,
        "background": 0.1, "note": "Near-duplicate: another sampled vector at a cosine of 0.95 or more.",
    })  # fmt: skip
    if readable:
        found.append(control(rng, texts))
    found.append({
        "kind": "done", "date": "2026-11-16T14:00:00+00:00", "command": "unembed audit store.parquet --seed 0",
        "versions": {"unembed": "0.1.0", "python": "3.11"},
    })  # fmt: skip
    return found


def config(**changes):
    return {"kind": "config", "format": 1, "place": "store.parquet", "seed": 0, "reveal": False, **changes}


def sample(n: int, texts: bool, hostile: bool):
    place = f"/data/{HOSTILE[0]}.parquet" if hostile else "/data/store.parquet"
    description = {
        "kind": "file", "place": place, "rows": 12_345, "rows_exact": True, "dim": 384, "dtype": "float32",
        "metric": None, "normalised": None, "quantisation": None, "vector_field": "vector",
        "text_field": "text" if texts else None,
    }  # fmt: skip
    return {
        "kind": "sample", "seconds": 0.2, "date": "2026-11-16T13:00:00+00:00", "description": description,
        "fingerprint": "f", "sampled": n, "with_text": n if texts else 0, "longer_than_window": 0, "left_out": {},
        "loss": None, "notes": [HOSTILE[1]] if hostile else [],
    }  # fmt: skip


def identity(readable: bool):
    form = {"dim": 384, "dtype": "float32", "unit": True, "truncated": None, "notes": []}
    known = {"encoder": "minilm", "sure": "certain", "how": "text", "confidence": 1.0, "advice": None}
    unknown = {"encoder": None, "sure": "unknown", "how": "none", "confidence": 0.0, "advice": "train one from pairs"}
    return {
        "kind": "identity", "seconds": 0.3, **(known if readable else unknown), "form": form,
        "why": ["16 stored texts, embedded again, give a cosine of 1.000."], "candidates": [["minilm", 0.9]],
    }  # fmt: skip


def method(readable: bool):
    curve = [
        {"predicted": p, "observed": p + 0.01, "low": p - 0.04, "high": p + 0.06, "n": 90} for p in (0.2, 0.4, 0.6, 0.8)
    ]
    fit = {"n": 700, "checked": 700, "coverage": 0.95, "width": 0.4, "error": 0.08, "bias_of_mean": 0.004}
    return {
        "kind": "method", "why_not": None if readable else "the encoder of these vectors is not known",
        "notes": [], "inverter": "default", "reads": "minilm", "weights": "ab" * 32, "max_tokens": 64,
        "decode": {"strategy": "confidence", "steps": 8}, "asked": "only afterwards, for the cosine",
        "calibration": {**fit, "curve": curve} if readable else None,
    }  # fmt: skip


def vector(rng: np.random.Generator, row: int, texts: bool, hostile: bool):
    estimate = float(rng.uniform(0.2, 0.8))
    f1 = float(np.clip(estimate + rng.normal(0, 0.1), 0, 1))
    stored, right = {"EMAIL": 1} if row % 3 == 0 else {}, {"EMAIL": 1} if row % 12 == 0 else {}
    stored, right = (stored | {"NAME": 2}, right | {"NAME": 1}) if row % 2 else (stored, right)
    first = [[word, bool(rng.random() < f1), None] for word in WORDS]
    if hostile:
        first[3:3] = [[text, None, None] for text in HOSTILE]
    pieces = [part for word in first for part in (word, [" ", None, None])]
    pieces += [["[EMAIL]", row % 12 == 0, "EMAIL"], [".", None, None]]
    return {
        "kind": "vector", "row": row, "id": HOSTILE[0] if hostile else str(row), "text": "recovered", "score": -0.5,
        "confidence": 0.7, "cosine": float(np.clip(rng.normal(0.75, 0.1), -1, 1)), "estimate": estimate,
        "low": max(0.0, estimate - 0.2), "high": min(1.0, estimate + 0.2),
        "truth": {"exact_match": float(row == 7), "token_f1": f1, "rouge_l": f1, "cosine": 0.8} if texts else None,
        "personal": {"stored": stored if texts else {}, "found": stored, "right": right if texts else {}},
        "tokens": int(rng.integers(4, 60)), "topics": {"health": float(rng.random()), "legal": 0.1, "finance": 0.02},
        "pieces": {"original": pieces if texts else None, "recovered": pieces} if row % 10 == 0 else None,
        "seconds": 0.01,
    }  # fmt: skip


def control(rng: np.random.Generator, texts: bool):
    means = {"shuffled": 0.1, "random": 0.25}
    cosines = {name: rng.normal(mean, 0.07, 60).round(3).tolist() for name, mean in means.items()}
    f1 = 0.13 if texts else None
    return {
        "kind": "controls", "seconds": 0.5,
        "shuffled": {"n": 60, "token_f1": f1, "cosine": 0.1, "cosines": cosines["shuffled"], "personal": {"NAME": 1},
            "personal_right": {"NAME": 0} if texts else None},
        "random": {"n": 60, "token_f1": None, "cosine": 0.25, "cosines": cosines["random"], "personal": {},
            "personal_right": {"NAME": 0} if texts else None},
    }  # fmt: skip
