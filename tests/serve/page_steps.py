"""What a person does on the page, and what they see."""

from __future__ import annotations

# Replaces what the server streams, for what the real one says only under load or never. The test feeds the stream.
FEED = """
() => {
  const real = window.fetch;
  window.fetch = (path, options) => {
    if (path !== "/decode") return real(path, options);
    const bytes = new TextEncoder();
    const body = new ReadableStream({ start: (stream) => {
      const block = (event, data) => `event: ${event}\\ndata: ${JSON.stringify(data)}\\n\\n`;
      window.feed = (event, data) => stream.enqueue(bytes.encode(block(event, data)));
      window.cut = () => stream.close();
    } });
    return Promise.resolve(new Response(body, { headers: { "Content-Type": "text/event-stream" } }));
  };
}
"""

# Collects what the live region says.
SAID = """() => {
  const live = document.querySelector("#live");
  window.said = [];
  new MutationObserver(() => window.said.push(live.textContent)).observe(live, { childList: true });
}"""


def stepped(tokens, number=1):
    """A `step` event."""
    masked = [place for place, token in enumerate(tokens) if token == "[MASK]"]
    confidence = [0.0 if place in masked else 0.9 for place in range(len(tokens))]
    shown = {"tokens": tokens, "confidence": confidence, "masked": masked, "text": ""}
    return {"step": number, "passes": number, "ms": 1, **shown}


def recover(page, text=None):
    if text is not None:
        page.fill("#input", text)
    page.click("#recover")
    finished(page)


def finished(page):
    page.locator("#result").wait_for(state="visible")
    page.locator("#recover", has_text="Recover").wait_for()


def facts(page):
    names, values = page.locator("#facts dt").all_inner_texts(), page.locator("#facts dd").all_inner_texts()
    return dict(zip(names, values, strict=True))


def words(page):
    """The recovered text as the tiles show it, without spaces."""
    return "".join(page.locator("#canvas .tile").all_inner_texts())


def masks(page):
    return page.locator("#canvas .mask").count()


def paste(page, text):
    page.get_by_label("Raw vector").check()
    page.fill("#numbers", text)
