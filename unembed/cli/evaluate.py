"""`unembed evaluate`: what an inverter recovers of unseen text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unembed.cli import console
from unembed.decode import DecodeConfig
from unembed.decode import strategies as known
from unembed.errors import ConfigError, EncoderError

if TYPE_CHECKING:
    from unembed.data.encoders import Encoder
    from unembed.measure.perplexity import LanguageModel

# As unembed.measure.baselines has them; named here so that `--help` need not import numpy.
BASELINES = ("random", "unconditional", "nearest")
GO_ON = "Nothing was written: the same command starts the measurement anew."


def evaluate(
    inverter: str,
    data: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    n: Annotated[int, Parameter(name=("-n", "--n"))] = 300,
    split: Literal["test", "validation", "train"] = "test",
    strategies: str = "confidence",
    baselines: str = "all",
    perplexity: str | None = None,
    cosine: Annotated[bool, Parameter(negative="--no-cosine")] = True,
    resamples: int = 1000,
    json: bool = False,
    decoding: Annotated[DecodeConfig, Parameter(name="*", group="Decoding")] = DecodeConfig(),  # noqa: B008 (frozen)
) -> None:
    """Measure an inverter end to end on unseen text.

    ```
    unembed evaluate default data/corpus -o results.json
    unembed evaluate out/run data/corpus -o results.json --strategies all
    unembed evaluate out/run data/corpus -o results.json --perplexity smollm2
    ```

    Args:
        inverter: An inverter folder, a hub id, or `default` for the shipped one.
        data: The dataset folder to draw texts from.
        output: Where the results go, as JSON.
        n: Number of texts, drawn at random (the seed decides).
        split: Which texts; training texts measure memory, and the results then say so.
        strategies: Names with commas between them, or all.
        baselines: Of random, unconditional, nearest: names with commas between them, all, or none.
        perplexity: Also score the texts under a language model: smollm2, a folder, or a hub id.
        cosine: Re-embed the recovered texts with the encoder.
        resamples: Bootstrap draws for the 95 % intervals.
        json: Print the results as JSON instead of a table.
        decoding: How to decode.
    """
    if n < 1:
        raise ConfigError(f"-n is {n}: give a number of texts of at least 1")
    names, rivals = _choose(strategies, known.names()), _choose(baselines, BASELINES)
    if not names:
        raise ConfigError("--strategies names none: give at least one")
    from unembed.cli.invert import open_inverter
    from unembed.data.dataset import Dataset
    from unembed.measure import evaluate as measure
    from unembed.measure import results as disk
    from unembed.measure.baselines import Context, baseline
    from unembed.measure.table import terminal_table
    from unembed.model.artifact import check_encoder

    model = open_inverter(inverter)
    dataset = Dataset(data, model.encoder.spec)
    made_by = dataset.encoder_info
    check_encoder(model.artifact, dim=made_by.dim, spec=made_by.spec, fingerprint=made_by.fingerprint)
    configs = {name: dataclasses.replace(decoding, strategy=name) for name in names}
    with console.resumable(GO_ON), console.progress("evaluate") as bar:
        context = Context(model, next(iter(configs.values())), dataset, decoding.seed)
        results = measure.evaluate(
            model,
            dataset.sample(split, n, decoding.seed),
            _encoder(model.encoder.spec) if cosine else None,
            configs,
            [baseline(name, context) for name in rivals],
            perplexity=_language_model(perplexity),
            split=split,
            allow_train=split == "train",
            seed=decoding.seed,
            resamples=resamples,
            dataset=dataset.fingerprint,
            weights=_weights(inverter),
            progress=lambda label, done, total: bar.show(done, total, label=label),
        )
    disk.save(results, output)
    if json:
        console.print_json(disk.to_dict(results))
    else:
        console.print_line(terminal_table(results))


def _choose(given: str, known_names: Sequence[str]) -> list[str]:
    """Names with commas between them, `all` or `none`."""
    if given in ("all", "none"):
        return list(known_names) if given == "all" else []
    names = list(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))
    for name in names:
        if name not in known_names:
            raise ConfigError(f"no {name!r} here: choose from {', '.join(known_names)}, or all")
    return names


def _encoder(spec: str) -> Encoder:
    from unembed.data import encoders

    try:
        return encoders.load(spec)
    except EncoderError as error:
        raise EncoderError(f"{error} (--no-cosine measures all but the cosine, without the encoder)") from None


def _language_model(spec: str | None) -> LanguageModel | None:
    if spec is None:
        return None
    from unembed.measure import perplexity

    return perplexity.load(spec)


def _weights(inverter: str) -> str:
    """sha256 of the weights, if they are in a folder here."""
    import unembed
    from unembed.data.shards import file_sha256

    path = (unembed.SHIPPED if inverter == "default" else Path(inverter)) / "model.safetensors"
    return file_sha256(path) if path.is_file() else ""
