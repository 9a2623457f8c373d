"""What the command line draws."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from unembed.cli import live


def test_canvas_shows_masks_and_words():
    line = live.canvas([" the", None, " cat", "s", "."], [0.95, 0.0, 0.2, 0.5, 1.0])
    assert line.plain == f"the {live.MASK} cats."
    assert live.canvas([None, None], [0.0, 0.0]).plain == f"{live.MASK} {live.MASK}"
    assert live.shade(0.0).color != live.shade(1.0).color


words = st.lists(st.sampled_from(["red", "Red", "blue", "it's", "42"]), max_size=8).map(" ".join)


@given(words, words)
def test_compare_counts_each_word_once(original, recovered):
    first, second, shared, total = live.compare(original, recovered)
    assert (first.plain, second.plain) == (original, recovered)
    assert shared <= total
    assert len(first.spans) == len(second.spans) == shared
    assert live.compare(original, original)[2] == live.compare(original, original)[3] == total


def test_result_fits_eighty_columns():
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(
        live.result(
            "The cat sees a red house today.", "the cat", ["cosine 0.91", "16 steps", "123 ms", "encoder asked 0 times"]
        )
    )
    shown = console.export_text()
    assert "2 of 7 words · cosine 0.91 · 16 steps · 123 ms · encoder asked 0 times" in shown
