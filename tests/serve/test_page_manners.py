"""The manners of the page: how it waits and fails, shares, and serves everyone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.serve.page_steps import FEED, SAID, finished, masks, paste, recover, words
from tools.screenshots import SENTENCE
from unembed.serve.limits import Limits

pytest_plugins = ["tests.serve.page_fixtures"]

ROOT = Path(__file__).parents[2]
AXE = Path(__file__).parent / "vendor" / "axe.min.js"


# --- waiting and failing


def test_the_place_in_the_queue_is_shown(visit):
    page = visit(before=lambda page: page.add_init_script(f"({FEED})()"))
    page.click("#recover")
    page.wait_for_function("() => window.feed")
    page.evaluate("() => window.feed('queued', { position: 3, expected_wait_ms: 4200 })")
    page.locator("#status", has_text="Number 3 in the queue, about 4 s to wait").wait_for()
    page.evaluate("() => window.feed('queued', { position: 0, expected_wait_ms: 0 })")
    page.locator("#status", has_text="Starting").wait_for()
    page.evaluate("() => window.cut()")
    page.locator("#error-text", has_text="The stream ended before the text was finished. Try again.").wait_for()


@pytest.mark.parametrize(
    ("refuse", "sentence"),
    [
        (lambda route: route.abort(), "The server does not answer."),
        (
            lambda route: route.fulfill(status=503, json={"error": "full", "message": "the line is full: come back"}),
            "The line is full: come back",
        ),
        (lambda route: route.fulfill(status=500, body="<h1>no JSON</h1>"), "The server answered 500. Try again."),
    ],
)
def test_an_error_is_a_sentence_with_a_retry(visit, refuse, sentence):
    page = visit()
    page.route("**/decode", refuse)
    page.fill("#input", SENTENCE)
    page.click("#recover")
    page.locator("#error-text", has_text=sentence).wait_for()
    assert sentence.lower() in page.locator("#live").inner_text().lower()
    page.unroute("**/decode")
    page.click("#retry")
    finished(page)
    assert not page.locator("#error").is_visible()


def test_a_busy_server_is_asked_again_when_it_says_so(visit):
    page, tries = visit(), []

    def busy_once(route):
        tries.append(1)
        refusal = {"error": "busy", "message": "busy: come back"}
        if len(tries) > 1:
            route.continue_()
        else:
            route.fulfill(status=429, headers={"Retry-After": "0"}, json=refusal)

    page.route("**/decode", busy_once)
    recover(page, SENTENCE)
    assert len(tries) == 2


def test_bad_settings_get_a_sentence(visit):
    page = visit()
    page.locator("#settings summary").click()
    assert page.locator("#steps").is_disabled()  # the writer has no such setting
    page.select_option("#strategy", "confidence")
    page.fill("#steps", "0")
    page.click("#recover")
    page.locator("#error-text", has_text="Steps takes a whole number from 1 to 128.").wait_for()
    assert page.evaluate("() => document.activeElement.id") == "steps"
    page.click("#defaults")
    recover(page)


def test_encoder_feedback_is_counted(visit):
    page = visit()
    page.locator("#settings summary").click()
    page.check("#feedback")
    page.fill("#input", "The cat sat on the mat.")
    page.click("#recover")
    said = re.compile(r"The encoder was asked (\d+) times? to recover the text\.")
    page.locator("#honest", has_text=said).wait_for(timeout=60_000)
    asked = int(said.search(page.locator("#honest").inner_text()).group(1))
    assert 0 < asked <= Limits().search_budget
    assert "feedback" in page.url  # a shared link asks the encoder, too


def test_encoder_feedback_is_there_only_when_the_server_has_it(visit):
    def without(route):
        answer = route.fetch().json()
        answer["models"][0]["feedback"] = False
        route.fulfill(json=answer)

    page = visit(before=lambda page: page.route("**/models", without))
    page.locator("#settings summary").click()
    assert not page.locator("#feedback").is_visible()


def test_without_an_encoder_there_are_only_vectors(visit):
    def without(route):
        route.fulfill(json={**route.fetch().json(), "encoder": None})

    page = visit(before=lambda page: page.route("**/health", without))
    page.locator("#status", has_text="no encoder").wait_for()
    assert page.get_by_label("Sentence", exact=True).is_disabled()
    assert page.locator("#numbers").is_visible()


# --- sharing


def test_the_address_restores_a_sentence_with_its_settings(visit, recovered):
    page = visit()
    page.locator("#settings summary").click()
    page.select_option("#strategy", "entropy")
    page.fill("#steps", "12")
    recover(page, SENTENCE)
    shared = words(page)
    other = visit(page.url[page.url.index("#") :])
    finished(other)
    assert words(other) == shared
    assert other.input_value("#input") == SENTENCE
    assert other.locator("#strategy").input_value() == "entropy"
    assert other.locator("#steps").input_value() == "12"
    other.evaluate("() => { location.hash = '#text=A+dog.'; }")
    other.locator("#original-text", has_text="a dog.").wait_for(state="attached")
    assert other.locator("#strategy").input_value() == "writer"


def test_the_address_restores_a_vector(visit, numbers, recovered):
    page = visit()
    paste(page, json.dumps(numbers))
    recover(page)
    other = visit(page.url[page.url.index("#") :])
    finished(other)
    assert words(other) == recovered().replace(" ", "")
    np.testing.assert_array_equal(np.float32(json.loads(other.input_value("#numbers"))), np.float32(numbers))


@pytest.mark.parametrize("fragment", ["#", "#nothing=1", "#text=", "#text=a+dog&steps=many&strategy=none"])
def test_a_strange_address_does_no_harm(visit, fragment):
    page = visit(fragment)
    if "dog" in fragment:  # what can be understood is run at once
        finished(page)
    recover(page, "A cat.")


# --- for everyone


def test_the_keyboard_is_enough_and_its_focus_is_seen(visit):
    page = visit()
    stops, outline = [], "() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle; }"

    def tab(wanted):
        for _ in range(30):
            page.keyboard.press("Tab")
            here = page.evaluate("() => document.activeElement.id || document.activeElement.textContent.trim()")
            ring = page.evaluate(outline)
            beside = page.evaluate(
                "() => getComputedStyle(document.activeElement.nextElementSibling ?? document.body).outlineStyle"
            )
            assert "solid" in (ring, beside), here
            stops.append(here)
            if here == wanted:
                return
        raise AssertionError(f"Tab does not reach {wanted}: {stops}")

    tab("input")
    page.keyboard.press("Control+a")
    page.keyboard.type(SENTENCE)
    tab("recover")
    page.keyboard.press("Enter")
    finished(page)
    tab("slider")
    page.keyboard.press("Home")
    assert masks(page) == page.locator("#canvas .tile").count()
    page.keyboard.press("ArrowRight")
    assert page.locator("#status").inner_text().startswith("Step 1")


def test_the_live_region_is_not_chatty(visit):
    page = visit(motion=True)
    page.evaluate(SAID)
    recover(page, SENTENCE)
    said = page.evaluate("() => window.said")
    assert said[0] == "Recovering."
    assert said[-1].startswith("Done: ")
    assert len(said) == 2
    assert page.locator("[aria-live], [role=status], [role=alert]").count() == 1


def test_reduced_motion_is_respected(visit):
    moving, still = visit(motion=True), visit()
    count = """() => {
      window.most = 0;
      (function look() {
        window.most = Math.max(window.most, document.getAnimations().length);
        requestAnimationFrame(look);
      })();
    }"""
    for page in (moving, still):
        page.evaluate(count)
        recover(page, SENTENCE)
    assert moving.evaluate("() => window.most") > 0
    assert still.evaluate("() => window.most") == 0


@pytest.mark.parametrize("width", [360, 1600])
def test_nothing_scrolls_sideways(visit, tmp_path, width):
    page = visit(width=width)

    def fits(name):
        page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width, name

    fits("start")
    recover(page, "Donaudampfschifffahrtsgesellschaft" * 6 + " " + SENTENCE)
    fits("long word")
    page.locator("#settings summary").click()
    page.click("#compare")
    page.locator(".card.best").wait_for()
    fits("compared")
    paste(page, "1" * 2000)
    page.click("#recover")
    page.locator("#vector-note.bad").wait_for()
    fits("bad vector")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(visit, scheme):
    page = visit(scheme=scheme)
    source = AXE.read_text()

    def clean(state):
        page.evaluate(source)  # a script tag would be against the page's own rules
        found = page.evaluate("async () => (await axe.run()).violations")
        grave = [(v["id"], [n["target"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")]
        assert grave == [], state

    clean("start")
    page.locator("#settings summary").click()
    page.click("#compare")
    page.locator(".card.best").wait_for()
    page.locator("#recover", has_text="Recover").wait_for()
    clean("compared")
    page.locator(".card", has_text="remask").get_by_role("button").click()
    for step in (3, 5, 6):
        page.locator("#slider").fill(str(step))
        clean(f"step {step}")
    page.route("**/decode", lambda route: route.abort())
    page.click("#recover")
    page.locator("#error").wait_for()
    paste(page, "[1, 2]")
    page.locator("#vector-note.bad").wait_for()
    clean("errors")


def test_the_numbers_are_one_click_away(visit):
    page = visit()
    page.get_by_role("link", name="How well?").click()
    assert page.evaluate("() => document.activeElement.id") == "measured"
    page.get_by_role("link", name="card of this inverter").click()
    page.wait_for_url("**/card")
    assert "token_f1: 0." in page.inner_text("body")


@pytest.mark.parametrize("width", [360, 1600])
def test_nothing_written_in_a_control_is_cut_off(visit, width):
    page = visit(width=width)
    page.fill("#input", "The committee rejected the proposal because it would cost too much money this year.")
    tall = "(field) => [field.scrollHeight, field.clientHeight]"
    needed, there = page.locator("#input").evaluate(tall)
    assert needed <= there
    page.locator("#settings summary").click()
    room = """(select) => {
      const free = select.cloneNode(true);
      free.setAttribute("class", "measure");
      Object.assign(free.style, { width: "auto", position: "absolute" });
      select.parentElement.append(free);
      const wanted = free.offsetWidth;
      free.remove();
      return [wanted, select.offsetWidth];
    }"""
    wanted, wide = page.locator("#strategy").evaluate(room)
    assert wanted <= wide


def test_the_readme_opens_with_a_denoising_that_moves_and_is_small():
    readme = (ROOT / "README.md").read_text()
    first, *others = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", readme)
    assert readme.index(first) < 800
    moving = ROOT / first
    assert moving.suffix in (".gif", ".svg")
    assert moving.stat().st_size < 1_000_000
    assert "docs/images/page.png" in others
    script = (ROOT / "tools" / "screenshots.py").read_text()
    assert moving.name in script
    assert '"page.png"' in script
