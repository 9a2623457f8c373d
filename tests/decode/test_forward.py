"""The forward pass as decoding uses it: only at the positions asked for, and what that must not change."""

from dataclasses import replace

import pytest
import torch

from tests.decode.conftest import MASK, make_net
from unembed.model.denoiser import Denoiser, _gelu
from unembed.model.reader import reader_size


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    "options",
    [{}, {"conv": False}, {"conv": False, "bag_of_words": False, "reader": False, "prefix_tokens": 0}],
)
def test_at_gives_what_the_full_pass_has_there(norm, options):
    net = Denoiser(replace(make_net().config, norm=norm, **options)).eval()
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.2)
    tokens = torch.randint(5, 60, (8, 9), generator=random)
    tokens[torch.rand(8, 9, generator=random) < 0.5] = MASK
    c, t = torch.randn(8, 32 + reader_size(net.config), generator=random), torch.rand(8, generator=random)
    lengths = torch.tensor([9, 3, 5, 9, 1, 7, 8, 2])
    places = torch.tensor([0, 8, 9, 10, 20, 27, 36, 60, 64, 63, 63, 5])  # all inside their texts
    for valid in (None, torch.arange(9) < lengths[:, None]):
        full = net(tokens, t, c, valid).flatten(0, 1)
        some = net(tokens, t, c, valid, places)
        assert some.shape == (12, c.shape[1])
        assert torch.allclose(some, full[places], atol=1e-6)


def test_positions_that_nobody_asked_for_skip_the_last_mlp():
    net = Denoiser(replace(make_net().config, conv=False)).eval()
    rows = {}
    for k, block in enumerate(net.blocks):
        block.up.register_forward_pre_hook(lambda _, inputs, k=k: rows.update({k: inputs[0].shape[:-1].numel()}))
    net(torch.full((4, 9), MASK), torch.ones(4), net.condition(None, 4), at=torch.arange(4) * 9)
    assert rows == {0: 4 * (9 + 2), 1: 4}


def test_the_fast_gelu_is_the_one_of_training():
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e4, 1e4, 0.0])])
    expected = torch.nn.functional.gelu(x, approximate="tanh")
    assert torch.equal(_gelu(x), expected)  # as it is while training
    with torch.inference_mode():
        found = _gelu(x.clone())
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_forbidden_tokens_have_no_probability_and_no_gradient():
    net = make_net()
    hidden = torch.randn(5, 32 + net.reader.size, requires_grad=True)
    logits = net.logits(hidden)
    assert logits[:, net.forbidden].isneginf().all()
    assert logits[:, ~net.forbidden].isfinite().all()
    torch.nn.functional.cross_entropy(logits, torch.full((5,), 10)).backward()
    assert hidden.grad.isfinite().all()
    assert (net.bias.grad[net.forbidden] == 0).all()
    assert net.embed.weight.grad[net.forbidden].abs().max() == 0
