"""A browser, the real server with the shipped weights, and a page that watches itself."""

from __future__ import annotations

import json
import os
import urllib.request

import pytest

from tools.screenshots import NEEDED, SENTENCE, chromium, launch, serving


# The server is one for all files: to load torch and the weights takes longer than many a test of the page. The browser
# is not, since playwright leaves a running event loop behind, in which other tests could start none of their own.
@pytest.fixture(scope="session")
def site():
    """Address of the server."""
    with serving() as address:
        yield address


@pytest.fixture(scope="session")
def api(site):
    """Asks the server without the page."""

    def ask(path, body):
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(site + path, data, headers)) as answer:
            return json.load(answer)

    return ask


@pytest.fixture(scope="session")
def numbers(api):
    return api("/encode", {"text": SENTENCE})["vector"]


@pytest.fixture(scope="session")
def recovered(api, numbers):
    """What the library makes of the vector, by strategy."""
    found = {}

    def text(strategy="writer"):
        if strategy not in found:
            found[strategy] = api("/invert", {"vectors": [numbers], "strategy": strategy})["results"][0]["text"]
        return found[strategy]

    return text


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return missing()
    if chromium() is None:
        return missing()
    with sync_playwright() as playwright:
        yield launch(playwright)


def missing():
    if os.environ.get("CI"):
        pytest.fail(NEEDED)
    pytest.skip(NEEDED)


@pytest.fixture
def visit(browser, site):
    """Opens pages. At the end: nothing went to another host, no script failed, no rule of the CSP was broken."""
    contexts, asked, wrong = [], [], []

    def go(fragment="", *, width=1000, scheme="light", motion=False, before=None):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="no-preference" if motion else "reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # only a broken page takes so long, even on a busy machine
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        # The browser itself notes refused requests, which some tests provoke.
        page.on("console", lambda line: line.type == "error" and wrong.append(line.text))
        if before:
            before(page)
        page.goto(site + "/" + fragment)
        page.locator("#about-model", has_text="tokens").wait_for()
        return page

    yield go
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith((site + "/", "data:"))] == []
    assert [line for line in wrong if "Failed to load resource" not in line] == []
