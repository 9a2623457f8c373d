"""Drawing an inversion: the text as it emerges from the masks, and the comparison at the end."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text
from tokenizers.decoders import WordPiece

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from tokenizers import Tokenizer

    from unembed.decode import Step

MASK = "░░░"
_WORD = re.compile(r"\w+")


def canvas(words: Sequence[str | None], confidence: Sequence[float]) -> Text:
    """One state of the denoising: masks (None) as dim blocks, tokens the brighter the surer.

    A token that begins a word has a leading space; a mask always stands apart.
    """
    line = Text()
    for word, sure in zip(words, confidence, strict=True):
        piece = f" {MASK}" if word is None else word
        line.append(piece if line else piece.lstrip(), Style(dim=True) if word is None else shade(sure))
    return line


def shade(sure: float) -> Style:
    """Grey for a guess, white for certainty."""
    grey = round(96 + 159 * min(1.0, max(0.0, sure)))
    return Style(color=f"#{grey:02x}{grey:02x}{grey:02x}", bold=sure > 0.9)


def compare(original: str, recovered: str) -> tuple[Text, Text, int, int]:
    """Both texts with the words they share in green, and how many of the original's words came back."""
    wanted, found = (Counter(w.casefold() for w in _WORD.findall(text)) for text in (original, recovered))
    shared = wanted & found
    return _mark(original, shared), _mark(recovered, shared), shared.total(), wanted.total()


def _mark(text: str, shared: Counter[str]) -> Text:
    left, marked = Counter(shared), Text(text)
    for match in _WORD.finditer(text):
        word = match.group().casefold()
        if left[word]:
            left[word] -= 1
            marked.stylize("bold green", *match.span())
    return marked


def result(original: str, recovered: str, facts: Sequence[str]) -> RenderableType:
    """What a person wants to see at the end: both texts, one under the other, and the numbers."""
    first, second, shared, total = compare(original, recovered)
    numbers = Text(" · ".join([f"{shared} of {total} words", *facts]), style="dim")
    return Group(_rows(("original", first), ("recovered", second)), numbers)


def alternative(original: str, recovered: str) -> RenderableType:
    """One of the other texts of an n-best list."""
    return _rows(("or", compare(original, recovered)[1]))


def _rows(*rows: tuple[str, Text]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, width=9)
    grid.add_column()
    for label, text in rows:
        grid.add_row(label, text)
    return grid


def start(vector: npt.NDArray[np.float32], encoder: str) -> Text:
    """All that the inverter gets: the first few of the numbers."""
    numbers = " ".join(f"{value:+.3f}" for value in vector[:5])
    return Text(f"{encoder}  {numbers} … ({len(vector)} numbers)", style="dim")


def frame(step: Step, tokenizer: Tokenizer) -> Text:
    """One step of the denoising."""
    masked = set(step.masked)
    words = [None if place in masked else spell(token, tokenizer) for place, token in enumerate(step.tokens)]
    return canvas(words, step.confidence)


def spell(token: str, tokenizer: Tokenizer) -> str:
    """A token as it looks in a text: with a leading space where it begins a word."""
    if token.startswith("##"):  # WordPiece
        return token[2:]
    plain: str = tokenizer.decode([tokenizer.token_to_id(token) or 0], skip_special_tokens=False).strip()
    if token.startswith(("Ġ", "▁")):  # byte-level BPE, SentencePiece
        return " " + plain
    glued = isinstance(tokenizer.decoder, WordPiece) and not plain[:1].isalnum()
    return plain if glued or not isinstance(tokenizer.decoder, WordPiece) else " " + plain
