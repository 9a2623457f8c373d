"""`unembed invert`: the round trip of a text, or the texts behind a file of vectors."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from unembed.cli import STDIN, console, search
from unembed.decode import DecodeConfig
from unembed.decode import config as presets
from unembed.decode.config import WRITER
from unembed.decode.feedback import FeedbackConfig
from unembed.errors import ConfigError, DataError, EncoderError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from unembed.decode import Inversion
    from unembed.inverter import Inverter

SUFFIXES = (".npy", ".npz", ".parquet", ".pq", ".jsonl", ".ndjson")
GO_ON = "Finished vectors are kept: run the same command again to go on."
# Slow enough to see a step, fast enough for thirty of them.
SECONDS_PER_FRAME = 0.12


def invert(
    source: str,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    inverter: str = "default",
    device: str = "cpu",
    text: bool = False,
    vectors: bool = False,
    column: str | None = None,
    tokens: bool = False,
    overwrite: bool = False,
    batch_size: int = 64,
    json: bool = False,
    fast: Annotated[bool, Parameter(negative="")] = False,
    best: Annotated[bool, Parameter(negative="")] = False,
    feedback: bool = False,
    budget: Annotated[int | None, Parameter(show_default=False)] = None,
    gradients: Literal["auto", "off", "swaps", "guidance", "all"] = "auto",
    encoder: Annotated[str | None, Parameter(show_default=False)] = None,
    price: Annotated[float | None, Parameter(show_default=False)] = None,
    decoding: Annotated[DecodeConfig, Parameter(name="*", group="Decoding")] = DecodeConfig(),  # noqa: B008 (frozen)
) -> None:
    """Recover the text behind a vector, or make the round trip from a text of yours.

    ```
    unembed invert "The parcel will arrive on Tuesday morning."
    unembed invert "The parcel will arrive." --strategy sequential --json
    unembed invert "The parcel will arrive." --best
    unembed invert "The parcel will arrive on Tuesday morning." --feedback --budget 100
    unembed invert vectors.npy -o recovered.jsonl
    unembed invert store.parquet --column embedding -o recovered.jsonl
    cat vectors.jsonl | unembed invert - > recovered.txt
    ```

    A text is embedded first, and only its vector goes on. A file that exists, or a name that ends like a file of
    vectors (.npy .npz .parquet .jsonl), is a file of vectors; anything else is a text.

    Args:
        source: A text, a file of vectors, or - for vectors as JSON lines on standard input.
        output: Write JSON lines to this file, for many vectors. Run the same command again to go on.
        inverter: An inverter folder or hub id; `default` is the shipped one, for all-MiniLM-L6-v2.
        device: Where the network runs: cpu, cuda, mps, or auto for the fastest there is.
        text: The source is a text, whatever it looks like (with -: read it from standard input).
        vectors: The source is a file of vectors, whatever it looks like.
        column: Which column or array of the file holds the vectors.
        tokens: Also write token ids and the confidence of each to the output.
        overwrite: Replace the output, instead of refusing or going on.
        batch_size: Texts in one forward pass; of no influence on the result.
        json: Print JSON: one object for a text, one line for each vector of a file.
        fast: Decode in half the time, a little worse (settings of your own go before it).
        best: Take the time for the best text that is found without the encoder (settings of your own go before it).
        feedback: Embed the guesses, compare them with the vector and correct them (see docs/feedback.md).
        budget: With --feedback: the most texts, backward passes included, to ask about for one vector (320).
        gradients: With --feedback: what a local encoder's gradients are used for; off treats it as a black box.
        encoder: With --feedback: the encoder that made the vectors, if it is not the one the inverter names.
        price: With --feedback and an encoder behind an API: what a million tokens cost, to be told the bill's limit.
        decoding: How to decode.
    """
    kind = kind_of(source, text=text, vectors=vectors)
    if fast and best:
        raise ConfigError("--fast and --best exclude each other: leave one out")
    if output is not None and kind == "text":
        raise ConfigError("-o is for a file of vectors; for one text, send the output where you want it: > file")
    if output is not None and json:
        raise ConfigError("-o writes JSON lines already: leave --json out")
    settings = None
    if feedback:
        settings = FeedbackConfig(budget=320 if budget is None else budget, gradients=gradients, seed=decoding.seed)
    elif budget is not None or encoder is not None or price is not None or gradients != "auto":
        raise ConfigError("--budget, --gradients, --encoder and --price are for encoder feedback: add --feedback")
    told = _read_text(source) if kind == "text" else ""
    opened = open_inverter(inverter, device)
    if fast or best:
        writes, hears = opened.decoding(decoding).strategy == WRITER, opened.artifact.echo is not None
        decoding = presets.based_on(presets.fast(writes) if fast else presets.best(writes, hears), decoding)
    if kind == "text":
        _round_trip(told, opened, decoding, json, settings, encoder, price)
        return
    place = "-" if source == STDIN else source
    asked = None if settings is None else search.open_encoder(opened, encoder)
    if asked is not None and settings is not None:
        count = opened.reader(place, column=column).total if place != "-" else None
        search.announce(asked, settings.budget, count, opened.max_tokens, price)
    if output is None:
        if asked is not None and settings is not None:
            search.every(opened, asked, place, column, decoding, settings, batch_size, json)
        else:
            _print_all(opened, place, column, decoding, batch_size, json)
        return
    with console.resumable(GO_ON), console.progress("invert") as bar:
        notes: tuple[str, ...] = ()
        for step in opened.invert_file(
            place, output, decoding, column=column, with_tokens=tokens, overwrite=overwrite, batch_size=batch_size,
            encoder=asked, feedback=settings,
        ):  # fmt: skip
            resumed = f", {step.resumed:,} were there" if step.resumed else ""
            bar.show(step.done, step.total, f"{step.rate:,.0f}/s{resumed}")
            notes = step.notes
    console.warn(notes)
    if console.is_terminal():
        console.print_line(f"{step.done:,} texts in {output}")


def kind_of(source: str, *, text: bool, vectors: bool) -> Literal["text", "vectors"]:
    """Is it a text or a file of vectors?"""
    if text and vectors:
        raise ConfigError("--text and --vectors exclude each other: leave one out")
    if text or vectors:
        return "text" if text else "vectors"
    if source == STDIN:
        return "vectors"
    looks_like_file = source.lower().endswith(SUFFIXES) and "\n" not in source
    if not looks_like_file and not _exists(source):
        return "text"
    if not _exists(source):
        raise DataError(f"no file {source}: check the name, or add --text if this is a text")
    if Path(source).is_dir():
        raise DataError(f"{source} is a folder: give a file of vectors, or add --text if this is a text")
    return "vectors"


def _exists(source: str) -> bool:
    try:
        return bool(source) and Path(source).exists()
    except (OSError, ValueError):  # longer than a file name may be, or with a NUL
        return False


def open_inverter(location: str, device: str = "cpu") -> Inverter:
    """The inverter of that name on that device; `default` is the shipped one."""
    import unembed

    return unembed.load(None if location == "default" else location, device=device)


def _read_text(source: str) -> str:
    text = sys.stdin.read() if source == STDIN else source
    if not text.strip():
        raise DataError('the text is empty: give some words, such as unembed invert "Good morning."')
    return " ".join(text.split())


def _round_trip(
    text: str,
    inverter: Inverter,
    config: DecodeConfig,
    json: bool,
    settings: FeedbackConfig | None,
    spec: str | None,
    price: float | None,
) -> None:
    """Embed a text, forget it, recover it, and show both."""
    try:
        encoder = search.open_encoder(inverter, spec)
    except EncoderError as error:
        raise EncoderError(
            f"to invert a text its vector is needed first, and {error} (a file of vectors can be inverted without)"
        ) from None
    vector = encoder.encode([text])
    began = time.perf_counter()
    stopped: BaseException | None = None
    if settings is None:
        found = inverter.invert(vector, config)[0]
    else:
        search.announce(encoder, settings.budget, 1, inverter.max_tokens, price)
        found, stopped = search.one(inverter, encoder, vector, config, settings)
    milliseconds = 1000 * (time.perf_counter() - began)
    # Only for the report: decoding is over.
    cosine = _cosine(vector[0], encoder.encode([found.text])[0]) if found.cosine is None else found.cosine
    if json:
        console.print_json(_report(text, found, cosine, milliseconds, inverter, config))
    elif console.is_terminal():
        _draw(text, vector, found, cosine, milliseconds, inverter, config)
    else:
        console.print_line(found.text)
    if stopped is not None:
        raise stopped


def _cosine(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    from unembed.measure.metrics import cosine

    return float(cosine(a[None], b[None])[0])


def _report(
    text: str, found: Inversion, cosine: float, milliseconds: float, inverter: Inverter, config: DecodeConfig
) -> dict[str, Any]:
    return {
        "original": text,
        "recovered": found.text,
        "cosine": round(cosine, 4),
        "milliseconds": round(milliseconds, 1),
        "encoder_calls": found.queries + found.gradients,
        "inversion": found.to_dict(),
        "encoder": inverter.encoder.spec,
        "decoding": dataclasses.asdict(inverter.decoding(config)),
    }


def _draw(
    text: str,
    vector: npt.NDArray[np.float32],
    found: Inversion,
    cosine: float,
    milliseconds: float,
    inverter: Inverter,
    config: DecodeConfig,
) -> None:
    """Show the denoising once more, slowly, then the two texts."""
    from rich.live import Live

    from unembed.cli import live

    out = console.out()
    out.print(live.start(vector[0], inverter.encoder.spec))
    if found.cosine is None:
        with Live(console=out, auto_refresh=False, transient=True) as screen:
            # At the length that won. Texts drawn for n-best are not shown on their way, only in the end.
            if inverter.decoding(config).strategy != WRITER:
                config = dataclasses.replace(config, length=len(found.tokens))
            for step in inverter.stream(vector, config):
                screen.update(live.frame(step, inverter.artifact.tokenizer), refresh=True)
                time.sleep(SECONDS_PER_FRAME)
    asked = f"encoder asked {found.queries} times" + (f", {found.gradients} gradients" if found.gradients else "")
    facts = [f"cosine {cosine:.2f}", f"{found.steps} steps", f"{milliseconds:.0f} ms", asked]
    out.print(live.result(text, found.text, facts))
    for other in found.alternatives:
        out.print(live.alternative(text, other.text))
    length = len(inverter.artifact.tokenizer.encode(text, add_special_tokens=False).ids)
    if length > inverter.max_tokens:
        out.print(f"[dim]The text has {length} tokens; this inverter writes at most {inverter.max_tokens}.[/dim]")


def _print_all(
    inverter: Inverter, place: str, column: str | None, config: DecodeConfig, batch_size: int, json: bool
) -> None:
    """Texts to standard output as they come, one on a line."""
    reader = inverter.reader(place, column=column)
    row = 0
    for chunk in reader:
        for found in inverter.invert(chunk.vectors, config, batch_size=batch_size):
            if json:
                console.print_json({"row": row, **found.to_dict()})
            else:
                console.print_line(found.text)
            row += 1
    if not row:
        raise DataError(f"{reader.name} has no vectors: give a file with some")
    console.warn(reader.notes)
