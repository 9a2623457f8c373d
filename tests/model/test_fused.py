"""The functions that training compiles: what they compute, and that nothing overflows."""

import shutil

import pytest
import torch
from torch.nn import functional as F

from unembed.model import fused


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("compiled", [False, True])
def test_gelu_is_that_of_torch_far_from_zero_too(compiled: bool) -> None:
    """Written with a bare exponential its gradient is nan from -10 on: that cost a training run."""
    function = fused.compiled(fused.gelu) if compiled else fused.gelu
    given = torch.linspace(-60, 60, 2401).view(1, -1)
    x, same = given.clone().requires_grad_(), given.clone().requires_grad_()
    found, expected = function(x), F.gelu(same, approximate="tanh")
    found.sum().backward()
    expected.sum().backward()
    assert x.grad is not None
    assert same.grad is not None
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(x.grad, same.grad, atol=1e-5)
