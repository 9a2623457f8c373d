"""A new encoder's vectors through a map: the net starts as the one that it was copied from, behind that map."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import unembed
from tests.model.conftest import BagEncoder
from unembed.cli import main
from unembed.config import override, tiny
from unembed.data import encoders
from unembed.data.dataset import Dataset
from unembed.data.shards import EncoderInfo
from unembed.errors import EncoderError
from unembed.measure.metrics import token_f1
from unembed.model import align, artifact, trainer
from unembed.model.artifact import Artifact
from unembed.model.denoiser import Denoiser

SMALL = ["model.layers=1", "model.vocab_size=40", "model.mask_id=3", "model.width=24", "model.ffn=24"]


def units(n: int, dim: int) -> torch.Tensor:
    return F.normalize(torch.randn(n, dim, generator=torch.Generator().manual_seed(n)), dim=1)


def test_a_linear_map_is_found_and_chosen_on_texts_that_it_was_not_made_from() -> None:
    turn = torch.linalg.qr(torch.randn(40, 40, generator=torch.Generator().manual_seed(0)))[0]
    new = units(2000, 40)
    exact = align.alignment(new, new @ turn[:, :16])
    assert exact.cosine > 0.999
    mapped = new @ exact.weight + exact.bias
    assert torch.allclose(mapped, new @ turn[:, :16], atol=0.02)
    assert align.alignment(new, units(2000, 40).flip(0)).cosine < 0.2  # nothing in common
    far = align.alignment(new, 3 * F.normalize(new @ turn[:, :16] + 0.3 * units(2000, 16), dim=1))
    length = (new @ far.weight + far.bias).norm(dim=1).mean()
    assert float(length) == pytest.approx(3, rel=0.05)  # a regression alone would give shorter ones


def test_the_net_begins_as_the_other_behind_the_map() -> None:
    config = override(tiny(), SMALL).model
    torch.manual_seed(0)
    source = Denoiser(replace(config, vector_dim=24, vector_norm=2.0))
    net = Denoiser(replace(config, vector_dim=36))
    for module in (source.reader.words, source.reader.mlp[2]):
        torch.nn.init.normal_(module.weight)
    weight, bias = torch.randn(36, 24), torch.randn(24)
    align.read_through(net, source, align.Alignment(weight, bias, 1.0))
    vectors = units(5, 36)
    with torch.inference_mode():
        assert torch.allclose(net.condition(vectors), source.condition(vectors @ weight + bias), atol=1e-3)
    assert torch.equal(net.reader.words.weight, source.reader.words.weight)


class Turned(BagEncoder):
    """Another encoder that says the same in other coordinates."""

    name, fingerprint = "turned", "turned-1"

    def encode(self, texts: list[str]) -> np.ndarray:
        return super().encode(texts)[:, ::-1].copy()


def other(data: Dataset, spec: str) -> Artifact:
    config = trainer.fit_to_data(override(tiny(), ["train.preview_texts=0"]), data)
    torch.manual_seed(5)
    net = Denoiser(config.model)
    for module in (net.reader.words, net.reader.mlp[2]):
        torch.nn.init.normal_(module.weight)
    return Artifact(net, data.tokenizer, config, EncoderInfo(spec, BagEncoder.dim, True, "turned-1"))


def test_a_run_from_an_inverter_of_another_encoder_starts_aligned(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    start = other(data, "turned")
    asked: list[str] = []
    monkeypatch.setattr(encoders, "load", lambda spec: asked.append(spec) or Turned())
    settings = ["train.steps=1", "train.bag_steps=0", "train.preview_texts=0", "train.lr=1e-9", "train.muon_lr=1e-9"]
    config = trainer.fit_to_data(override(tiny(), settings), data)
    found = artifact.load(trainer.train(config, data, tmp_path / "run", init_from=start))
    assert asked == ["turned"]
    texts = data.sample("validation", 20, 0)
    mine, theirs = torch.from_numpy(texts.vectors).float(), torch.from_numpy(Turned().encode(texts.texts))
    with torch.inference_mode():
        cosine = F.cosine_similarity(found.net.condition(mine), start.net.condition(theirs))
    assert cosine.min() > 0.99


@pytest.mark.parametrize("spec", ["gone", "openai:model@http://127.0.0.1:9"])
def test_an_encoder_that_is_not_at_hand_or_costs_money_is_not_asked(
    data: Dataset, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    def load(spec: str) -> Turned:
        if spec == "gone":
            raise EncoderError("no such encoder")
        raise AssertionError("an API was asked")

    monkeypatch.setattr(encoders, "load", load)
    start = other(data, spec)
    config = trainer.fit_to_data(override(tiny(), []), data)
    net = trainer.build_net(config, data, start)
    assert torch.equal(net.embed.weight, start.net.embed.weight)  # the language is taken over all the same
    assert not torch.equal(net.reader.words.weight, start.net.reader.words.weight)


def test_another_shape_starts_anew(data: Dataset) -> None:
    start = other(data, "turned")
    config = trainer.fit_to_data(override(tiny(), []), data)
    net = Denoiser(replace(config.model, shortcuts=False))
    assert not align.start_aligned(net, start, data)


def test_the_shipped_inverter_reads_another_encoder_after_one_step(tmp_path: Path) -> None:
    """With the command, from pairs alone: the other encoder is MiniLM in 512 turned coordinates."""
    people, verbs, things = (
        ("nurse", "king", "young farmer"),
        ("saw", "sold", "painted"),
        ("boat", "red bird", "letter"),
    )
    where = (
        "in the city",
        "at night",
        "on the hill",
        "near the sea",
        "last summer",
        "without a word",
        "for his sister",
    )
    starts = ("", "yesterday ", "they say that ", "i hope ")
    lines = [
        f"{s}the {a} {b} the {c} {d}." for s in starts for a in people for b in verbs for c in things for d in where
    ]
    encoder = unembed.encoder("minilm")
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(512, 384)))[0].T
    vectors = encoder.encode(lines) @ turn
    rows = (json.dumps({"text": a, "vector": b.tolist()}) for a, b in zip(lines, vectors, strict=True))
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    data, out = str(tmp_path / "data"), str(tmp_path / "out")
    assert main(["encode", str(tmp_path / "pairs.jsonl"), "-o", data, "--pairs", "--encoder-name", "turned"]) == 0
    settings = ["train.bag_steps=0", "train.batch_texts=16", "train.accumulate=1", "train.preview_texts=0"]
    options = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", data, "-o", out, "--init-from", "default", "--steps", "1", *options]) == 0
    some = slice(None, None, 37)
    shipped = unembed.load().invert(encoder.encode(lines[some]), steering=0.0)
    found = unembed.load(out).invert(vectors[some].astype(np.float32))

    def words_found(answers: list[unembed.Inversion]) -> float:
        pairs = zip(lines[some], answers, strict=True)
        return float(np.mean([token_f1(text[:-1].split(), one.text.rstrip(".").split()) for text, one in pairs]))

    assert words_found(shipped) > 0.5
    assert words_found(found) > 0.9 * words_found(shipped)
