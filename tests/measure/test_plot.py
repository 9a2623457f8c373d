import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unembed.measure.plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Point, Series, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def chart(*series: Series, log_x: bool = False) -> ET.Element:
    return ET.fromstring(line_chart(series, title="F1", x_label="texts", y_label="share", log_x=log_x))


numbers = st.floats(1e-3, 1e7, allow_nan=False)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8), st.booleans())
def test_every_point_lies_inside_the_axes_and_in_order(values, log_x):
    drawn = chart(Series("a", [Point(x, y) for x, y in values]), log_x=log_x).findall(f"{SVG}circle")
    places = [(float(c.get("cx")), float(c.get("cy"))) for c in drawn]
    assert len(places) == len(values)
    assert all(LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1 and TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1 for x, y in places)
    for (x, y), (px, py) in zip(values, places, strict=True):
        for (x2, y2), (px2, py2) in zip(values, places, strict=True):
            assert (x < x2) <= (px <= px2 + 0.11)
            assert (y < y2) <= (py >= py2 - 0.11)


def test_text_is_escaped_and_series_are_named():
    page = line_chart(
        [Series("<b>", [Point(1, 1)]), Series("two", [Point(2, 2)])], title="a & b", x_label="x", y_label="<y>"
    )
    texts = [t.text for t in ET.fromstring(page).findall(f"{SVG}text")]
    assert {"a & b", "<b>", "two", "<y>"} <= set(texts)


def test_intervals_become_a_band():
    band = chart(Series("a", [Point(1, 2, 1, 3), Point(2, 3, 2, 4)])).find(f"{SVG}polygon")
    assert band is not None
    assert len(band.get("points").split()) == 4


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="at least one point"):
        line_chart([], title="", x_label="", y_label="")
    with pytest.raises(ValueError, match="above 0"):
        chart(Series("a", [Point(0, 1)]), log_x=True)
