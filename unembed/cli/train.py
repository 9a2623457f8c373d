"""`unembed train`: a dataset folder to an inverter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from unembed import config as settings
from unembed.cli import console
from unembed.errors import ConfigError

if TYPE_CHECKING:
    from unembed.data.dataset import Dataset, Examples
    from unembed.model.artifact import Artifact
    from unembed.model.trainer import Event, Preview

GO_ON = "The state was saved: run the same command with --resume to go on as if nothing had happened."
SAMPLES = 3  # recovered validation texts shown after each validation


def train(
    folder: Path | None = None,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    preset: Literal["cpu", "paper", "tiny"] = "cpu",
    set_: Annotated[tuple[str, ...], Parameter(name="--set")] = (),
    steps: int | None = None,
    encoder: str | None = None,
    online: bool = False,
    resume: bool = False,
    init_from: str | None = None,
    surrogate_of: str | None = None,
    writer_of: str | None = None,
    echo_of: str | None = None,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Train an inverter on a dataset.

    ```
    unembed train data/corpus -o out/run
    unembed train data/corpus -o out/run --resume
    unembed train data/corpus -o out/run --online --encoder minilm
    unembed train data/mpnet -o out/mpnet --init-from default --set train.bag_steps=0
    unembed train data/corpus -o out/small --set model.layers=4 --steps 2000
    unembed train data/corpus -o out/both --surrogate-of out/run --steps 1000
    unembed train data/corpus -o out/all --writer-of out/both --steps 1000 --set train.guesses=0.5
    unembed train data/corpus -o out/whole --echo-of out/all --steps 1000
    unembed train --preset paper --dry-run
    torchrun --nproc-per-node 8 -m unembed train DATA -o RUN --preset paper
    ```

    Args:
        folder: The dataset, as `unembed encode` made it.
        output: The folder of the run; the finished inverter is there, too.
        preset: cpu learns on two cores, paper is the published configuration, tiny is for tests.
        set_: Change one setting, as section.field=value (see unembed/config.py); may be repeated.
        steps: Short for --set train.steps=N.
        encoder: Whose vectors to take, when the dataset has those of several; with --online, what makes them.
        online: Make the vectors while training; only tokens are needed (`unembed encode --stage tokens`).
        resume: Go on with the run in the output folder; start it if there is none.
        init_from: Start from the weights of this inverter (a folder, or "default"), also one of another encoder: its
            vectors are then mapped to those that the inverter knows.
        surrogate_of: Train a surrogate of the encoder of this inverter (a folder, or "default"): it finds more words,
            and makes encoder feedback take fewer queries; the output folder holds both.
        writer_of: Train a writer, which writes from left to right, beside this inverter and its surrogate (a folder,
            or "default"), or go on with the one that it has; the output folder holds all. With train.guesses it also
            learns to correct texts of its own, for encoder feedback.
        echo_of: Train an echo, which judges what a writer has written, beside this inverter and its surrogate (a
            folder, or "default"), or go on with the one that it has; the output folder holds all.
        dry_run: Print the settings and the number of parameters, and stop.
        json: Print the summary as JSON.
    """
    changes = [*set_, *([f"train.steps={steps}"] if steps is not None else [])]
    config = settings.override(settings.preset(preset), changes)
    if dry_run:
        _describe(config, _open(folder, encoder, online) if folder else None, json)
        return
    if folder is None or output is None:
        raise ConfigError("give the dataset and the folder of the run: unembed train DATASET -o RUN")
    data = _open(folder, encoder, online)
    import unembed
    from unembed.model import artifact, trainer

    config = trainer.fit_to_data(config, data)
    if sum(bool(one) for one in (init_from, surrogate_of, writer_of, echo_of)) > 1:
        raise ConfigError("--init-from, --surrogate-of, --writer-of and --echo-of are kinds of training: give one")
    start = artifact.load(unembed.SHIPPED if init_from == "default" else init_from) if init_from else None
    last: dict[str, float] = {}
    with console.resumable(GO_ON), console.progress("train") as bar:

        def report(event: Event) -> None:
            last.update(event.metrics)
            _show(bar, event)

        if beside := surrogate_of or echo_of:
            from unembed.model import surrogate_trainer

            inverter = unembed.load(None if beside == "default" else beside).artifact
            kind: surrogate_trainer.Kind = "surrogate" if surrogate_of else "echo"
            surrogate_trainer.train(config, data, inverter, output, kind=kind, resume=resume, report=report)
        elif writer_of:
            from unembed.model import writer_trainer

            inverter = unembed.load(None if writer_of == "default" else writer_of).artifact
            guesser = unembed.encoder(inverter.encoder.spec) if config.train.guesses else None
            writer_trainer.train(config, data, inverter, output, encoder=guesser, resume=resume, report=report)
        else:
            trainer.train(config, data, output, resume=resume, init_from=start, preview=_preview, report=report)
    if not console.is_first():
        return
    if json:
        console.print_json({"inverter": str(output), "steps": config.train.steps, "metrics": last})
    elif console.is_terminal():
        console.out().print(f'The inverter is in {output}. Try: unembed invert "Some text." --inverter {output}')


def _preview(model: Artifact, examples: Examples) -> Preview:
    """A short end-to-end decode of validation texts, as the trainer asks for."""
    from unembed.inverter import Inverter
    from unembed.measure.metrics import token_accuracy, token_f1
    from unembed.model.trainer import Preview

    found = Inverter(model).invert(examples.vectors)
    pairs = [(tokens.tolist(), list(one.tokens)) for tokens, one in zip(examples.tokens, found, strict=True)]
    metrics = {
        "token_accuracy": sum(token_accuracy(a, b) for a, b in pairs) / len(pairs),
        "token_f1": sum(token_f1(a, b) for a, b in pairs) / len(pairs),
    }
    texts = zip(examples.texts, found, strict=True)
    return Preview(metrics, [(text, one.text) for text, one in list(texts)[:SAMPLES]])


def _open(folder: Path, encoder: str | None, online: bool) -> Dataset:
    from unembed.data.dataset import Dataset

    if not online:
        return Dataset(folder, encoder)
    from unembed.data import encoders
    from unembed.data.online import OnlineDataset

    return OnlineDataset(folder, encoders.load(encoder or "minilm"))


def _show(bar: console.Bar, event: Event) -> None:
    note = f"loss {event.loss:.3f} · {event.texts_per_second:.0f} texts/s"
    bar.show(event.step, event.steps, note, label="words" if event.phase == "bag" else "train")
    if event.metrics:
        # entropy_0.5 is the cross-entropy with half of the tokens masked
        scores = " · ".join(
            f"{name.replace('entropy_', 'CE at t=').replace('_', ' ')} {value:.3f}"
            for name, value in event.metrics.items()
            if name not in ("texts", "seconds")
        )
        bar.say(f"[bold]step {event.step}[/bold]  {scores}")
    for original, recovered in event.samples:
        from unembed.cli.live import result

        bar.say(result(original, recovered, ()))


def _describe(config: settings.Config, data: Dataset | None, json: bool) -> None:
    """Settings and size, without making the net: the tensors stay on torch's `meta` device."""
    import torch

    from unembed.model.denoiser import Denoiser, parameter_counts

    if data is not None:
        from unembed.model.trainer import fit_to_data

        config = fit_to_data(config, data)
    with torch.device("meta"):
        total, trainable = parameter_counts(Denoiser(config.model))
    description: dict[str, Any] = {"parameters": total, "trainable": trainable, **settings.to_dict(config)}
    if data is not None:
        description["texts"] = {split: data.count(split) for split in ("train", "validation", "test")}
    if json:
        console.print_json(description)
        return
    for name, value in description.items():
        if isinstance(value, dict):
            for field, setting in value.items():
                console.print_line(f"{name}.{field} = {setting}")
        else:
            console.print_line(f"{name}: {value:,}")
