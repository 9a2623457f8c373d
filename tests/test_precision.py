"""Which precision is chosen on which machine."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from unembed import precision

CPUINFO = """processor\t: 0
model name\t: Intel(R) Xeon(R) Processor
cpuid level\t: {level}
flags\t\t: fpu sse2 avx512f avx512_bf16 {more}
bugs\t\t: none: really
"""
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("level", "more", "undescribed"),
    [(28, "amx_bf16 amx_tile", True), (32, "amx_bf16 amx_tile", False), (28, "", False), (13, "amx_tiles", False)],
)
def test_amx_without_its_tiles_is_noticed(level: int, more: str, undescribed: bool) -> None:
    assert precision.amx_undescribed(CPUINFO.format(level=level, more=more)) is undescribed


def test_other_systems_tell_nothing() -> None:
    assert precision.amx_undescribed("") is False
    assert precision.amx_undescribed("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n") is False


@pytest.mark.parametrize(
    ("capabilities", "limit", "fast"),
    [
        ({"amx_bf16": True, "avx512_bf16": True, "cpu_name": "Intel Xeon"}, None, True),
        ({"amx_bf16": True, "avx512_bf16": True, "cpu_name": "Intel Xeon"}, "AVX512_CORE_BF16", False),
        ({"amx_bf16": True, "avx512_bf16": True, "cpu_name": "Intel Xeon"}, "avx512_core_amx", True),
        ({"amx_bf16": False, "avx512_bf16": True, "cpu_name": "Intel Xeon"}, None, False),
        ({"avx512_bf16": True, "cpu_name": "AMD EPYC"}, None, True),
        ({"avx512_bf16": False, "cpu_name": "AMD EPYC"}, None, False),
        ({}, None, False),
    ],
)
def test_bf16_only_where_it_is_faster(
    capabilities: dict[str, object], limit: str | None, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.delenv(precision.LIMIT, raising=False)
    if limit is not None:
        monkeypatch.setenv(precision.LIMIT, limit)
    assert precision.fast_bf16(CPU) is fast


def test_a_bf16_product_does_not_kill_the_process() -> None:
    """On a machine with AMX that is not described it would, unless oneDNN was told in time."""
    product = "import unembed.precision, torch; x = torch.ones(64, 64).bfloat16(); assert (x @ x).sum() == 64**3"
    done = subprocess.run([sys.executable, "-c", product], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr)
