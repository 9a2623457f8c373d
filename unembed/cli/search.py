"""`unembed invert --feedback`: searches with the encoder, and how their results are shown."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unembed.cli import console
from unembed.errors import DataError, EncoderError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from unembed.data.encoders import Encoder
    from unembed.decode import DecodeConfig, Inversion
    from unembed.decode.feedback import FeedbackConfig
    from unembed.inverter import Inverter


def open_encoder(inverter: Inverter, spec: str | None = None) -> Encoder:
    """The encoder of the inverter's vectors, checked."""
    import unembed
    from unembed.model.artifact import check_encoder

    encoder = unembed.encoder(spec or inverter.encoder.spec)
    check_encoder(inverter.artifact, dim=encoder.dim, spec=encoder.name, fingerprint=encoder.fingerprint)
    return encoder


def announce(encoder: Encoder, budget: int, vectors: int | None, longest: int, price: float | None = None) -> None:
    """Say before it starts what an encoder behind an API will be sent, and what that costs, at the most.

    `longest` is the length of the longest text in tokens of the inverter; `price` is that of a million tokens.
    """
    if not encoder.name.startswith("openai:"):
        return
    texts = f"{budget:,} for each vector" if vectors is None else f"{budget * vectors:,}, {budget:,} for each vector"
    tokens = budget * (vectors or 1) * longest
    each = " for each vector" if vectors is None else ""
    cost = (
        "give --price to see what they cost" if price is None else f"{price * tokens / 1e6:,.4f} at {price:g} a million"
    )
    console.warn(
        [
            f"texts that {encoder.name} will be asked to embed, at the most: {texts}",
            f"tokens in them, at the most{each}: about {tokens:,} ({cost})",
        ]
    )


def one(
    inverter: Inverter,
    encoder: Encoder,
    vector: npt.NDArray[np.float32],
    config: DecodeConfig,
    search: FeedbackConfig,
) -> tuple[Inversion, BaseException | None]:
    """The best text, and what stopped the search before its time: what it had found by then is shown all the same."""
    found: list[Inversion] = []
    try:
        with console.progress("search") as bar:
            for _, result in inverter.search(
                vector, encoder, config, feedback=search, progress=lambda spent, total: bar.show(spent, total)
            ):
                found.append(result)
    except (EncoderError, KeyboardInterrupt) as error:
        if not found or found[0].cosine is None:
            raise
        return found[0], error
    return found[0], None


def every(
    inverter: Inverter,
    encoder: Encoder,
    place: str,
    column: str | None,
    config: DecodeConfig,
    search: FeedbackConfig,
    batch_size: int,
    json: bool,
) -> None:
    """Texts to standard output as they are done: JSON lines at once, plain lines as soon as it is their turn."""
    reader = inverter.reader(place, column=column, chunk=search.batch)
    rows = 0
    for chunk in reader:
        rows = chunk.first + len(chunk.vectors)
        waiting: dict[int, Inversion] = {}
        turn = 0
        for row, found in inverter.search(chunk.vectors, encoder, config, feedback=search, batch_size=batch_size):
            if json:
                console.print_json({"row": chunk.first + row, **found.to_dict()})
            waiting[row] = found
            while turn in waiting:
                if not json:
                    console.print_line(waiting[turn].text)
                del waiting[turn]
                turn += 1
            sys.stdout.flush()
    if not rows:
        raise DataError(f"{reader.name} has no vectors: give a file with some")
    console.warn(reader.notes)
