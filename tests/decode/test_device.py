"""Devices, as far as they can be tested without a GPU."""

from dataclasses import replace

import pytest
import torch

from tests.decode.conftest import MASK, make_inverter, make_net, make_vectors
from unembed import Inverter
from unembed.decode import DecodeConfig, device
from unembed.decode.predict import Ask, Sampling, answer
from unembed.errors import ConfigError


@torch.inference_mode()
def test_every_tensor_made_for_a_pass_says_where():
    """While whatever does not say so lands on `meta`, where it cannot meet the network's own."""
    net = make_net().eval()
    asks = []
    for length, sampling in (
        (3, Sampling(0.0, 1.0, 2.0, 1.5)),
        (5, Sampling(1.0, 0.7, 1.0)),
        (5, Sampling(1.0, 1.0, 1.0)),
    ):
        tokens = torch.full((2, length), MASK)
        u = torch.rand(2 * length, generator=torch.Generator().manual_seed(length), dtype=torch.double)
        c = net.condition(torch.from_numpy(make_vectors(2)))
        asks.append(Ask(tokens, tokens == MASK, c, sampling, u, entropy=length == 3))
    asks.append(replace(asks[0], given=torch.full((6,), 9)))
    expected = answer(net, asks)
    with torch.device("meta"):
        found = answer(net, asks)
    for a, b in zip(found, expected, strict=True):
        assert all(torch.equal(x, y) for x, y in ((a.tokens, b.tokens), (a.log_p, b.log_p), (a.entropy, b.entropy)))


def test_the_default_device_of_the_caller_is_of_no_influence():
    inverter, vectors = make_inverter(), make_vectors(3)
    config = DecodeConfig(temperature=1.0, guidance=1.5, n_best=2)
    expected = inverter.invert(vectors, config)
    with torch.device("meta"):  # a tensor that is made there by mistake cannot meet the others
        assert inverter.invert(vectors, config) == expected
        *_, last = inverter.stream(vectors[0], config)
        assert torch.empty(0).is_meta
    assert last.inversion is not None


def test_a_pass_makes_no_tensor_elsewhere(monkeypatch):
    from torch.fx.experimental import _config

    monkeypatch.setattr(_config, "meta_nonzero_assume_all_nonzero", True)  # true of `valid` below
    net = make_net().to("meta")
    c = net.condition(None, 4)
    tokens, t, valid = torch.zeros(4, 6).long(), torch.ones(4), torch.ones(4, 6).bool()
    places = torch.arange(8)
    hidden = net(*(x.to("meta") for x in (tokens, t, c, valid, places)))
    assert hidden.is_meta
    assert hidden.shape == (8, c.shape[1])


@pytest.mark.parametrize(
    ("name", "message"),
    [("gpu", "choose auto, cpu, cuda or mps"), ("", "choose auto"), ("cuda", "no CUDA GPU here: use auto or cpu"),
     ("cuda:7", "no CUDA GPU"), ("mps", "no Apple GPU here: use auto or cpu")],
)  # fmt: skip
def test_a_device_that_is_not_there_is_refused_in_one_line(name, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    inverter = make_inverter()
    with pytest.raises(ConfigError, match=message) as refused:
        inverter.to(name)
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=message):
        Inverter.from_pretrained("no/such/folder", device=name)  # said before anything is read


def test_auto_takes_the_fastest_there_is(monkeypatch):
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=cuda: there)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=mps: there)
        assert device.find("auto").type == expected
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device.find("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="only 2 CUDA GPUs"):
        device.find("cuda:2")
