"""The network: its contract, its parameter count, and that each option does what its name says."""

import shutil
from dataclasses import replace

import pytest
import torch

from unembed.config import ModelConfig, cpu, paper, tiny
from unembed.errors import ConfigError
from unembed.model import fused
from unembed.model.artifact import TABLES
from unembed.model.denoiser import Denoiser, Neighbours, parameter_counts


def wake(net: Denoiser) -> Denoiser:
    """Random values in everything that starts at zero, so that every path speaks."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return net.eval()


def small(**changes: object) -> ModelConfig:
    return replace(tiny().model, vocab_size=50, mask_id=3, vector_dim=8, **changes)  # type: ignore[arg-type]


def forward(net: Denoiser, tokens: torch.Tensor, valid: torch.Tensor | None = None) -> torch.Tensor:
    torch.manual_seed(2)
    c = net.condition(torch.randn(len(tokens), 8))
    return net(tokens, torch.full((len(tokens),), 0.5), c, valid)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("prefix", [0, 2, 3])
def test_padding_changes_nothing(norm: str, prefix: int) -> None:
    net = wake(Denoiser(small(norm=norm, prefix_tokens=prefix)))
    short = torch.randint(4, 50, (3, 5))
    short[:, 2] = 3
    padded = torch.cat([short, torch.randint(4, 50, (3, 4))], 1)
    valid = torch.arange(9) < torch.tensor([5, 5, 5])[:, None]
    alone = forward(net, short)
    assert torch.allclose(alone, forward(net, padded, valid)[:, :5], atol=1e-5)
    net.train()  # training pads where decoding packs
    assert torch.allclose(alone, forward(net, padded, valid)[:, :5], atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_parts_compute_the_same() -> None:
    """Values and gradients, at two shapes that share one compilation."""
    net = wake(Denoiser(small(norm="post"))).train()

    def gradients(length: int) -> list[torch.Tensor]:
        net.zero_grad()
        valid = torch.arange(length) < torch.tensor([length, length - 2, 3])[:, None]
        hidden = forward(net, torch.arange(3 * length).view(3, length) % 45 + 4, valid)
        hidden[valid].square().sum().backward()
        return [hidden[valid].detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]

    expected = [gradients(length) for length in (6, 9)]
    for block in net.blocks:
        block.compiled = True
    for length, wanted in zip((6, 9), expected, strict=True):
        found = gradients(length)
        assert len(found) == len(wanted)
        assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(found, wanted, strict=True))


def test_a_missing_compiler_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no g++ here\nand much more")

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(ConfigError, match=r"\(no g\+\+ here\): install g\+\+, or set train.compile=false$"):
        fused.check_compiler()


def test_shapes_and_forbidden_tokens() -> None:
    net = wake(Denoiser(small()))
    net.forbid([0, 1])
    tokens = torch.full((4, 7), 3)
    logits = net.logits(forward(net, tokens))
    assert logits.shape == (4, 7, 50)
    assert torch.isneginf(logits[..., [0, 1, 3]]).all()
    assert torch.isfinite(logits[..., 4:]).all()
    lengths = net.length_logits(net.condition(torch.randn(4, 8)))
    assert lengths.shape == (4, 17)
    assert torch.isneginf(lengths[:, 0]).all()


def test_adaln_zero_starts_a_pre_norm_block_as_the_identity() -> None:
    net = Denoiser(small(norm="pre", conv=False)).eval()
    x = torch.randn(2, 5, 48)
    assert torch.equal(net.blocks[0](x, torch.randn(2, 64), torch.randn(2, 48), None), x)


@pytest.mark.parametrize("part", ["vector", "time", "tokens"])
def test_prediction_depends_on(part: str) -> None:
    net = wake(Denoiser(small(prefix_tokens=0, bag_of_words=False, reader=False, account=False)))
    vectors, t, tokens = torch.randn(1, 8), torch.tensor([0.5]), torch.tensor([[4, 3, 6]])
    base = net(tokens, t, net.condition(vectors))
    if part == "vector":
        vectors = torch.randn(1, 8)
    if part == "time":
        t = torch.tensor([0.9])
    if part == "tokens":
        tokens = torch.tensor([[5, 3, 6]])
    assert not torch.allclose(base[:, 1], net(tokens, t, net.condition(vectors))[:, 1])


def test_shortcuts_are_linear_paths_around_the_mlps() -> None:
    """With the MLPs silent, the condition and the bag of words are linear functions of the vector."""
    net = wake(Denoiser(small(shortcuts=True, reader=False)))
    with torch.no_grad():
        for mlp in (net.project, net.bag):
            mlp[-1].weight.zero_()
            mlp[-1].bias.zero_()
    a, b = torch.randn(2, 8), torch.randn(2, 8)
    words = [net.bag_hidden(net.condition(v)) for v in (a, b, a + b, 0 * a)]
    assert torch.allclose(words[0] + words[1], words[2] + words[3], atol=1e-4)
    assert not torch.allclose(words[0], words[3], atol=0.1)


def test_no_vector_is_one_condition_for_all() -> None:
    net = wake(Denoiser(small()))
    assert torch.equal(net.condition(None, 3)[0], net.condition(None, 3)[2])
    assert not torch.allclose(net.condition(None, 1), net.condition(torch.randn(1, 8)))


def test_neighbours_is_a_depthwise_convolution() -> None:
    near = Neighbours(6, 5)
    torch.nn.init.normal_(near.taps)
    x = torch.randn(2, 9, 6)
    weight = near.taps.detach().T[:, None]
    expected = torch.nn.functional.conv1d(x.transpose(1, 2), weight, padding=2, groups=6).transpose(1, 2)
    assert torch.allclose(near(x), expected, atol=1e-6)


def test_presets_have_the_documented_size() -> None:
    with torch.device("meta"):
        total, trainable = parameter_counts(Denoiser(replace(paper().model, vocab_size=50257, vector_dim=1024)))
        shipped = Denoiser(cpu().model)
    assert (total, trainable) == (128_375_025, 89_777_649)  # the paper says 78M; docs/method.md shows the difference
    tables = sum(shipped.get_parameter(name).numel() for name in TABLES)
    rest = parameter_counts(shipped)[0] - tables
    assert 2 * rest + tables < 63e6, "the shipped weights in int8 and bf16 must stay under 64 MB"
