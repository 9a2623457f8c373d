from __future__ import annotations

import dataclasses

import pytest

from tests.measure.doubles import make_results
from unembed.errors import ConfigError, DataError
from unembed.measure.metrics import METRICS
from unembed.measure.results import Estimate, Sample
from unembed.measure.table import best_strategy, markdown_table, show, terminal_table


def test_a_value_is_shown_as_people_write_it() -> None:
    estimate = Estimate(0.41256, 0.4, 0.42549, 100)
    assert show(METRICS["token_f1"], estimate, interval=True) == "41.3 [40.0, 42.5]"
    assert show(METRICS["cosine"], estimate, interval=True) == "0.413 [0.400, 0.425]"
    assert show(METRICS["bleu"], estimate, interval=False) == "0.4"


def test_markdown_of_the_systems() -> None:
    assert markdown_table(make_results(), columns=["token_accuracy", "bleu"]).splitlines() == [
        "| system | token acc. % | BLEU | s/text | passes |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| original | 100.0 \\[99.0, 101.0\\] | 100.0 \\[99.0, 101.0\\] |  |  |",
        "| slow | 40.0 \\[39.0, 41.0\\] | 30.0 \\[29.0, 31.0\\] | 0.2500 | 24.0 |",
        "| fast | 42.0 \\[41.0, 43.0\\] | 29.0 \\[28.0, 30.0\\] | 0.2500 | 24.0 |",
        "| nearest | 10.0 \\[9.0, 11.0\\] | 5.0 \\[4.0, 6.0\\] | 0.2500 |  |",
    ]


def test_markdown_by_source_and_length_is_of_the_best_strategy_or_the_one_named() -> None:
    results = make_results()
    best = best_strategy(results)
    assert best is not None
    assert best.name == "fast"
    assert "| wiki | 7 | 42.0" in markdown_table(results, "source", ["token_accuracy"])
    assert "| 3-8 | 5 | 40.0" in markdown_table(results, "length", ["token_accuracy"], system="slow")
    with pytest.raises(DataError, match="no system 'quick': choose one of original, slow, fast, nearest"):
        markdown_table(results, "source", system="quick")


def test_texts_cannot_break_the_page() -> None:
    results = make_results()
    nasty = Sample("a | b\n<script>", "[link](http://x) *x* `c` \\", "wiki", 0.1, None)
    system = dataclasses.replace(results.systems[1], samples=[nasty])
    lines = markdown_table(dataclasses.replace(results, systems=[system]), "samples").splitlines()
    assert lines[0] == "| original | recovered |"
    assert lines[2:] == [r"| a \| b \<script> | \[link\](http://x) \*x\* \`c\` \\ |"]


def test_wrong_names_are_errors() -> None:
    with pytest.raises(ConfigError, match="no metric named 'blue'"):
        markdown_table(make_results(), columns=["blue"])
    with pytest.raises(ConfigError, match="no table named 'sources'"):
        markdown_table(make_results(), "sources")
    without = dataclasses.replace(make_results(), systems=[])
    with pytest.raises(ConfigError, match="no strategy"):
        markdown_table(without, "length")


def test_the_terminal_shows_everything_a_reader_must_know() -> None:
    text = terminal_table(make_results())
    lines = text.splitlines()
    assert lines[0] == "12 texts of the split test · 95 % intervals from 1,000 resamples"
    assert lines[2].split() == ["system", "token", "acc.", "%", "BLEU", "s/text", "passes"]
    assert len({len(line) for line in lines[2:4]}) == 1
    assert "42.0 [41.0, 43.0]" in text
    assert "fast, by source" in text
    assert "fast, by tokens" in text
    assert "near copies: 2 of 12 texts have token F1 above 0.8 to the nearest of 60 training texts" in text
    assert "note: perplexity was left out" in text
    assert not any(line.endswith(" ") for line in lines)


def test_scores_without_near_copies_have_a_table_of_their_own() -> None:
    results = make_results()
    with pytest.raises(ConfigError, match="near copies were not looked for"):
        markdown_table(results, "originals")
    assert results.near_copies is not None
    near = dataclasses.replace(results.near_copies, cosine_threshold=0.95, cosine_copies=1, left_out=3)
    systems = [dataclasses.replace(s, without_copies={"bleu": Estimate(7.0, 6.0, 8.0, 9)}) for s in results.systems]
    results = dataclasses.replace(results, near_copies=near, systems=systems)
    assert "| fast | 7.0 \\[6.0, 8.0\\] | 0.2500 | 24.0 |" in markdown_table(results, "originals").splitlines()
    text = terminal_table(results)
    assert "2 of 12 texts have token F1 above 0.8, 1 a cosine above 0.95 to the nearest of 60" in text
    assert "(3 by either)" in text
    assert "\n\nwithout them\nsystem" in text
    assert "7.0 [6.0, 8.0]" in text.partition("without them")[2]
