"""Calibrate the estimates of an audit for an inverter, and measure the topics; both on held-out texts.

    python tools/calibrate.py /work/shared/corpus/en

That is all after the shipped weights changed: it writes unembed/weights/minilm/calibration.json, and what was measured
to results/calibration.json and results/topics.json; commit the three. The argument is texts (whatever `unembed encode`
reads: a folder, files), of which 1,600 windows of the validation split are embedded, or a dataset folder that
`unembed encode --split validation` made of them. 600 are decoded. Two to four minutes on two cores.

Another inverter is given by --inverter, and then its measurements by --results. A calibration of other weights or of
other settings of decoding is not used: an audit goes on without an estimate, and says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

import numpy as np  # noqa: E402

import unembed  # noqa: E402
from unembed.audit import calibration, leak, topics  # noqa: E402
from unembed.audit.calibration import Calibration, Fit, rounded  # noqa: E402
from unembed.data.dataset import Dataset, Examples  # noqa: E402
from unembed.data.encoders import Encoder  # noqa: E402
from unembed.data.shards import file_sha256, tokens_folder, write_whole  # noqa: E402
from unembed.data.tokens import write_tokens  # noqa: E402
from unembed.data.vectors import write_vectors  # noqa: E402
from unembed.errors import UnembedError  # noqa: E402
from unembed.inverter import Inverter  # noqa: E402
from unembed.measure import provenance  # noqa: E402
from unembed.measure.metrics import Array, cosine, token_f1  # noqa: E402

SPLIT = "validation"
WINDOWS = 1600
"""Texts that are embedded: topics are measured on all of them."""
TOPIC_SOURCES = {"health": "medquad_health_qa", "politics": "europarl_proceedings"}
"""Sources whose every text is on a topic, or nearly; texts of all others count as not on it, though some are."""


def main(arguments: list[str] | None = None) -> int:
    """Decode, fit, measure, write; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, help="texts, or a dataset folder of `unembed encode --split validation`")
    parser.add_argument("--inverter", type=Path, default=unembed.SHIPPED, help="inverter folder; default: the shipped")
    parser.add_argument("-o", "--output", type=Path, help="default: calibration.json in the inverter folder")
    parser.add_argument("-n", type=int, default=600, help="texts; one half fits, the other measures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="where the measurements go")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="calibrate-") as spare:
            run(options, Path(spare))
    except UnembedError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def run(options: argparse.Namespace, spare: Path) -> None:
    """All of it; `spare` is a folder for what is not kept."""
    inverter = Inverter.from_pretrained(options.inverter)
    encoder = unembed.encoder(inverter.encoder.spec)
    data = Dataset(embedded(options.texts, inverter, encoder, spare))
    examples = data.sample(SPLIT, options.n, options.seed)
    began = time.perf_counter()
    table, truth = recovered(inverter, encoder, examples)
    seconds = time.perf_counter() - began
    found = Calibration(
        weights=file_sha256(options.inverter / "model.safetensors"),
        **calibration.beside(options.inverter),
        decode=dataclasses.asdict(inverter.decoding()),
        alone=calibration.fit(table[:, : leak.ALONE], truth, options.seed),
        with_encoder=calibration.fit(table, truth, options.seed),
        n=len(truth),
        seed=options.seed,
        split=SPLIT,
        dataset=data.fingerprint,
        sources={name: examples.sources.count(name) for name in sorted(set(examples.sources))},
        command=provenance.command_line(),
        date=provenance.now(),
    )
    found.save(options.output or options.inverter / calibration.FILE)
    write(options.results / "calibration.json", {**measured(found, table, truth, examples), "seconds": seconds})
    for name, fit in (("alone", found.alone), ("with encoder", found.with_encoder)):
        print(
            f"{name:13s} n {fit.n}, checked on {fit.checked}: coverage {fit.coverage:.3f}, mean width {fit.width:.3f}, "
            f"mean error {fit.error:.3f}, bias {fit.bias_of_mean:+.3f}, correlation {fit.correlation:.2f}"
        )
    scores = measured_topics(encoder, data.sample(SPLIT, 10**6, options.seed))
    write(options.results / "topics.json", scores)
    for name, one in scores["own"].items():
        print(f"{name:13s} AUC {one['auc']:.3f}, calibration error {one['calibration_error']:.3f} (n {one['n']})")


def embedded(texts: Path, inverter: Inverter, encoder: Encoder, spare: Path) -> Path:
    """The dataset folder: the one given, or one made of the texts given."""
    if tokens_folder(texts).is_dir():
        return texts
    longest, tokenizer = inverter.max_tokens, inverter.artifact.tokenizer
    deque(write_tokens([texts], spare, tokenizer, max_tokens=longest, limit=WINDOWS, split=SPLIT), maxlen=0)
    deque(write_vectors(spare, encoder), maxlen=0)
    return spare


def recovered(inverter: Inverter, encoder: Encoder, examples: Examples) -> tuple[Array, Array]:
    """Features of every text as an audit computes them, (n, k), and the true token F1, (n,)."""
    vectors = examples.vectors.astype(np.float32)
    found = inverter.invert(vectors)
    cosines = cosine(leak.embed(encoder, [one.text for one in found]), vectors)
    again = leak.tokens_of(inverter.artifact.tokenizer, [one.text for one in found])
    truth = [token_f1(row.tolist(), tokens) for row, tokens in zip(examples.tokens, again, strict=True)]
    return leak.features(found, cosines), np.array(truth)


def measured(found: Calibration, table: Array, truth: Array, examples: Examples) -> dict[str, Any]:
    """What the calibration reaches on the half that it was not fitted on, in all and by source."""
    other = calibration.halves(len(truth), found.seed)[1]
    sources = np.array(examples.sources)[other]

    def of(fit: Fit, features: Array) -> dict[str, Any]:
        value, low, high = fit.interval(features[other]).T
        inside, error = (low <= truth[other]) & (truth[other] <= high), value - truth[other]
        by_source = {
            str(name): {"n": int(rows.sum()), "coverage": float(inside[rows].mean()), "bias": float(error[rows].mean())}
            for name in np.unique(sources)
            for rows in [sources == name]
        }
        return {**dataclasses.asdict(fit), "by_source": by_source}

    return {
        **{key: value for key, value in dataclasses.asdict(found).items() if key not in ("alone", "with_encoder")},
        "level": calibration.LEVEL,
        "mean_token_f1": float(truth[other].mean()),
        "alone": of(found.alone, table[:, : leak.ALONE]),
        "with_encoder": of(found.with_encoder, table),
        "machine": provenance.machine(),
        "versions": provenance.versions(),
    }


def measured_topics(encoder: Encoder, examples: Examples) -> dict[str, Any]:
    """How well topics are told, on our own unseen sentences and on real texts whose source is on a topic."""
    model = topics.TopicModel.build(encoder)
    texts, labels = topics.labelled("check")
    ours = model.probabilities(encoder.encode(texts))
    real = model.probabilities(examples.vectors.astype(np.float32))
    sources = np.array(examples.sources)
    return {
        "encoder": encoder.name,
        "prior": topics.PRIOR,
        "fitted_on": len(topics.labelled("fit")[0]),
        "own": {name: scored(ours[:, t], labels == name) for t, name in enumerate(model.names)},
        "real": {
            name: {"source": source, **scored(real[:, model.names.index(name)], sources == source)}
            for name, source in TOPIC_SOURCES.items()
            if (sources == source).any()
        },
        "real_share_above_half": {name: float((real[:, t] > 0.5).mean()) for t, name in enumerate(model.names)},
        "notes": [
            "own: sentences written for this, not used for fitting; 8 to 10 of a topic, so single AUCs are coarse",
            "real: texts of other sources count as not on the topic although some are, so true AUCs are higher; many a "
            "sentence spoken in parliament is on no politics by itself, which the number for politics suffers from",
            "calibration_error: expected calibration error in 10 bins, texts weighted so that the topic has its prior",
        ],
        "command": provenance.command_line(),
        "date": provenance.now(),
        "versions": provenance.versions(),
    }


def scored(p: Array, on: Array) -> dict[str, Any]:
    """AUC and calibration error of probabilities against labels, with what the mean probability is on both sides."""
    share = np.where(on, topics.PRIOR / on.sum(), (1 - topics.PRIOR) / (~on).sum())
    bins = np.minimum((p * 10).astype(int), 9)
    error = sum(abs((share[bins == b] * (p - on)[bins == b]).sum()) for b in range(10))
    return {
        "n": int(on.sum()),
        "others": int((~on).sum()),
        "auc": auc(p, on),
        "calibration_error": float(error),
        "mean_on": float(p[on].mean()),
        "mean_off": float(p[~on].mean()),
        "recall_at_half": float((p[on] > 0.5).mean()),
        "false_at_half": float((p[~on] > 0.5).mean()),
    }


def auc(p: Array, on: Array) -> float:
    """Chance that a text on the topic has the higher probability; ties count half."""
    difference = p[on][:, None] - p[~on][None, :]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


def write(path: Path, content: dict[str, Any]) -> None:
    """A results file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rounded(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_whole(path, lambda part: part.write_text(text, "utf-8"))


if __name__ == "__main__":
    sys.exit(main())
