"""What a writer does in a search: it goes on with a text from any place, and judges how well a text reads.

The denoiser changes words where they stand. The writer keeps the beginning of a text, or nothing, and writes the rest
anew by beams: shown the parent and its vector, as a correction of it, or, if it has not learned to see, as if the
vector lay beyond the target as seen from the parent. What the parent lacks is said then, in good order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unembed.decode.write import Shortlists, write

if TYPE_CHECKING:
    from unembed.decode.plan import Candidate
    from unembed.model.sight import Guess
    from unembed.model.writer import Writer

# Beams that are written, and texts that are judged, together.
WRITTEN, JUDGED = 192, 64


def go_on(
    writer: Writer, vectors: Tensor, beginnings: Sequence[Sequence[int]], guess: Guess | None, width: int
) -> list[list[Candidate]]:
    """Texts for vectors (n, d) that begin so, as corrections of a guess if there is one: at most `width` of each."""
    found: list[list[Candidate]] = [[] for _ in beginnings]
    order = sorted(range(len(beginnings)), key=lambda k: len(beginnings[k]))
    size = max(1, WRITTEN // width)
    for first in range(0, len(order), size):
        some = order[first : first + size]
        longest = max(1, *(len(beginnings[k]) for k in some))
        padded = [[*beginnings[k], *[-1] * (longest - len(beginnings[k]))] for k in some]
        stems, index = (torch.tensor(one, device=vectors.device) for one in (padded, some))
        shown = None if guess is None else guess.rows(index)
        for k, texts in zip(some, write(writer, vectors[index], width, width, None, shown, stems), strict=True):
            found[k] = texts
    return found


def judge(writer: Writer, vectors: Tensor, texts: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
    """Of every text, the probability that the writer gives each of its words for the vector (n, d)."""
    found: list[tuple[float, ...]] = [()] * len(texts)
    order = sorted(range(len(texts)), key=lambda k: len(texts[k]))
    for first in range(0, len(order), JUDGED):
        some = order[first : first + JUDGED]
        longest = len(texts[some[-1]])
        tokens = torch.tensor([[*texts[k], *[0] * (longest - len(texts[k]))] for k in some], device=vectors.device)
        given = vectors[some]
        told, heard, _ = writer.listen(given)
        lists = Shortlists(writer, heard, tokens)
        log_p = lists.log_p(writer(tokens, told)[:, :-1], torch.arange(len(some), device=vectors.device))
        p = log_p.gather(2, lists.places_of(tokens)[..., None])[..., 0].exp().tolist()
        for row, k in zip(p, some, strict=True):
            found[k] = tuple(row[: len(texts[k])])
    return found
