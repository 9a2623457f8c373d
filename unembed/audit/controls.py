"""What an audit would show if the vectors gave nothing away: random vectors, and recoveries of other rows.

`random`: unit vectors of no text are inverted, and the result is set against the stored texts.
`shuffled`: each recovered text is set against the vector and the stored text of another row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from unembed.audit.leak import Recovered, embed, tokens_of
from unembed.audit.personal import Finding, compare
from unembed.measure.metrics import cosine, token_f1

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unembed.data.encoders import Encoder
    from unembed.decode import DecodeConfig
    from unembed.inverter import Inverter

CONTROL_ROWS = 64


def controls(
    inverter: Inverter,
    vectors: NDArray[np.float32],
    texts: Sequence[str | None],
    recovered: Sequence[Recovered],
    *,
    encoder: Encoder | None,
    find: Callable[[str], list[Finding]] | None = None,
    config: DecodeConfig | None = None,
    n: int = CONTROL_ROWS,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Both controls, by name: n, token_f1 (None without stored text), cosine (None without encoder), personal.

    Args:
        inverter: the one that recovered the texts.
        vectors: (n, d), as the inverter reads them.
        texts: the stored texts, or None.
        recovered: what came back of each vector.
        encoder: re-embeds what was recovered.
        find: finds personal data (`personal.find`); None leaves it out.
        config: settings of decoding.
        n: number of random vectors.
        seed: draws the random vectors and the other rows.
    """
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((min(n, len(vectors)), vectors.shape[1])).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    invented = [one.text for one in inverter.invert(noise, config)]
    rows = rng.permutation(len(vectors))[: len(invented)]
    others = _other_rows(len(vectors), rng)
    shuffled = [recovered[row].text for row in others]
    return {
        "random": _score(inverter, noise, [texts[row] for row in rows], invented, encoder, find),
        "shuffled": _score(inverter, vectors, texts, shuffled, encoder, find),
    }


def _other_rows(n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """For each row another one, each once: the rows in random order, each followed by the next. One row has itself."""
    order = rng.permutation(n)
    others = np.empty(n, dtype=np.intp)
    others[order] = np.roll(order, 1)
    return others


def _score(
    inverter: Inverter,
    vectors: NDArray[np.float32],
    texts: Sequence[str | None],
    recovered: Sequence[str],
    encoder: Encoder | None,
    find: Callable[[str], list[Finding]] | None,
) -> dict[str, Any]:
    tokenizer = inverter.artifact.tokenizer
    pairs = [(text, other) for text, other in zip(texts, recovered, strict=True) if text]
    originals, found = [text for text, _ in pairs], [other for _, other in pairs]
    scores = [token_f1(a, b) for a, b in zip(tokens_of(tokenizer, originals), tokens_of(tokenizer, found), strict=True)]
    cosines = None if encoder is None else cosine(embed(encoder, recovered), vectors)
    return {
        "n": len(recovered),
        "with_text": len(pairs),
        "token_f1": float(np.mean(scores)) if scores else None,
        "cosine": None if cosines is None or not len(cosines) else float(cosines.mean()),
        "cosines": None if cosines is None else [round(float(value), 3) for value in cosines],
        "personal": None if find is None else dict(Counter(one.kind for text in recovered for one in find(text))),
        "personal_right": None
        if find is None or not pairs
        else {kind: one.right for kind, one in compare(originals, found).items() if one.stored},
    }
