"""The table of fast ops: Numba kernels, and oneDNN linears where they may serve.

Knows no kernel's inside.
"""

from __future__ import annotations

import functools

import torch

from twinpool.kernels import attention, delta, onednn, rowwise, threads
from twinpool.kernels.experts import PanelExperts
from twinpool.kernels.linear import PanelLinear
from twinpool.kernels.table import Choice, Linear, OpTable

ONEDNN_F32 = "not faster than panels, and the bits of one row depend on the number of rows"


@functools.cache
def table() -> OpTable:
    """The fast op table of this process."""
    refusal = threads.threading_layer_refusal()
    slower = (("openmp threads", refusal),) if refusal else ()
    names = [name for name in OpTable.__dataclass_fields__ if name not in ("name", "choices")]
    numba = [Choice(name, "numba", slower) for name in names if not name.startswith("pack_")]
    return OpTable(
        name="fast",
        choices=(*_linear_choices(slower), *numba),
        pack_linear=pack_linear,
        pack_head=PanelLinear,
        pack_experts=PanelExperts,
        embed=rowwise.embed,
        rms_norm=rowwise.rms_norm,
        add_rms_norm=rowwise.add_rms_norm,
        silu_mul=rowwise.silu_mul,
        add_gated=rowwise.add_gated,
        route=rowwise.route,
        rope=rowwise.rope,
        attention=attention.attention,
        gated_delta=delta.gated_delta,
        log_softmax=rowwise.log_softmax,
    )


def pack_linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """Pack a weight `[N, K]` for the implementation that serves its dtype and shape here."""
    if weight.dtype == torch.bfloat16 and not bfloat16_refusal(*weight.shape):
        return onednn.OneDnnLinear(weight, bias)
    return PanelLinear(weight, bias)


def bfloat16_refusal(out_features: int, in_features: int) -> str:
    """Why oneDNN does not serve a bfloat16 weight of this shape; empty when it does."""
    return onednn.processor_refusal() or onednn.shape_refusal(out_features, in_features)


def _linear_choices(slower: tuple[tuple[str, str], ...]) -> tuple[Choice, ...]:
    """Who serves linears, judged for bfloat16 by one typical shape; others are judged alone."""
    refusal = bfloat16_refusal(1024, 512)
    bfloat16 = (
        Choice("linear bfloat16", "panels", (("onednn", refusal), *slower))
        if refusal
        else Choice("linear bfloat16", "onednn")
    )
    return (
        Choice("linear float32", "panels", (("onednn", ONEDNN_F32), *slower)),
        bfloat16,
        Choice("head", "panels", slower),
        Choice("experts", "panels", slower),
    )
