"""The blocks of a decoder layer: mixers and MLPs, each a few kernel calls over packed tokens.

Knows no family and no request; weights arrive in the layout of `weights`, memory as views.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from twinpool.kernels.batch import RaggedBatch
from twinpool.kernels.registry import Experts, Linear, OpTable
from twinpool.kernels.views import AttentionWeights, GatedDeltaWeights, KvView, Rope, StateView
from twinpool.models.config import DenseSpec, MoeSpec
from twinpool.models.weights import DenseTensors, LayerTensors, MixerTensors, MoeTensors

LayerView = KvView | StateView


class Mixer(Protocol):
    """Mixes tokens of one lane with those before them.

    Attributes:
        weight_bytes: Memory of its linears, as packed.
    """

    weight_bytes: int

    def __call__(
        self, x: torch.Tensor, rope: Rope, view: LayerView, batch: RaggedBatch
    ) -> torch.Tensor:
        """Return the mixed tokens.

        Args:
            x: `[T, hidden]` float32, normed.
            rope: Rotary factors of the packed tokens.
            view: Where the layer's rows or states lie; written in place.
            batch: Which tokens, rows and slots.

        Returns:
            A new `[T, hidden]` float32.
        """
        ...


class Mlp(Protocol):
    """Maps every token by itself.

    Attributes:
        weight_bytes: Memory of its linears, as packed.
    """

    weight_bytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[T, hidden]` float32, normed, to a new tensor of that shape."""
        ...


class GatedDeltaMixer:
    """Gated DeltaNet between its two linears; memory is a slot of the state pool.

    Args:
        ops: The kernels.
        in_proj: Packed.
        small: Conv, decay and norm weights.
        out_proj: Packed.
    """

    def __init__(
        self, ops: OpTable, in_proj: Linear, small: GatedDeltaWeights, out_proj: Linear
    ) -> None:
        self._ops = ops
        self._in_proj = in_proj
        self._small = small
        self._out_proj = out_proj
        self.weight_bytes = in_proj.weight_bytes + out_proj.weight_bytes

    def __call__(
        self, x: torch.Tensor, rope: Rope, view: LayerView, batch: RaggedBatch
    ) -> torch.Tensor:
        """Mix through the recurrent state; `rope` is not used."""
        assert isinstance(view, StateView)
        mixed = self._ops.gated_delta(self._in_proj(x), self._small, view, batch)
        return self._out_proj(mixed)


class AttentionMixer:
    """Full attention between its two linears; memory is rows of the KV pool.

    Args:
        ops: The kernels.
        in_proj: Packed.
        small: Norms and scale.
        out_proj: Packed.
    """

    def __init__(
        self, ops: OpTable, in_proj: Linear, small: AttentionWeights, out_proj: Linear
    ) -> None:
        self._ops = ops
        self._in_proj = in_proj
        self._small = small
        self._out_proj = out_proj
        self.weight_bytes = in_proj.weight_bytes + out_proj.weight_bytes

    def __call__(
        self, x: torch.Tensor, rope: Rope, view: LayerView, batch: RaggedBatch
    ) -> torch.Tensor:
        """Write keys and values of the new tokens, attend over all rows of each lane."""
        assert isinstance(view, KvView)
        mixed = self._ops.attention(self._in_proj(x), rope, self._small, view, batch)
        return self._out_proj(mixed)


class DenseMlp:
    """A gated MLP.

    Args:
        ops: The kernels.
        tensors: Its weights; packed here, not kept.
    """

    def __init__(self, ops: OpTable, tensors: DenseTensors) -> None:
        self._silu_mul = ops.silu_mul
        self._gate_up = ops.pack_linear(tensors.gate_up, None)
        self._down = ops.pack_linear(tensors.down, None)
        self.weight_bytes = self._gate_up.weight_bytes + self._down.weight_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[T, hidden]` to a new `[T, hidden]`."""
        return self._down(self._silu_mul(self._gate_up(x)))


class SparseMlp:
    """Routed experts plus a shared one behind a gate.

    Args:
        ops: The kernels.
        tensors: Its weights; packed here, not kept.
        spec: How many experts a token takes and whether their weights are normalised.
    """

    def __init__(self, ops: OpTable, tensors: MoeTensors, spec: MoeSpec) -> None:
        self._ops = ops
        self._spec = spec
        # Full float32 scores, as for a head: rounding them would choose other experts.
        self._router = ops.pack_head(tensors.router)
        self._experts: Experts = ops.pack_experts(tensors.gate_up, tensors.down)
        self._shared = DenseMlp(ops, tensors.shared)
        parts = (self._router, self._experts, self._shared)
        self.weight_bytes = sum(part.weight_bytes for part in parts)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[T, hidden]` to a new `[T, hidden]`."""
        scores = self._router(x)
        num = self._spec.num_experts
        ids, weights = self._ops.route(
            scores[:, :num].contiguous(), self._spec.num_chosen, self._spec.is_normalised
        )
        out = self._experts(x, ids, weights)
        self._ops.add_gated(out, self._shared(x), scores[:, num:].contiguous())
        return out


@dataclass(frozen=True, slots=True)
class Block:
    """One decoder layer.

    Attributes:
        input_norm: float32 `[hidden]`, before the mixer.
        mixer: Attention, full or linear.
        post_norm: float32 `[hidden]`, before the MLP.
        mlp: What follows.
    """

    input_norm: torch.Tensor
    mixer: Mixer
    post_norm: torch.Tensor
    mlp: Mlp

    @property
    def weight_bytes(self) -> int:
        """Memory of its linears, as packed."""
        return self.mixer.weight_bytes + self.mlp.weight_bytes


def pack_block(ops: OpTable, tensors: LayerTensors, mlp: DenseSpec | MoeSpec) -> Block:
    """Pack the weights of one layer; `tensors` may be dropped afterwards."""
    return Block(
        input_norm=tensors.input_norm,
        mixer=_pack_mixer(ops, tensors.mixer),
        post_norm=tensors.post_norm,
        mlp=_pack_mlp(ops, tensors.mlp, mlp),
    )


def _pack_mixer(ops: OpTable, tensors: MixerTensors) -> Mixer:
    in_proj = ops.pack_linear(tensors.in_proj, None)
    out_proj = ops.pack_linear(tensors.out_proj, None)
    if isinstance(tensors.small, GatedDeltaWeights):
        return GatedDeltaMixer(ops, in_proj, tensors.small, out_proj)
    return AttentionMixer(ops, in_proj, tensors.small, out_proj)


def _pack_mlp(ops: OpTable, tensors: DenseTensors | MoeTensors, spec: DenseSpec | MoeSpec) -> Mlp:
    if isinstance(tensors, MoeTensors):
        assert isinstance(spec, MoeSpec)
        return SparseMlp(ops, tensors, spec)
    return DenseMlp(ops, tensors)
