"""The reader: what the closed form knows before any training, and what training it alone leaves as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.model.conftest import BagEncoder
from unembed.config import Config, override, tiny
from unembed.data.dataset import Dataset
from unembed.data.online import OnlineDataset
from unembed.errors import ConfigError
from unembed.model import artifact, batches, objective, reader
from unembed.model.denoiser import Denoiser
from unembed.model.trainer import build_net, fit_to_data, train


def config_for(data: Dataset, *settings: str) -> Config:
    return fit_to_data(override(tiny(), list(settings)), data)


def recall(net: Denoiser, data: Dataset) -> float:
    """Share of the words of unseen texts that are among the reader's likeliest, as many as the text has."""
    some = data.sample("validation", 50, 0)
    scores = net.text_logits(net.reader(torch.from_numpy(some.vectors).float() * net.vector_scale), slice(None))
    found = []
    for row, tokens in zip(scores, some.tokens, strict=True):
        words = set(tokens.tolist())
        found.append(len(words & set(row.topk(len(words)).indices.tolist())) / len(words))
    return sum(found) / len(found)


@torch.no_grad()
def bag_entropy(net: Denoiser, data: Dataset) -> float:
    some = data.sample("validation", 50, 0)
    batch = batches.collate(some.tokens, some.vectors)
    silent = torch.zeros(len(batch.tokens), dtype=torch.bool)
    return float(objective.BagLoss(net)(batch, silent, 1_000_000_000, int(batch.lengths.sum())))  # no length loss


@torch.no_grad()
def test_words_are_read_before_anything_is_trained(data: Dataset) -> None:
    net = build_net(config_for(data), data)
    shuffled = Denoiser(net.config)
    shuffled.load_state_dict(net.state_dict())
    shuffled.reader.words.weight.copy_(net.reader.words.weight.flip(0))
    assert recall(net, data) > 0.6
    assert recall(shuffled, data) < 0.3


@torch.no_grad()
def test_the_vector_is_whitened(data: Dataset) -> None:
    net = build_net(config_for(data), data)
    vectors = torch.from_numpy(data.sample("train", 1000, 0).vectors).float()
    white = net.reader.whiten(vectors * net.vector_scale)
    assert torch.allclose(white.mean(0), torch.zeros(24), atol=0.1)
    assert torch.allclose(white.T.cov(), torch.eye(24), atol=0.2)


@torch.no_grad()
def test_of_a_vector_wider_than_the_net_the_directions_that_vary_most_are_kept(data: Dataset) -> None:
    config = config_for(data, "model.width=16", "model.heads=4")
    net = build_net(config, data)
    assert net.reader.size == 16
    assert net.condition(torch.randn(3, 24)).shape == (3, 32)
    assert recall(net, data) > 0.45


def test_without_a_vector_it_is_silent(data: Dataset) -> None:
    net = build_net(config_for(data), data)
    silent = net.condition(None, 2)[:, net.config.width :]
    assert silent.shape == (2, 24)
    assert not silent.any()


def test_an_online_dataset_gives_the_same_start(data: Dataset) -> None:
    nets = [build_net(config_for(data), one) for one in (data, OnlineDataset(data.folder, BagEncoder()))]
    assert torch.equal(nets[0].reader.words.weight, nets[1].reader.words.weight)


def test_few_texts_are_enough_for_a_start(data: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer texts than dimensions: no infinite scale in directions that none of them uses."""
    monkeypatch.setattr(reader, "TEXTS", 5)
    net = build_net(config_for(data), data)
    assert all(p.isfinite().all() for p in net.parameters())
    assert net.reader.whiten.weight.abs().max() < 100


def test_a_reader_is_added_to_older_weights_and_trained_alone(data: Dataset, tmp_path: Path) -> None:
    """Every other weight stays as it is, to the bit, while the words are read better."""
    plain = config_for(data, "model.reader=false", "train.steps=2", "train.bag_steps=5")
    before = artifact.load(train(plain, data, tmp_path / "before"))
    settings = ("train.steps=1", "train.bag_steps=20", "train.bag_trains=reader", "train.lr=0", "train.muon_lr=0")
    config = config_for(data, *settings, "train.weight_decay=0", "train.ema=0")
    after = artifact.load(train(config, data, tmp_path / "after", init_from=before))
    for name, tensor in before.net.state_dict().items():
        if name != "bias":
            assert torch.equal(tensor, after.net.state_dict()[name]), name
    assert bag_entropy(after.net, data) < bag_entropy(before.net, data) - 0.05


def test_weights_that_have_a_reader_keep_it(data: Dataset, tmp_path: Path) -> None:
    config = config_for(data, "train.steps=1", "train.bag_steps=1")
    source = artifact.load(train(config, data, tmp_path / "run"))
    with torch.no_grad():
        source.net.reader.words.weight.fill_(0.25)
    assert torch.equal(build_net(config, data, source).reader.words.weight, source.net.reader.words.weight)
    foreign = replace(source, encoder=replace(source.encoder, fingerprint="other"))
    assert not torch.equal(build_net(config, data, foreign).reader.words.weight, source.net.reader.words.weight)


def test_a_reader_without_a_bag_of_words_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.bag_of_words=true"):
        override(tiny(), ["model.bag_of_words=false"])


def test_one_byte_a_number_for_the_vocabulary_changes_little(data: Dataset, tmp_path: Path) -> None:
    config = config_for(data, "train.steps=1", "train.bag_steps=5")
    made = artifact.load(train(config, data, tmp_path / "run"))
    folders = [artifact.save(tmp_path / dtype, made, dtype) for dtype in ("fp32", "int8")]
    exact, small = (artifact.load(folder).net for folder in folders)
    for name in artifact.TABLES:
        a, b = exact.get_parameter(name), small.get_parameter(name)
        assert not torch.equal(a, b)
        assert ((a - b).abs() <= a.abs().amax(1, keepdim=True) / 254 * 1.001).all()
    sizes = [(folder / "model.safetensors").stat().st_size for folder in folders]
    assert sizes[1] < sizes[0] * 0.55
    again = artifact.load(artifact.save(tmp_path / "again", replace(made, net=small), "int8")).net
    assert artifact.weights_hash(again) == artifact.weights_hash(small)  # saving what was loaded loses nothing more
