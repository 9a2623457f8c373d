"""Slips: too early, too often, the wrong file, a broken link; and what the page then shows, says and shares."""

from __future__ import annotations

import json
import re

import pytest

from tests.serve.page_steps import FEED, SAID, finished, paste, recover, stepped, words
from tests.serve.test_page import drop, npy
from tools.screenshots import SENTENCE

pytest_plugins = ["tests.serve.page_fixtures"]

SLOW_ENCODE = """
  const real = window.fetch;
  window.fetch = async (path, options) => {
    if (path === "/encode" && window.hold) await new Promise((go) => { window.release = go; });
    return real(path, options);
  };
"""


def fed(visit):
    """A page whose stream the test feeds, with a run that waits for its first step."""
    page = visit(before=lambda page: page.add_init_script(f"({FEED})()"))
    page.locator("#strip[aria-label^='384 numbers']").wait_for()
    page.click("#recover")
    page.wait_for_function("() => window.feed")
    return page


# --- the link to a result


def test_the_link_is_that_of_the_strategy_on_the_stage(visit, recovered):
    page = visit()
    page.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    page.fill("#input", SENTENCE)
    page.click("#compare")
    page.locator(".card.best").wait_for()
    page.locator("#recover", has_text="Recover").wait_for()
    page.locator(".card", has_text="sequential").get_by_role("button").click()
    page.locator("#recovered-text", has_text=recovered("sequential")).wait_for(state="attached")
    page.click("#share")
    page.wait_for_function("() => window.copied")
    assert page.evaluate("() => window.copied") == page.url
    assert "strategy=sequential" in page.url
    other = visit(page.url[page.url.index("#") :])
    finished(other)
    assert other.locator("#recovered-text").inner_text() == recovered("sequential")


def test_the_link_has_the_text_that_was_recovered_whatever_is_typed_meanwhile(visit):
    page = visit(before=lambda page: page.add_init_script(SLOW_ENCODE))
    page.locator("#strip[aria-label^='384 numbers']").wait_for()
    page.evaluate("() => { window.hold = true; }")
    page.fill("#input", "A dog.")
    page.click("#recover")
    page.wait_for_function("() => window.release")
    page.fill("#input", "A cat.")
    page.evaluate("() => { window.hold = false; window.release(); }")
    finished(page)
    assert page.locator("#original-text").inner_text() == "a dog."
    assert page.url.endswith("#text=A+dog.")


def test_a_broken_link_says_so(visit):
    page = visit("#vector=%%%")
    page.locator("#vector-note.bad", has_text="This link is broken").wait_for()
    assert page.locator("#numbers").is_visible()
    page.get_by_label("Sentence", exact=True).check()
    recover(page, "A cat.")


# --- too early, too often


def test_nothing_can_be_asked_before_the_model_is_known(site, browser):
    page = browser.new_page()
    page.route("**/models", lambda route: None)  # never answers
    page.goto(site)
    page.locator("#examples .chip").nth(1).click()
    assert all(page.locator(f"#{name}").is_disabled() for name in ("recover", "compare", "random"))
    page.press("#input", "Enter")
    drop(page, npy([1.0]))
    page.locator("#error-text", has_text="The model is still loading.").wait_for()
    assert page.locator("#live").inner_text() == "The model is still loading. Try again in a moment."
    page.close()


def test_a_server_that_failed_is_named(site, browser):
    page = browser.new_page()
    page.route("**/health", lambda route: route.fulfill(json={"status": "failed"}))
    page.goto(site)
    page.locator("#error-text", has_text="The server has failed. Start it again.").wait_for()
    assert page.locator("#recover").is_disabled()
    page.close()


def test_a_double_click_recovers_once(visit):
    page = visit()
    page.fill("#input", SENTENCE)
    page.dblclick("#recover")
    finished(page)


def test_a_full_server_is_named_while_the_page_waits(visit):
    page = visit()
    refusal = {"status": 503, "headers": {"Retry-After": "5"}, "json": {"error": "full", "message": "full"}}
    page.route("**/decode", lambda route: route.fulfill(**refusal))
    page.click("#recover")
    page.locator("#status", has_text=re.compile(r"The server is full, trying again in \d s")).wait_for()
    page.click("#recover")
    page.locator("#status", has_text="Stopped.").wait_for()


# --- the wrong file


def test_no_file_a_folder_and_a_large_text_get_a_sentence(visit):
    page = visit()

    def told(sentence):
        page.locator("#vector-note.bad", has_text=sentence).wait_for()
        assert sentence in page.locator("#live").inner_text()
        assert page.input_value("#numbers") == ""

    nothing = "() => ({ types: ['Files'], files: [] })"
    page.evaluate(
        f"""() => document.querySelector("#form").dispatchEvent(
          Object.assign(new Event("drop", {{ bubbles: true }}), {{ dataTransfer: ({nothing})() }}))"""
    )
    told("That was no file")
    drop(page, b"1," * 600_000, "numbers.csv")
    told("That file is larger than 1 MB")
    page.evaluate("() => { File.prototype.arrayBuffer = () => Promise.reject(new DOMException('', 'NotFoundError')); }")
    drop(page, b"", "folder")
    told("That is a folder")


def test_the_same_file_can_be_chosen_twice(visit, numbers):
    page = visit()
    for _ in range(2):
        page.set_input_files("#file", {"name": "x.npy", "mimeType": "", "buffer": npy(numbers)})
        page.wait_for_function("() => document.querySelector('#numbers').value")
        assert page.evaluate("() => document.querySelector('#file').value") == ""
        page.evaluate("() => { document.querySelector('#numbers').value = ''; }")


# --- what is said


def test_a_vector_typed_by_hand_is_judged_aloud_only_when_it_is_left(visit):
    page = visit()
    paste(page, "")
    page.evaluate(SAID)
    page.locator("#numbers").press_sequentially("[1, 2", delay=5)
    page.locator("#vector-note.bad").wait_for()
    assert page.get_attribute("#numbers", "aria-invalid") == "true"
    assert page.evaluate("() => window.said") == []
    page.locator("#numbers").blur()
    page.wait_for_function("() => window.said.length")
    assert "This vector has 2 numbers" in page.evaluate("() => window.said[0]")
    page.fill("#numbers", json.dumps([0.1] * 384))
    page.locator("#numbers[aria-invalid=false]").wait_for()


@pytest.mark.parametrize(("text", "said"), [("a heart.", "Done: a heart. "), ("a heart", "Done: a heart. ")])
def test_the_announcement_has_one_full_stop(visit, text, said):
    page = fed(visit)
    page.evaluate("([s]) => window.feed('step', s)", [stepped(["a", "heart"])])
    page.evaluate("([d]) => window.feed('done', d)", [done(text)])
    finished(page)
    assert page.locator("#live").text_content().startswith(said)


def done(text):
    counts = {"steps": 1, "passes": 1, "ms": 1, "encoder_queries": 0, "check_queries": 1}
    return {"text": text, "tokens": [], "confidence": [], "score": 0, "wait_ms": 0, "cosine": 0.5, **counts}


# --- what is shown


def test_the_strip_of_a_run_stays_while_another_text_is_typed(visit):
    page = fed(visit)
    drawn = page.get_attribute("#strip", "aria-label")
    page.fill("#input", "Something else.")
    page.wait_for_timeout(1000)
    assert page.get_attribute("#strip", "aria-label") == drawn
    page.click("#recover")
    page.locator("#recover", has_text="Recover").wait_for()
    page.fill("#input", "Something else again.")
    page.wait_for_function("(old) => document.querySelector('#strip').ariaLabel !== old", arg=drawn)


def test_the_strip_of_a_run_stays_when_a_bad_file_is_dropped(visit):
    page = fed(visit)
    drawn = page.get_attribute("#strip", "aria-label")
    drop(page, b"no array", "broken.npy")
    page.locator("#vector-note.bad").wait_for()
    assert page.get_attribute("#strip", "aria-label") == drawn
    assert page.locator("#copy-vector").is_visible()


def test_stop_stops_every_card_of_a_comparison(visit):
    page = visit(motion=True, before=lambda page: page.add_init_script(f"({FEED})()"))
    page.click("#compare")
    page.wait_for_function("() => window.feed")
    many = [stepped(["a", "[MASK]"], number) for number in range(1, 41)]
    page.evaluate("(all) => { for (const s of all) window.feed('step', s); }", many)
    page.locator(".card-facts", has_text="Step 2").wait_for()
    page.click("#recover")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.card-facts')].every((f) => f.textContent === 'Stopped.')"
    )
    assert page.locator(".card.best").count() == 0


def test_cards_of_a_comparison_give_steps_not_shared_time(visit):
    page = visit()
    page.click("#compare")
    page.locator(".card.best").wait_for()
    for said in page.locator(".card-facts").all_inner_texts():
        assert re.fullmatch(r"\d+ of \d+ words · cosine \d\.\d\d · steps \d+( · passes \d+)?", said)
    assert "Time, all together" in page.locator("#facts").inner_text()


def test_an_original_that_was_respelled_is_labelled(visit):
    page = visit()
    recover(page, SENTENCE)
    assert page.locator("#spelling").is_visible()
    recover(page, SENTENCE.lower())
    assert not page.locator("#spelling").is_visible()


def test_tiles_and_columns_mark_the_same_words(visit):
    page = visit()
    recover(page, SENTENCE)
    hits = page.locator("#pairs .hit > :last-child").all_inner_texts()
    assert "".join(page.locator("#canvas .same").all_inner_texts()) == "".join(hits)
    moved = page.locator("#pairs .moved").all_inner_texts()
    assert "".join(page.locator("#canvas .moved").all_inner_texts()) == "".join(moved)


def test_replay_goes_through_the_steps_under_reduced_motion_too(visit):
    page = visit("#strategy=confidence&text=A+dog.")
    finished(page)
    recover(page, SENTENCE)
    shown = """() => new Promise((seen) => {
      const steps = [];
      new MutationObserver(() => {
        steps.push(document.querySelector("#status").textContent.match(/^Step (\\d+)/)[1]);
        if (steps.at(-1) === "8") seen(steps);
      }).observe(document.querySelector("#status"), { childList: true });
      document.querySelector("#play").click();
    })"""
    assert page.evaluate(shown) == [str(number) for number in range(9)]
    assert words(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_blanks_are_seen_against_the_panel(visit, scheme):
    page = visit(scheme=scheme)
    ratio = page.evaluate(
        """() => {
          const light = (color) => {
            const parts = color.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
            const [r, g, b] = parts.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
          };
          const edge = light(getComputedStyle(document.querySelector("#canvas .mask")).borderTopColor);
          const panel = light(getComputedStyle(document.querySelector("#stage")).backgroundColor);
          return Math.max(edge, panel) / Math.min(edge, panel);
        }"""
    )
    assert ratio >= 3
    assert page.locator("#canvas .mask").first.evaluate("(m) => getComputedStyle(m).borderTopWidth") == "1px"
