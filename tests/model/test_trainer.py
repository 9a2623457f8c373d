"""Training: it learns, it stops and goes on, it refuses the wrong thing."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from tests.model.conftest import BagEncoder, small_tokenizer
from unembed.config import Config, override, tiny
from unembed.data.dataset import Dataset, Examples
from unembed.data.tokens import write_tokens
from unembed.data.vectors import write_vectors
from unembed.errors import CheckpointError, ConfigError
from unembed.model import artifact, batches, objective, optim
from unembed.model.artifact import Artifact
from unembed.model.checkpoint import Progress
from unembed.model.denoiser import Denoiser
from unembed.model.runlog import MetricsLog
from unembed.model.trainer import Event, Preview, fit_to_data, train


def losses(out: Path) -> dict[tuple[str, int], float]:
    lines = [json.loads(line) for line in (out / "training" / "metrics.jsonl").read_text().splitlines()]
    return {(line["phase"], line["step"]): line["loss"] for line in lines}


def config_for(data: Dataset, *settings: str) -> Config:
    return fit_to_data(override(tiny(), list(settings)), data)


def test_it_learns_to_fill_in(data: Dataset, tmp_path: Path) -> None:
    """Cross-entropy from 100 % mask far below the unigram's, and lower still when most is visible."""
    events: list[Event] = []
    # The reader alone finds all words of these small texts, and leaves the context nothing to help with.
    settings = ("train.steps=150", "train.bag_steps=40", "train.validate_every=150", "model.reader=false")
    config = config_for(data, *settings)
    train(config, data, tmp_path / "run", report=events.append)
    counts = data.token_counts()
    share = counts[counts > 0] / counts.sum()
    unigram = float(-(share * np.log(share)).sum())
    final = [e for e in events if e.metrics][-1].metrics
    assert final["entropy_1"] < 0.75 * unigram
    assert final["entropy_0.15"] < 0.8 * final["entropy_1"]  # what stands there already helps
    loaded = artifact.load(tmp_path / "run")
    assert loaded.encoder.fingerprint == "bag-1"


def test_accumulation_does_not_change_the_step(data: Dataset, tmp_path: Path) -> None:
    results = []
    for parts in (1, 4):
        out = tmp_path / str(parts)
        train(config_for(data, "train.steps=4", "train.bag_steps=0", f"train.accumulate={parts}"), data, out)
        results.append(losses(out))
    for key, loss in results[0].items():
        assert results[1][key] == pytest.approx(loss, rel=1e-4)


def test_preview_best_milestones_and_early_stop(data: Dataset, tmp_path: Path) -> None:
    seen: list[int] = []

    def preview(model: Artifact, examples: Examples) -> Preview:
        seen.append(len(examples.texts))
        return Preview({"token_f1": 0.5}, [("a", "b")])

    events: list[Event] = []
    config = config_for(
        data, "train.steps=40", "train.lr=0", "train.muon_lr=0", "train.bag_lr=0", "train.validate_every=4",
        "train.patience=2", "train.milestone_every=4",
    )  # fmt: skip
    train(config, data, tmp_path / "run", preview=preview, report=events.append)
    last = max(e.step for e in events if e.phase == "denoise")
    assert last < 40, "a net that cannot learn must stop early"
    assert set(seen) == {config.train.preview_texts}
    validated = [e for e in events if e.metrics]
    assert validated[0].samples == [("a", "b")]
    assert validated[0].metrics["token_f1"] == 0.5
    assert (tmp_path / "run/training/best/model.safetensors").exists()
    assert (tmp_path / "run/training/milestones/step-0000004/config.json").exists()


def test_ctrl_c_saves_and_resumes(data: Dataset, tmp_path: Path) -> None:
    config = config_for(data, "train.steps=12", "train.save_every=100")

    def interrupt(event: Event) -> None:
        if event.phase == "denoise" and event.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config, data, tmp_path / "run", report=interrupt)
    train(config, data, tmp_path / "run", resume=True)
    train(config, data, tmp_path / "plain")
    assert losses(tmp_path / "run") == losses(tmp_path / "plain")


def test_a_run_folder_is_not_overwritten_or_mixed(data: Dataset, tmp_path: Path) -> None:
    config = config_for(data, "train.steps=2", "train.bag_steps=0", "train.save_every=1")
    train(config, data, tmp_path / "run")
    with pytest.raises(CheckpointError, match="--resume"):
        train(config, data, tmp_path / "run")
    other = replace(config, train=replace(config.train, lr=1e-5))
    with pytest.raises(CheckpointError, match="settings"):
        train(other, data, tmp_path / "run", resume=True)


def test_training_runs_in_bf16_where_that_is_fast(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unembed.model.loop.fast_bf16", lambda device: True)
    seen: list[torch.dtype] = []
    real = objective.cross_entropy

    def watch(net: Denoiser, hidden: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(hidden.dtype)
        return real(net, hidden, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(objective, "cross_entropy", watch)
    AcceleratorState._reset_state(True)
    try:
        train(config_for(data, "train.steps=1", "train.bag_steps=0", "train.sampled_softmax=0"), data, tmp_path / "run")
    finally:
        AcceleratorState._reset_state(True)
    assert seen[0] == torch.bfloat16


def test_a_tokenizer_without_mask_and_with_added_words(tmp_path: Path) -> None:
    """Like GPT-2's: the mask gets an id of its own; added tokens that are no special ones stay words."""
    tokenizer = small_tokenizer()
    vocab = {t: i for i, t in enumerate(t for t in tokenizer.get_vocab() if t not in ("[MASK]", "[PAD]"))}
    plain = Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    plain.normalizer, plain.pre_tokenizer, plain.decoder = (
        tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder,
    )  # fmt: skip
    plain.add_tokens(["zebra"])
    lines = [f"the {a} sees {b} {c}." for a in ("cat", "zebra", "king") for b in ("music", "nobody", "a dog")
             for c in ("today", "again", "at night", "in the rain", "every day")]  # fmt: skip
    (tmp_path / "text.txt").write_text("\n".join(lines * 1))
    for _ in write_tokens([tmp_path / "text.txt"], tmp_path / "data", plain, max_tokens=12):
        pass
    for _ in write_vectors(tmp_path / "data", BagEncoder()):
        pass
    made = Dataset(tmp_path / "data")
    monkey = made.sample("train", 4, 0)
    made.sample = lambda split, n, seed: monkey  # type: ignore[method-assign]  # too few texts for a validation split
    config = config_for(made, "train.steps=4", "train.batch_texts=8", "train.bag_batch_texts=8")
    assert config.model.mask_id == plain.get_vocab_size()
    loaded = artifact.load(train(config, made, tmp_path / "run"))
    assert all(np.isfinite(loss) for loss in losses(tmp_path / "run").values())
    assert loaded.net.forbidden[config.model.mask_id]
    assert not loaded.net.forbidden[plain.token_to_id("zebra")]


def test_a_loss_that_is_not_finite_stops_the_run(data: Dataset, tmp_path: Path) -> None:
    config = config_for(data, "train.steps=40", "train.lr=1e9", "train.muon_lr=1e9", "train.clip=1e9")
    with pytest.raises(CheckpointError, match=r"lower train.lr"):
        train(config, data, tmp_path / "run")


def test_torn_and_odd_metric_lines_are_read_over(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    log.add({"phase": "bag", "step": 1, "metrics": {}, "samples": [["a\u2028b", "c"]]})
    log.add({"phase": "denoise", "step": 2, "metrics": {}})
    with log.path.open("a") as file:
        file.write('{"phase": "denoise", "step": 3, "metrics": {}')
    assert [line["step"] for line in log.lines()] == [1, 2]
    log.cut(Progress(phase="bag", step=5))
    assert [line["step"] for line in log.lines()] == [1]


def test_warm_start_keeps_the_language_and_renews_the_projection(data: Dataset, tmp_path: Path) -> None:
    config = config_for(data, "train.steps=2", "train.bag_steps=0")
    source = artifact.load(train(config, data, tmp_path / "a"))
    with torch.no_grad():
        source.net.embed.weight.fill_(0.5)
    from unembed.model.trainer import build_net

    source = replace(source, encoder=replace(source.encoder, fingerprint="another"))
    made = build_net(config, data, source)
    assert torch.equal(made.embed.weight, source.net.embed.weight)
    assert not torch.equal(made.project[0].weight, source.net.project[0].weight)
    with pytest.raises(ConfigError, match="width"):
        build_net(config_for(data, "model.width=24"), data, source)


def test_sampled_softmax_estimates_the_full_one(data: Dataset) -> None:
    """The corrected candidates give the full log-normaliser on average; the uncorrected ones do not."""
    torch.manual_seed(0)
    net = Denoiser(replace(tiny().model, vocab_size=400, mask_id=4, vector_dim=8))
    sampler = objective.CandidateSampler(np.arange(400) ** 2, 100)
    hidden, targets = torch.randn(3, 48 + 8), torch.tensor([399, 398, 390])
    with torch.no_grad():
        full = objective.cross_entropy(net, hidden, targets, None)
        drawn = []
        for seed in range(300):
            some = sampler.draw(targets, objective.generator(seed))
            drawn.append(objective.cross_entropy(net, hidden, targets, some))
    error = (torch.stack(drawn).mean(0) - full).abs().max()
    assert error < 0.05
    assert 80 < len(some.ids) < 125
    assert some.correction[torch.searchsorted(some.ids, targets)].eq(0).all()


def test_the_stream_reads_every_text_once_an_epoch_and_restarts_anywhere(data: Dataset) -> None:
    first = batches.stream(data, 64, 0, batches.Cursor())
    seen, cursors = [], [batches.Cursor()]
    for batch, after in first:
        if after.epoch or (after.group and not after.batch and len(seen) > 1):
            break
        seen.append(batch)
        cursors.append(after)
    rows = {tuple(row.tolist()) for batch in seen for row in batch.tokens}
    assert len(rows) == sum(len(b.tokens) for b in seen)
    again, _ = next(batches.stream(data, 64, 0, cursors[3]))
    assert torch.equal(again.tokens, seen[3].tokens)
    assert torch.equal(again.vectors, seen[3].vectors)


@pytest.mark.parametrize("decay", ["cosine", "wsd", "none"])
def test_learning_rate_warms_up_and_decays(decay: str) -> None:
    config = replace(tiny().train, warmup_steps=10, decay=decay)
    rates = [optim.lr_factor(step, 100, config) for step in range(100)]
    assert rates[0] < 0.11
    assert rates[:9] == sorted(rates[:9])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert max(rates) <= 1
    assert (rates[-1] < 0.05) == (decay != "none")


def test_muon_orthogonalises() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(optim.orthogonalise(torch.randn(40, 24)))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_a_second_stage_goes_on_from_the_first(data: Dataset, tmp_path: Path) -> None:
    config = fit_to_data(override(tiny(), ["train.steps=3"]), data)
    first = artifact.load(train(config, data, tmp_path / "first"))
    still = ["train.steps=2", "train.bag_steps=0", "train.lr=0", "train.muon_lr=0", "train.weight_decay=0"]
    config = fit_to_data(override(tiny(), still), data)
    second = artifact.load(train(config, data, tmp_path / "second", init_from=first))
    for name, tensor in first.net.state_dict().items():
        assert torch.equal(tensor, second.net.state_dict()[name]), name
    assert first.info["data"]["texts seen"] == 3 * 32
    assert second.info["data"]["texts seen"] == 5 * 32
    assert second.info["data"]["seconds"] >= first.info["data"]["seconds"]


def test_a_first_stage_for_another_encoder_does_not_count(data: Dataset, tmp_path: Path) -> None:
    config = fit_to_data(override(tiny(), ["train.steps=1", "train.bag_steps=0"]), data)
    first = artifact.load(train(config, data, tmp_path / "first"))
    other = replace(first, encoder=replace(first.encoder, fingerprint="other"))
    second = artifact.load(train(config, data, tmp_path / "second", init_from=other))
    assert second.info["data"]["texts seen"] == 32


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this CPU cannot flush denormal numbers")
def test_the_smallest_numbers_are_zero_while_it_trains_and_not_afterwards(data: Dataset, tmp_path: Path) -> None:
    def smallest() -> float:
        return float(torch.full((), 1e-40) * 1.0)

    seen: list[float] = []
    train(config_for(data, "train.steps=2"), data, tmp_path / "run", report=lambda event: seen.append(smallest()))
    assert seen
    assert not any(seen)
    assert smallest() > 0
