"""Linears on oneDNN's own packed weights: for processors that multiply bfloat16.

These are private ops of torch that its compiler emits. They serve only where the processor has
bfloat16 instructions and where a check shows that a row's bits do not depend on how many rows there
are; otherwise the reason is kept and `linear.PanelLinear` serves. Knows no layer.
"""

from __future__ import annotations

import functools

import torch

from twinpool.kernels.linear import check_matrix

ROW_COUNTS = (1, 2, 3, 5, 8, 16, 31, 64, 130)
"""Numbers of rows that are compared with the largest of them."""


class OneDnnLinear:
    """`y = x @ weight.T + bias` through oneDNN, in the weight's dtype, widened at the end.

    Args:
        weight: `[N, K]` bfloat16 (or float32, for checks); copied.
        bias: `[N]`, or None.
    """

    implementation = "onednn"

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.numel() * weight.element_size()
        self._dtype = weight.dtype
        self._bias = None if bias is None else bias.to(weight.dtype)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 32)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to `x` `[T, K]` float32; returns a new `[T, N]` float32."""
        check_matrix(x, self.in_features)
        if len(x) == 0:
            return torch.empty(0, self.out_features)
        y = torch.ops.mkldnn._linear_pointwise(
            x.to(self._dtype), self._packed, self._bias, "none", [], ""
        )
        result: torch.Tensor = y.float()
        return result


def processor_refusal() -> str:
    """Why oneDNN's bfloat16 linears cannot serve on this processor; empty when they can."""
    try:
        supported = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        torch.ops.mkldnn._reorder_linear_weight, torch.ops.mkldnn._linear_pointwise  # noqa: B018
    except AttributeError:
        return "this torch has no packed oneDNN linears"
    capability = torch.backends.cpu.get_cpu_capability()
    if not supported or capability != "AVX512":
        return f"no bfloat16 instructions ({capability})"
    return ""


@functools.cache
def shape_refusal(out_features: int, in_features: int, dtype: torch.dtype = torch.bfloat16) -> str:
    """Why oneDNN cannot serve weights of one shape; empty when it can.

    Args:
        out_features: `N`.
        in_features: `K`.
        dtype: Of the weight.

    Cost:
        One packing and one multiplication per entry of `ROW_COUNTS`; once per shape and process.
    """
    generator = torch.Generator().manual_seed(out_features * 65537 + in_features)
    weight = torch.randn(out_features, in_features, generator=generator).to(dtype)
    x = torch.randn(ROW_COUNTS[-1], in_features, generator=generator)
    try:
        linear = OneDnnLinear(weight)
        whole = linear(x)
        for rows in ROW_COUNTS:
            if not torch.equal(linear(x[:rows].contiguous()), whole[:rows]):
                return f"the bits of {out_features}x{in_features} differ at {rows} rows"
    except (RuntimeError, AttributeError) as error:
        return f"oneDNN refuses {out_features}x{in_features}: {error}"
    return ""
