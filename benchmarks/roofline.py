"""Rooflines of this machine, measured: read bandwidth and float32 multiply-adds on all cores.

Knows no model; `generate` divides its figures by these.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """What the machine can do at most.

    Attributes:
        read_bytes_s: Bytes per second that all cores read from memory together.
        flops_s: Floating-point operations per second of a large float32 matrix product.
        bf16_flops_s: The same in bfloat16.
    """

    read_bytes_s: float
    flops_s: float
    bf16_flops_s: float


def measure_roofline() -> Roofline:
    """Measure, best of several tries each."""
    big = torch.ones(256 * 2**20 // 4, dtype=torch.float32)
    read_s = _best(lambda: big.sum())
    return Roofline(
        read_bytes_s=big.nbytes / read_s,
        flops_s=_gemm_flops_s(torch.float32),
        bf16_flops_s=_gemm_flops_s(torch.bfloat16),
    )


def describe_machine() -> str:
    """Name processor, cores and memory in one line."""
    model = platform.processor() or platform.machine()
    features = torch.backends.cpu.get_cpu_capability()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [
                line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
            ]
        model = names[0] if names else model
    except OSError:
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores ({features}), {memory:.0f} GiB, torch {torch.__version__}"


def _gemm_flops_s(dtype: torch.dtype) -> float:
    size = 1024
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    return 2 * size**3 / _best(lambda: a @ b)


def _best(work: Callable[[], object], tries: int = 5) -> float:
    times = []
    for _ in range(tries):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
