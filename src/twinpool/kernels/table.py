"""What an op table is: one function per op, who serves it, and why others were refused.

Knows no implementation; `registry` chooses one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from twinpool.kernels.batch import IntArray, RaggedBatch
from twinpool.kernels.views import AttentionWeights, GatedDeltaWeights, KvView, Rope, StateView


class Linear(Protocol):
    """A weight packed once; `linear(x)` maps `[T, in_features]` to a new `[T, out_features]`.

    Attributes:
        implementation: Who serves it, for logs.
        in_features: `K`.
        out_features: `N`.
        weight_bytes: Memory that the packed weight takes.
    """

    implementation: str
    in_features: int
    out_features: int
    weight_bytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to `x` `[T, K]` float32; any `T >= 0`."""
        ...


class Experts(Protocol):
    """Routed SwiGLU experts packed once.

    Attributes:
        implementation: Who serves it, for logs.
        num_experts: `E`.
        weight_bytes: Memory that the packed weights take.
    """

    implementation: str
    num_experts: int
    weight_bytes: int

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """`[T, K]`, ids `[T, k]` int32, weights `[T, k]` float32 to a new `[T, K]`."""
        ...


@dataclass(frozen=True, slots=True)
class Choice:
    """Which implementation serves one op.

    Attributes:
        op: The op's name in the table.
        implementation: Who serves it.
        refused: `(implementation, reason)` of the better ones that do not serve here.
    """

    op: str
    implementation: str
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTable:
    """The ops that models call; each is documented at its twin in `reference`.

    Attributes:
        name: `fast` or `reference`.
        choices: One per op, for the boot log and `/server_info`.
        pack_linear: From a weight `[N, K]` and a bias or None.
        pack_head: The same for the output head, whose results are always full float32.
    """

    name: str
    choices: tuple[Choice, ...]
    pack_linear: Callable[[torch.Tensor, torch.Tensor | None], Linear]
    pack_head: Callable[[torch.Tensor], Linear]
    pack_experts: Callable[[torch.Tensor, torch.Tensor], Experts]
    embed: Callable[[torch.Tensor, IntArray], torch.Tensor]
    rms_norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    add_rms_norm: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
    silu_mul: Callable[[torch.Tensor], torch.Tensor]
    add_gated: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
    route: Callable[[torch.Tensor, int, bool], tuple[torch.Tensor, torch.Tensor]]
    rope: Callable[[IntArray, torch.Tensor, float], Rope]
    attention: Callable[[torch.Tensor, Rope, AttentionWeights, KvView, RaggedBatch], torch.Tensor]
    gated_delta: Callable[[torch.Tensor, GatedDeltaWeights, StateView, RaggedBatch], torch.Tensor]
    log_softmax: Callable[[torch.Tensor], torch.Tensor]
