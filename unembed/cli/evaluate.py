"""`unembed evaluate`: what an inverter recovers of unseen text."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from unembed.cli import console
from unembed.decode import DecodeConfig
from unembed.decode.config import AUTO, WRITER, choices
from unembed.errors import ConfigError, EncoderError

if TYPE_CHECKING:
    from unembed.data.encoders import Encoder
    from unembed.measure.perplexity import LanguageModel

# As unembed.measure.baselines has them; named here so that `--help` need not import numpy.
BASELINES = ("random", "unconditional", "nearest")
OF_TRAINING = ("random", "nearest")  # baselines that are made of training texts
GO_ON = "What was recovered and scored is kept: run the same command again to go on."


def evaluate(
    inverter: str,
    data: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    n: Annotated[int, Parameter(name=("-n", "--n"))] = 300,
    split: Literal["test", "validation", "train", "held-out"] = "test",
    training: Path | None = None,
    strategies: str = AUTO,
    baselines: str = "all",
    perplexity: str | None = None,
    perplexity_texts: int = 500,
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
    unembed evaluate out/run data/other -o other.json --split held-out --training data/corpus
    ```

    Args:
        inverter: An inverter folder, a hub id, or `default` for the shipped one.
        data: The dataset folder to draw texts from.
        output: Where the results go, as JSON.
        n: Number of texts, drawn at random (the seed decides).
        split: Which texts; `held-out` takes all, of sources that were never trained on. Training texts measure memory,
            and the results then say so.
        training: The dataset that the inverter was trained on, if that is not `data`: for baselines and near copies.
        strategies: Names with commas between them, or all; auto is what `unembed invert` does unless told otherwise.
        baselines: Of random, unconditional, nearest: names with commas between them, all, or none.
        perplexity: Also score the texts under a language model: smollm2, a folder, or a hub id.
        perplexity_texts: How many of the texts the language model reads.
        cosine: Re-embed the recovered texts with the encoder.
        resamples: Bootstrap draws for the 95 % intervals.
        json: Print the results as JSON instead of a table.
        decoding: How to decode.
    """
    if n < 1 or perplexity_texts < 1:
        option, value = ("-n", n) if n < 1 else ("--perplexity-texts", perplexity_texts)
        raise ConfigError(f"{option} is {value}: give a number of texts of at least 1")
    if not _choose(strategies, choices()):
        raise ConfigError("--strategies names none: give at least one")
    rivals, notes = _rivals(baselines, made_of_training=training is not None or split != "held-out")
    from unembed.cli.invert import open_inverter
    from unembed.data.dataset import Dataset
    from unembed.measure import evaluate as measure
    from unembed.measure import results as disk
    from unembed.measure.baselines import Context, baseline
    from unembed.measure.provenance import versions
    from unembed.measure.recovery import Keeper, net_sha256
    from unembed.measure.table import terminal_table
    from unembed.model.artifact import check_encoder

    model = open_inverter(inverter)
    dataset = Dataset(data, model.encoder.spec)
    trained = dataset if training is None else Dataset(training, model.encoder.spec)
    for made_by in (dataset.encoder_info, trained.encoder_info):
        check_encoder(model.artifact, dim=made_by.dim, spec=made_by.spec, fingerprint=made_by.fingerprint)
    encoder = _encoder(model.encoder.spec) if cosine else None
    can = [name for name in choices() if name != AUTO and (name != WRITER or model.artifact.writer is not None)]
    names = can if strategies == "all" else _choose(strategies, choices())
    chosen = [model.decoding(dataclasses.replace(decoding, strategy=name)) for name in names]
    configs = {config.strategy: config for config in chosen}
    surrogate, writer, echo = model.artifact.surrogate, model.artifact.writer, model.artifact.echo
    with console.resumable(GO_ON), console.progress("evaluate") as bar:
        keeper = Keeper(
            output.with_name(output.name + ".part"),
            {
                "weights": net_sha256(model.artifact.net), "data": dataset.fingerprint, "split": split, "n": n,
                "surrogate": surrogate and net_sha256(surrogate), "writer": writer and net_sha256(writer),
                "echo": echo and net_sha256(echo), "training": trained.fingerprint,
                "seed": decoding.seed, "perplexity": perplexity,
                "perplexity_texts": perplexity_texts, "versions": versions(),
                "encoder": encoder and [encoder.name, encoder.fingerprint],
            },
        )  # fmt: skip
        context = Context(model, next(iter(configs.values())), trained, decoding.seed)
        results = measure.evaluate(
            model,
            dataset.sample("all" if split == "held-out" else split, n, decoding.seed),
            encoder,
            configs,
            [baseline(name, context) for name in rivals],
            perplexity=_language_model(perplexity),
            perplexity_texts=perplexity_texts,
            split=split,
            allow_train=split == "train",
            seed=decoding.seed,
            resamples=resamples,
            dataset=dataset.fingerprint,
            weights=_weights(inverter),
            notes=notes,
            keeper=keeper,
            progress=lambda label, done, total: bar.show(done, total, label=label),
        )
    disk.save(results, output)
    keeper.remove()
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


def _rivals(given: str, *, made_of_training: bool) -> tuple[list[str], list[str]]:
    """The baselines, and a note about those that cannot be had because nobody said what the training texts are."""
    names = _choose(given, BASELINES)
    lost = [] if made_of_training else [name for name in names if name in OF_TRAINING]
    if not lost:
        return names, []
    need = "--training, the dataset that the inverter was trained on"
    if given != "all":
        raise ConfigError(f"for held-out texts, {' and '.join(lost)} need {need}")
    return [name for name in names if name not in lost], [f"{' and '.join(lost)} were left out: they need {need}"]


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
