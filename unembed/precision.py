"""Which floating-point type is fast on this machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def fast_bf16(device: torch.device) -> bool:
    """True where bfloat16 matrix products are faster than float32: GPUs, and CPUs with units for it.

    On a CPU without them (AVX2 only) bfloat16 works but is about eight times slower.
    """
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return device.type != "mps"


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """Compute in bfloat16 where that is faster."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if fast_bf16(device) else nullcontext()
