"""Which floating-point type is fast on this machine."""

from __future__ import annotations

import copy
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

LIMIT = "ONEDNN_MAX_CPU_ISA"
# CPUID leaf that tells the shape of AMX's tiles. Some virtual machines have AMX but end their table before it, and
# oneDNN then dies of an illegal instruction at the first bf16 product (tools/amx_cpuid.c is the way around).
TILES_LEAF = 0x1D


def amx_undescribed(cpuinfo: str) -> bool:
    """True of a CPU (the text of /proc/cpuinfo) that has AMX and does not say how large its tiles are."""
    told = dict(line.replace("\t", "").split(":", 1) for line in cpuinfo.splitlines() if ":" in line)
    return "amx_tile" in told.get("flags", "").split() and int(told.get("cpuid level", TILES_LEAF)) < TILES_LEAF


def _keep_off_broken_amx() -> None:
    """Tell oneDNN, before its first use, to leave AMX alone where it would kill the process."""
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        return  # not Linux
    if LIMIT not in os.environ and amx_undescribed(cpuinfo):
        os.environ[LIMIT] = "AVX512_CORE_BF16"


_keep_off_broken_amx()


def fast_bf16(device: torch.device) -> bool:
    """True where bfloat16 matrix products are faster than float32: GPUs, and CPUs with units for it.

    On a CPU with AVX2 only, bfloat16 works but is about eight times slower; on Intel's AVX-512 without AMX (or kept off
    it) it takes twice as long as float32.
    """
    if device.type == "cpu":
        capabilities = torch.cpu.get_capabilities()
        if capabilities.get("amx_bf16") and "AMX" in os.environ.get(LIMIT, "AMX").upper():
            return True
        return bool(capabilities.get("avx512_bf16")) and "intel" not in str(capabilities.get("cpu_name")).lower()
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return device.type != "mps"


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """Compute in bfloat16 where that is faster."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if fast_bf16(device) else nullcontext()


def product_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The type that a product of this tensor is computed in: its own, or what autocast makes of it."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


N = TypeVar("N", bound=nn.Module)


def halved(net: N, *shared: object) -> N:
    """A copy whose matrices are bfloat16, to be used under `autocast`, which else converts them at every product.

    Modules and tensors that are to be `shared` with the original are not copied.
    """
    copied = copy.deepcopy(net, {id(one): one for one in shared})
    for layer in copied.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(layer.weight.detach().bfloat16(), requires_grad=False)
    return copied
