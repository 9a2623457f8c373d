"""Makes the README's pictures of the page and of an audit, with the shipped weights and a real browser.

    .venv/bin/python tools/screenshots.py                # docs/images/page.png, denoising.gif, audit.png

The audit is that of a small store made on the spot: the page's example sentences, which are in no training data, and
some with made-up personal data.

Needs Chromium (Debian: apt-get install chromium), and `pip install playwright pillow`. The letters are those of the
machine's fonts: with Inter and Charis SIL installed (fonts-inter, fonts-sil-charis) the pictures look as they do now.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image
    from playwright.sync_api import Browser, FloatRect, Page, Playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SENTENCE = "The patient was treated for a heart attack last year."  # that of the README, which says how it was chosen
NEEDED = "the page is tested and pictured in a real browser: apt-get install chromium, pip install playwright"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PERSONAL = [
    f"{name} {what}"
    for name in ("Maria Keller", "James Osei", "Priya Nair", "Tom Becker", "Elena Rossi")
    for what in (
        "was treated for diabetes at the clinic in Boston.",
        "can be reached at 617-555-0142 until Friday.",
        "will lose her job when the office in Berlin closes.",
    )
]
STEP_MS, TYPE_MS, END_MS = 480, 180, 5000
LARGEST = 1_000_000


@contextmanager
def serving() -> Iterator[str]:
    """`unembed serve` with the shipped weights in a process of its own, on a free loopback port; gives its address."""
    command = [sys.executable, "-m", "unembed", "serve", "--no-open", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            if not said:
                raise SystemExit("the server did not start: see above")
            yield str(json.loads(said)["url"])
        finally:
            server.terminate()


def chromium() -> str | None:
    """The browser of this machine."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def launch(playwright: Playwright) -> Browser:
    """Open it without a window. Its sandbox does not work for root, as which containers run."""
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    return playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"] if root else [])


def main() -> None:
    """Write the pictures."""
    arguments = argparse.ArgumentParser(description="Make the README's pictures of the page.")
    arguments.add_argument("--folder", type=Path, default=IMAGES)
    folder: Path = arguments.parse_args().folder
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SystemExit(NEEDED) from None
    if chromium() is None:
        raise SystemExit(NEEDED)
    folder.mkdir(parents=True, exist_ok=True)
    with serving() as address, sync_playwright() as playwright:
        browser = launch(playwright)
        _still(browser, address, folder / "page.png")
        _moving(browser, address, folder / "denoising.gif")
        _report(browser, folder / "audit.png")
        browser.close()


def _still(browser: Browser, address: str, path: Path) -> None:
    """The finished page, at twice the pixels for sharp letters."""
    page = _open(browser, address, width=960, scale=2)
    page.fill("#input", SENTENCE)
    _recover(page)
    picture = page.screenshot(clip={"x": 0, "y": 0, "width": 960, "height": _bottom(page) + 40})
    path.write_bytes(_small(picture, colours=256))
    _say(path)


def _moving(browser: Browser, address: str, path: Path) -> None:
    """One denoising, from typing to the comparison; a frame for each step, as the slider replays them."""
    page = _open(browser, address, width=860, scale=1)
    for below in ("#about", "footer"):
        page.locator(below).evaluate("(element) => { element.hidden = true; }")
    frames: list[tuple[bytes, int]] = []
    words = SENTENCE.split()
    for count in range(len(words) + 1):
        page.fill("#input", " ".join(words[:count]))
        page.wait_for_timeout(400)  # the strip follows the typing with a delay
        frames.append((page.screenshot(), TYPE_MS))
    frames.append((frames[-1][0], STEP_MS * 2))
    _recover(page)
    bottom = _bottom(page) + 16
    last = int(page.get_attribute("#slider", "max") or 0)
    result = page.locator("#result")
    result.evaluate("(element) => { element.hidden = true; }")  # it is not there yet while the steps go by
    for step in range(last + 1):
        page.locator("#slider").fill(str(step))
        page.locator("#slider").blur()
        frames.append((page.screenshot(), STEP_MS))
    result.evaluate("(element) => { element.hidden = false; }")
    frames.append((page.screenshot(), END_MS))
    top = _box(page, "#form")["y"] - 16
    _write_gif(frames, (0, round(top), 860, round(bottom)), path)
    _say(path)


def _report(browser: Browser, path: Path) -> None:
    """The first screen of an audit's report."""
    with tempfile.TemporaryDirectory() as place:
        store = _store(Path(place))
        subprocess.run([sys.executable, "-m", "unembed", "audit", store, "-o", f"{place}/audit"], check=True)
        page = browser.new_page(viewport={"width": 1100, "height": 1250}, device_scale_factor=2, color_scheme="light")
        page.goto(f"file://{place}/audit/report.html")
        path.write_bytes(_small(page.screenshot(), colours=128))
    _say(path)


def _store(folder: Path) -> str:
    """A Parquet file with texts and their vectors, as an application would keep them."""
    import pyarrow as pa
    from pyarrow import parquet

    import unembed

    texts = [*(Path(unembed.__file__).parent / "serve" / "examples.txt").read_text().splitlines(), *PERSONAL]
    vectors = unembed.encoder("minilm").encode(texts)
    parquet.write_table(pa.table({"text": texts, "vector": list(vectors)}), folder / "store.parquet")
    return str(folder / "store.parquet")


def _open(browser: Browser, address: str, *, width: int, scale: float) -> Page:
    page = browser.new_page(
        viewport={"width": width, "height": 1600},  # nothing has to scroll
        device_scale_factor=scale,
        color_scheme="light",
        reduced_motion="reduce",  # every screenshot is a finished frame
    )
    page.goto(address)
    page.locator("#status", has_text="Press Recover").wait_for()
    return page


def _recover(page: Page) -> None:
    page.click("#recover")
    page.locator("#result").wait_for(state="visible")
    page.locator("#recover", has_text="Recover").wait_for()
    page.mouse.move(0, 0)
    page.evaluate("() => document.activeElement.blur()")


def _bottom(page: Page) -> float:
    stage = _box(page, "#stage")
    return stage["y"] + stage["height"]


def _box(page: Page, selector: str) -> FloatRect:
    box = page.locator(selector).bounding_box()
    assert box is not None
    return box


def _write_gif(frames: list[tuple[bytes, int]], region: tuple[int, int, int, int], path: Path) -> None:
    from PIL import Image

    images = [_picture(png).crop(region) for png, _ in frames]
    palette = images[-1].quantize(64)  # one palette for all, so that nothing flickers
    flat = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    durations = [duration for _, duration in frames]
    flat[0].save(path, save_all=True, append_images=flat[1:], duration=durations, loop=0, optimize=True)
    if path.stat().st_size >= LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes: it must stay under {LARGEST:,}")


def _small(png: bytes, colours: int) -> bytes:
    buffer = io.BytesIO()
    _picture(png).quantize(colours).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _picture(png: bytes) -> Image.Image:
    from PIL import Image

    return Image.open(io.BytesIO(png)).convert("RGB")


def _say(path: Path) -> None:
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
