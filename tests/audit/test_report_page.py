"""The report in a real browser, with hostile text in the store: nothing runs, nothing loads, all can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.audit.doubles import HOSTILE, records
from tests.serve.page_fixtures import browser  # noqa: F401 (a fixture)
from unembed.audit.report import render
from unembed.audit.summary import summarise

AXE = Path(__file__).parents[1] / "serve" / "vendor" / "axe.min.js"
CASES = {
    "texts": {"hostile": True},
    "revealed": {"hostile": True, "reveal": True},
    "no texts": {"texts": False},
    "unreadable": {"readable": False, "hostile": True},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    for name, settings in CASES.items():
        (folder / f"{name}.html").write_text(render(summarise(records(**settings))), "utf-8")
    return folder


@pytest.fixture
def visit(browser, files):  # noqa: F811
    """Opens a report. At the end: nothing but the file was asked for, and the browser had nothing to complain about."""
    contexts, asked, wrong = [], [], []

    def go(name, *, width=1100, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.goto((files / f"{name}.html").as_uri())
        return page

    yield go
    for context in contexts:
        context.close()
    assert all(url.startswith("file://") and url.endswith(".html") for url in asked)
    assert wrong == []


@pytest.mark.parametrize("name", CASES)
def test_hostile_text_is_only_text(visit, name):
    page = visit(name)
    assert page.title().startswith("Audit of")
    assert page.locator("script, img, iframe, object, link, base").count() == 0
    assert page.locator("main svg:not(.chart)").count() == 0
    if name == "texts":
        shown = page.locator("article").first.evaluate("(element) => element.textContent")
        assert all(text in shown for text in HOSTILE)


@pytest.mark.parametrize("width", [360, 760, 1600])
@pytest.mark.parametrize("name", CASES)
def test_fits_every_width(visit, name, width):
    page = visit(name, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    over = """() => [...document.querySelectorAll("main *")].filter((element) => {
      const box = element.getBoundingClientRect();
      return box.right > innerWidth + 1 && !element.closest(".scroll");
    }).map((element) => element.tagName + "." + element.className)"""
    assert page.evaluate(over) == []


def test_the_first_screen_has_the_verdict(visit):
    for width in (360, 1100):
        page = visit("no texts", width=width)
        box = page.locator("h1").bounding_box()
        assert box["y"] + box["height"] < 500
        assert "an estimated" in page.locator("h1").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["texts", "revealed"])
def test_axe_finds_nothing_serious(visit, name, scheme):
    page = visit(name, scheme=scheme)
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run()).violations")
    grave = [(v["id"], [n["target"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")]
    assert grave == []


def test_dark_and_print_have_their_own_paper(visit):
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = visit("texts", scheme="dark")
    assert visit("texts").evaluate(paper) != dark.evaluate(paper)
    dark.emulate_media(media="print")
    assert dark.evaluate(paper) == "rgb(255, 255, 255)"
    assert len(dark.pdf()) > 10_000
