"""An audit from end to end: sample, identify, recover, look for personal data and topics, controls, report.

Whatever was found is in the log at once (`audit.jsonl`), so an audit can stop at any moment and go on later.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import unembed
from unembed.audit import personal, report
from unembed.audit.log import NAME, Log, Record, read, save
from unembed.audit.stages import Stages
from unembed.audit.stores import Description, Sample, StoreOptions, open_store, shown
from unembed.audit.summary import summarise
from unembed.errors import DataError
from unembed.inverter import Inverter
from unembed.measure.provenance import now, versions
from unembed.measure.recovery import net_sha256

SUMMARY, REPORT = "audit.json", "report.html"


@dataclass(frozen=True, slots=True)
class Options:
    """What to audit of a store, and how."""

    store: StoreOptions = field(default_factory=StoreOptions)
    sample: int = 1000
    seed: int = 0
    encoder: str | None = None
    """The encoder that made the vectors; None finds out."""
    inverter: str = "default"
    reveal: bool = False
    """Write personal data down as it is."""
    feedback: int = 0
    """So many rows are recovered once more with the encoder's help, which takes seconds for each."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the audit is; `total` is None while a stage cannot say."""

    stage: str
    done: int = 0
    total: int | None = None


def audit(source: str, folder: Path, options: Options, *, overwrite: bool = False) -> Iterator[Progress]:
    """Audit a store; the work is done as the progress is iterated over.

    Leaves `audit.jsonl`, `audit.json` and `report.html` in the folder. Killed at any moment and started again with the
    same settings it goes on, and its numbers are those of an uninterrupted run.
    """
    if not overwrite:
        _refuse_finished(folder)
    personal.find("")  # says now what is not installed, and not after half an hour
    yield Progress("reading the store")
    began = time.perf_counter()
    with open_store(source, options.store) as store:
        about = store.describe()
        sample = _clean(store.sample(options.sample, options.seed))
    seconds = time.perf_counter() - began
    yield Progress("loading the inverter")
    inverter = unembed.load(None if options.inverter == "default" else options.inverter)
    with Log(folder, _config(about, options, inverter), overwrite=overwrite) as log:
        _remove_results(folder)
        _note_sample(log, about, sample, inverter, seconds)
        yield Progress("finding the encoder")
        stages = Stages(log, sample, inverter, _home(options.inverter), options.seed, reveal=options.reveal)
        stages.identify(options.encoder, named=options.inverter != "default")
        for done in stages.recover():
            yield Progress("recovering texts", done, len(sample.ids))
        if options.feedback:
            yield Progress("asking the encoder")
            stages.feedback(options.feedback)
        yield Progress("looking for links")
        stages.uniqueness()
        yield Progress("controls")
        stages.controls()
        if log.stage("done") is None:
            command = _command(source, folder, options)
            log.append([{"kind": "done", "date": now(), "command": command, "versions": versions()}])
    yield Progress("writing the report")
    rebuild(folder)


def load(folder: Path) -> dict[str, Any]:
    """The summary of a finished audit."""
    found: dict[str, Any] = json.loads((folder / SUMMARY).read_text("utf-8"))
    return found


def _remove_results(folder: Path) -> None:
    """What is made from the log goes before the log changes: a report is there when it is that of a finished audit."""
    for name in (SUMMARY, REPORT):
        (folder / name).unlink(missing_ok=True)


def rebuild(folder: Path) -> dict[str, Any]:
    """Make `audit.json` and `report.html` from the log; returns the summary."""
    summary = summarise(read(folder))
    save(folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    save(folder / REPORT, report.render(summary))
    return summary


def _refuse_finished(folder: Path) -> None:
    """An old result must not pass for a new one."""
    if (folder / NAME).exists() and (folder / REPORT).exists():
        raise DataError(
            f"{folder} holds a finished audit: choose another folder with -o, replace it with --overwrite, or make its "
            f"report again with `unembed report {shlex.quote(str(folder))}`"
        )


def _clean(sample: Sample) -> Sample:
    """Texts that can be written down: half a surrogate pair cannot."""
    texts = [None if text is None else text.encode("utf-8", "replace").decode() for text in sample.texts]
    ids = [name.encode("utf-8", "replace").decode() for name in sample.ids]
    return dataclasses.replace(sample, texts=texts, ids=ids)


def _config(about: Description, options: Options, inverter: Inverter) -> Record:
    """What decides the result; no credential is in it."""
    return {
        "store": about.kind,
        "place": about.place,
        "vector_field": about.vector_field,
        "text_field": about.text_field,
        "sample": options.sample,
        "seed": options.seed,
        "encoder": None if options.encoder is None else shown(options.encoder),
        "inverter": options.inverter,
        "weights": net_sha256(inverter.artifact.net),
        "decode": dataclasses.asdict(inverter.decoding()),
        "reveal": options.reveal,
        "feedback": options.feedback,
    }


def _note_sample(log: Log, about: Description, sample: Sample, inverter: Inverter, seconds: float) -> None:
    """Write down what was drawn, or check that the same was drawn as before."""
    from unembed.audit.leak import longer_than_window

    mark, there = _fingerprint(sample), log.stage("sample")
    if there is not None and there["fingerprint"] != mark:
        raise DataError(
            f"{about.place} has changed since this audit was begun: begin anew with --overwrite, or audit a copy of it"
        )
    if there is None:
        log.append([{
            "kind": "sample",
            "date": now(),
            "seconds": round(seconds, 3),
            "description": dataclasses.asdict(about),
            "fingerprint": mark,
            "sampled": len(sample.ids),
            "with_text": sum(text is not None for text in sample.texts),
            "longer_than_window": longer_than_window(inverter, sample.texts),
            "left_out": sample.left_out,
            "loss": None if sample.loss is None else dataclasses.asdict(sample.loss),
            "notes": list(sample.notes),
        }])  # fmt: skip


def _fingerprint(sample: Sample) -> str:
    digest = hashlib.sha256(sample.vectors.tobytes())
    digest.update(json.dumps([sample.ids, sample.texts]).encode())
    return digest.hexdigest()


def _home(inverter: str) -> Path | None:
    """The folder of an inverter, where its calibration is; None for one from a hub."""
    folder = unembed.SHIPPED if inverter == "default" else Path(inverter)
    return folder if folder.is_dir() else None


def _command(source: str, folder: Path, options: Options) -> str:
    """What was run, ready to paste where it held no credentials."""
    words = ["unembed", "audit", shown(source), "-o", str(folder)]
    store = options.store
    given = {
        "--sample": options.sample, "--seed": options.seed, "--table": store.table, "--column": store.column,
        "--text": store.text, "--texts": store.texts,
        "--inverter": None if options.inverter == "default" else options.inverter,
        "--feedback": options.feedback or None,
        "--encoder": None if options.encoder is None else shown(options.encoder),
    }  # fmt: skip
    words += [word for name, value in given.items() if value is not None for word in (name, str(value))]
    return shlex.join([*words, "--reveal"] if options.reveal else words)
