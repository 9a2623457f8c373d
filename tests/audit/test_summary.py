"""The numbers and sentences of an audit, from its log alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.doubles import records
from unembed.audit.examples import covered, known_parts, side_by_side
from unembed.audit.personal import Finding
from unembed.audit.summary import LENGTHS, share, summarise


@pytest.fixture(scope="module")
def log():
    return records()


@pytest.fixture(scope="module")
def summary(log):
    return summarise(log)


def vectors(log):
    return [record for record in log if record["kind"] == "vector"]


def test_is_json_and_pure(log, summary):
    assert json.loads(json.dumps(summary, allow_nan=False)) == json.loads(json.dumps(summarise(log)))
    # An audit that was resumed may have its lines in another order.
    mixed = [*log[:4], *reversed(log[4:-1]), log[-1]]
    assert summarise(mixed) == summary


def test_the_verdict_is_the_measured_mean(log, summary):
    f1 = [record["truth"]["token_f1"] for record in vectors(log)]
    number = summary["verdict"]["token_f1"]
    assert number["value"] == pytest.approx(sum(f1) / len(f1))
    assert number["low"] < number["value"] < number["high"]
    assert number["n"] == len(f1) == 60
    shown = [round(100 * number[key]) for key in ("value", "low", "high")]
    assert summary["verdict"]["sentence"] == (
        f"From a vector alone, {shown[0]} % [{shown[1]}, {shown[2]}] of the words of a text came back."
    )
    assert "Chance gives 13 %" in summary["verdict"]["second"]


def test_without_texts_it_is_an_estimate_and_says_so(log):
    summary = summarise(records(texts=False))
    estimates = [record["estimate"] for record in vectors(log)]
    assert summary["recovery"]["kind"] == "estimated"
    assert summary["verdict"]["token_f1"]["value"] == pytest.approx(sum(estimates) / 60)
    assert "an estimated" in summary["verdict"]["sentence"]
    assert summary["recovery"]["exact_match"] is None
    assert any("is estimated" in line for line in summary["limits"])
    assert any("--texts" in line for line in summary["next"])


def test_no_more_than_chance_is_called_chance(log):
    weak = [{**r, "truth": {**r["truth"], "token_f1": 0.12}} if r["kind"] == "vector" else r for r in log]
    summary = summarise(weak)
    assert "no more than chance" in summary["verdict"]["second"]
    assert not any("Treat the vectors" in line for line in summary["next"])
    assert any("Treat the vectors" in line for line in summarise(log)["next"])


def test_unreadable_vectors_are_not_called_safe():
    summary = summarise(records(readable=False))
    assert summary["verdict"]["token_f1"] is None
    assert "no proof that the vectors are safe" in summary["verdict"]["second"]
    assert summary["next"][0] == "train one from pairs"
    assert summary["controls"] is None


def test_recovered_but_not_measurable():
    blind = [
        {**r, "estimate": None, "low": None, "high": None} if r["kind"] == "vector" else r for r in records(texts=False)
    ]
    summary = summarise(blind)
    assert summary["verdict"]["token_f1"] is None
    assert "could not be measured" in summary["verdict"]["sentence"]
    assert summary["recovery"]["recovered"] == 60


def test_personal_data_adds_up(log, summary):
    kinds = summary["personal"]["kinds"]
    assert kinds["EMAIL"]["stored"] == 20
    assert kinds["EMAIL"]["right"] == 5
    assert kinds["EMAIL"]["recall"]["value"] == 0.25
    assert kinds["NAME"]["stored"] == 60
    assert list(kinds) == ["NAME", "EMAIL"], "the most frequent first"
    given_away = summary["personal"]["vectors_that_gave_some_away"]
    assert given_away["n"] == 40
    assert given_away["value"] == pytest.approx(35 / 40)


def test_lengths_hold_every_text_once(log, summary):
    assert sum(group["n"] for group in summary["recovery"]["by_length"]) == 60
    short = [r["truth"]["token_f1"] for r in vectors(log) if r["tokens"] <= LENGTHS[0][1]]
    assert summary["recovery"]["by_length"][0]["value"] == pytest.approx(sum(short) / len(short))


def test_estimates_are_checked_against_the_texts(log, summary):
    check = summary["recovery"]["check"]
    within = [r["low"] <= r["truth"]["token_f1"] <= r["high"] for r in vectors(log)]
    assert check["within_interval"]["value"] == pytest.approx(sum(within) / 60)
    assert [point["n"] for point in check["curve"]] == [10] * 6
    predicted = [point["predicted"] for point in check["curve"]]
    assert predicted == sorted(predicted)


def test_times_are_apart(log, summary):
    later = [{**record, "seconds": 9.9, "date": "2030-01-01"} for record in log]
    changed = summarise(later)
    assert changed.pop("times") != summary["times"]
    assert changed == {key: value for key, value in summary.items() if key != "times"}


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_shares_have_honest_intervals(counts):
    part, whole = counts
    found = share(part, whole)
    assert 0 <= found["low"] <= found["value"] + 1e-12
    assert found["value"] - 1e-12 <= found["high"] <= 1
    assert found["low"] < found["high"], "0 of n is not 0 for certain"


def test_share_of_nothing_is_unknown():
    assert share(0, 0) is None


# --- two texts side by side ---------------------------------------------------------------------------------------

ORIGINAL = "Write to Ann Lee at ann@x.org, not bob@x.org!"
FOUND = [Finding("NAME", 9, 16, 1.0), Finding("EMAIL", 20, 29, 1.0), Finding("EMAIL", 35, 44, 1.0)]
RECOVERED = "write an ann, about bob @ x. org and lee"
AGAIN = [Finding("EMAIL", 20, 32, 1.0)]


def test_pieces_are_the_whole_text():
    first, second = side_by_side(ORIGINAL, RECOVERED, FOUND, AGAIN, reveal=True)
    assert "".join(text for text, _, _ in first) == ORIGINAL
    assert "".join(text for text, _, _ in second) == RECOVERED


def test_values_are_compared_before_they_are_covered():
    first, second = side_by_side(ORIGINAL, RECOVERED, FOUND, AGAIN, reveal=False)
    marked = [(text, back) for text, back, kind in first if kind]
    assert marked == [("[NAME]", True), ("[NAME]", True), ("[EMAIL]", False), ("[EMAIL]", True)]
    shown = "".join(text for text, _, _ in second)
    assert shown == "write an [NAME], about [EMAIL] and [NAME]", "a name that nobody found in it is covered, too"
    assert not any(part in shown for part in ("ann", "lee", "bob"))


def test_a_word_comes_back_once():
    first, second = side_by_side("a red red house", "red red red", [], [], reveal=False)
    assert [back for text, back, _ in first if text == "red"] == [True, True]
    assert [back for text, back, _ in second if text == "red"] == [True, True, False]


def test_covered_text():
    parts = known_parts(ORIGINAL, FOUND)
    assert covered(RECOVERED, AGAIN, parts, reveal=False) == "write an [NAME], about [EMAIL] and [NAME]"
    assert covered(RECOVERED, AGAIN, parts, reveal=True) == RECOVERED


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10), st.sampled_from(["NAME", "EMAIL"])), max_size=6)


@given(st.text(max_size=40), spans)
def test_overlapping_findings_leave_no_value(text, found):
    findings = [Finding(kind, min(start, len(text)), min(start + size, len(text)), 1.0) for start, size, kind in found]
    findings = [one for one in findings if one.start < one.end]
    pieces, _ = side_by_side(text, "", findings, [], reveal=True)
    assert "".join(piece for piece, _, _ in pieces) == text
    inside = {place for one in findings for place in range(one.start, one.end) if text[place].isalnum()}
    place = 0
    for piece, _, kind in pieces:
        assert kind or not inside & set(range(place, place + len(piece)))
        place += len(piece)
