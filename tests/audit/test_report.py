"""The page of an audit as text: what it says, and that nothing in it can run or load."""

from __future__ import annotations

import html.parser
import re
import xml.etree.ElementTree as ET

import pytest

from tests.audit.doubles import HOSTILE, records
from unembed.audit import charts
from unembed.audit.report import encoder_line, prose, render
from unembed.audit.summary import summarise

CASES = {
    "texts": {},
    "no texts": {"texts": False},
    "unreadable": {"readable": False},
    "hostile": {"hostile": True},
    "revealed": {"reveal": True},
    "small": {"n": 1},
}


@pytest.fixture(scope="module")
def pages():
    summaries = {name: summarise(records(**settings)) for name, settings in CASES.items()}
    return {name: (summary, render(summary)) for name, summary in summaries.items()}


class Page(html.parser.HTMLParser):
    """Elements and attributes as a browser would see them."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.text = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("name", CASES)
def test_nothing_can_run_or_load(pages, name):
    page = Page(pages[name][1])
    tags = {tag for tag, _ in page.found}
    assert not tags & {"script", "img", "iframe", "object", "embed", "link", "base", "form", "image", "use"}
    for tag, attributes in page.found:
        assert not any(key.startswith("on") or key in ("src", "href", "style", "srcset") for key in attributes), tag
    rules = [a["content"] for tag, a in page.found if a.get("http-equiv") == "Content-Security-Policy"]
    assert rules == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert "url(" not in pages[name][1]
    assert "@import" not in pages[name][1]


def test_hostile_text_is_shown_as_it_is(pages):
    shown = "".join(Page(pages["hostile"][1]).text)
    for text in HOSTILE:
        assert text in shown


@pytest.mark.parametrize("name", CASES)
def test_it_starts_with_the_verdict_and_ends_with_the_command(pages, name):
    summary, page = pages[name]
    heading = re.sub(r"<[^>]+>", "", re.search(r"<h1>(.*?)</h1>", page, re.DOTALL)[1])
    assert " ".join(heading.split()) == summary["verdict"]["sentence"]
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[-4:] == ["Method", "Limits", "What to do next", "The command"]
    assert summary["command"] in page


def test_every_part_is_there(pages):
    headings = re.findall(r"<h2>(.*?)</h2>", pages["texts"][1])
    assert headings == [
        "What came back", "How near, and of which texts", "Personal data", "Sensitive topics", "Links between rows",
        "Which encoder", "Controls", "How far the estimates can be trusted", "Method", "Limits", "What to do next",
        "The command",
    ]  # fmt: skip
    assert pages["texts"][1].count('<svg class="chart"') == 5
    assert "personal data as it is" in pages["revealed"][1]
    assert "personal data as it is" not in pages["texts"][1]


def test_an_unreadable_store_shows_no_recovery(pages):
    page = pages["unreadable"][1]
    assert "What came back" not in page
    assert "Controls" not in page
    assert "train one from pairs" in page


def test_personal_data_that_is_only_made_up():
    """The recovered texts hold some and the stored ones none: a table, no chart, no crash."""
    made_up = [
        {**one, "personal": {"stored": {}, "found": {"NAME": 1}, "right": {}}} if one["kind"] == "vector" else one
        for one in records()
    ]
    page = render(summarise(made_up))
    assert "None was found in the 60 stored texts." in page
    assert "<b>Values by kind</b>" not in page
    row = re.search(r'<th scope="row">NAME.*?</tr>', page, re.DOTALL).group()
    assert re.findall(r"<td>([^<]*)", row)[:5] == ["0", "60", "0", "–", "0 "]


def test_sentences_become_safe_markup():
    assert (
        prose("use --fail-above, not `a<b`") == 'use <code class="option">--fail-above</code>, not <code>a&lt;b</code>'
    )
    assert prose("41 % [37, 45]") == "41\u00a0% [37,\u00a045]".replace("% [", "%\u00a0[")
    assert prose("Train: unembed train a -o b") == "Train: <code>unembed train a -o b</code>"
    assert "<b>" not in prose("<b>--x</b> `<b>`")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "minilm, for certain: stored texts"),
        ({"sure": "likely", "how": "fingerprint", "confidence": 0.87}, "minilm, likely (87 %)"),
        ({"encoder": None}, "Unknown"),
        ({"sure": "unknown", "how": "told"}, "contradict"),
    ],
)
def test_the_encoder_in_words(pages, changes, says):
    summary = pages["texts"][0]
    assert says in encoder_line({**summary, "encoder": {**summary["encoder"], **changes}})


# --- charts -------------------------------------------------------------------------------------------------------


def drawn():
    dots = [charts.Dot(name, 0.5, 0.3, 0.7, 9, x) for name, x in (("1–8", 0.2), ("<&>", 0.9))]
    groups = [charts.Group("real <", "real", [0.5, 0.7, 1.0, -0.3]), charts.Group("one", "random", [0.1])]
    rows = [charts.Bar("EMAIL", 1, 3, "1 of 3"), charts.Bar("<b>", 0, 0, '"0"')]
    return {
        "histogram": charts.histogram(groups, title="t", x_label="cosine"),
        "by group": charts.by_group(dots, title="t", x_label="x", chance=0.1),
        "calibration": charts.calibration(dots, title="t"),
        "bars": charts.bars(rows, title="t"),
        "empty bars": charts.bars([charts.Bar("NAME", 0, 0, "0")], title="t"),
        "one value": charts.histogram([charts.Group("a", "real", [0.3])], title="t", x_label="x"),
        "edges": charts.histogram([charts.Group("a", "real", [-1.0, 1.0])], title="t", x_label="x"),
    }


@pytest.mark.parametrize("name", drawn())
def test_charts_are_whole_and_within_their_frame(name):
    root = ET.fromstring(str(drawn()[name]))
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert root.attrib["aria-label"].startswith("t. ")
    for part in root.iter():
        for key in ("x", "x1", "x2", "cx"):
            assert 0 <= float(part.attrib.get(key, 0)) <= width
        for key in ("y", "y1", "y2", "cy"):
            assert 0 <= float(part.attrib.get(key, 0)) <= height
        for pair in part.attrib.get("points", "0,0").split():
            x, y = map(float, pair.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_bars_are_in_proportion():
    root = ET.fromstring(str(charts.bars([charts.Bar("A", 1, 4, ""), charts.Bar("B", 2, 2, "")], title="t")))
    whole, part, *other = [float(rect.attrib["width"]) for rect in root.iter("rect")]
    assert whole == pytest.approx(4 * part, abs=0.3)
    assert other == [pytest.approx(whole / 2, abs=0.3)] * 2


def test_the_histogram_counts_every_value():
    values = [0.05, 0.15, 0.15, 0.95]
    root = ET.fromstring(str(charts.histogram([charts.Group("a", "real", values)], title="t", x_label="x", bins=10)))
    points = [tuple(map(float, pair.split(","))) for pair in root.find("polygon").attrib["points"].split()]
    floor, peak = max(y for _, y in points), min(y for _, y in points)
    heights = [floor - y for _, y in points[1:-1:2]]
    unit = (floor - peak) / 2
    assert [round(height / unit) for height in heights] == [1, 2, 0, 0, 0, 0, 0, 0, 0, 1]
