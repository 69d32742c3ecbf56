"""Layer specs: which mixers one layer has, full or linear, both or none.

Frozen values; knows no config file, no dtype and no memory. The mixers themselves are in
`spec.full` and `spec.linear`.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.spec.full import GqaSpec, IndexerSpec, MlaSpec
from twinpool.spec.linear import (
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    Mamba1Spec,
    Mamba2Spec,
    ShortConvSpec,
)

FullSpec = GqaSpec | MlaSpec
LinearSpec = (
    GatedDeltaSpec | KimiDeltaSpec | Mamba2Spec | Mamba1Spec | LightningSpec | ShortConvSpec
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BothSpec:
    """A layer with a full and a linear mixer, side by side or one after the other.

    Attributes:
        full: What it writes into a KV row.
        linear: What it keeps in a state slot.
    """

    full: FullSpec
    linear: LinearSpec

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split both mixers (`ConfigError`)."""
        self.full.check_tp(tp)
        self.linear.check_tp(tp)


@dataclass(frozen=True, slots=True)
class NoMixerSpec:
    """A layer without a mixer, a feed-forward alone: it writes into neither pool."""

    def check_tp(self, tp: int) -> None:
        """Every size will do."""


LayerSpec = GqaSpec | MlaSpec | LinearSpec | BothSpec | NoMixerSpec


def full_of(layer: LayerSpec) -> FullSpec | None:
    """Return the layer's full-attention mixer, if it has one."""
    if isinstance(layer, BothSpec):
        return layer.full
    return layer if isinstance(layer, FullSpec) else None


def linear_of(layer: LayerSpec) -> LinearSpec | None:
    """Return the layer's linear mixer, if it has one."""
    if isinstance(layer, BothSpec):
        return layer.linear
    return layer if isinstance(layer, LinearSpec) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardSpec:
    """A layer's feed-forward: dense, or experts of which each token takes some.

    Attributes:
        dense_width: Width of the dense part, shared experts included; 0 without.
        num_experts: Routed experts; 0 for a dense layer.
        experts_per_token: Routed experts that one token takes.
        expert_width: Width of one routed expert.
        is_gated: True when there are two input matrices and not one.
        expert_input_width: Width of what experts read and write, where it is not the hidden size.
    """

    dense_width: int = 0
    num_experts: int = 0
    experts_per_token: int = 0
    expert_width: int = 0
    is_gated: bool = True
    expert_input_width: int | None = None

    def parameters(self, hidden_size: int) -> int:
        """Weights of the whole feed-forward, router included."""
        return self._dense(hidden_size) + self.num_experts * self._expert(hidden_size)

    def active_parameters(self, hidden_size: int) -> int:
        """Weights that one token goes through."""
        return self._dense(hidden_size) + self.experts_per_token * self._expert(hidden_size)

    def _dense(self, hidden_size: int) -> int:
        reduced = self.expert_input_width
        latent = 2 * hidden_size * reduced if reduced else 0
        router = hidden_size * self.num_experts
        return self.matrices * hidden_size * self.dense_width + router + latent

    def _expert(self, hidden_size: int) -> int:
        return self.matrices * (self.expert_input_width or hidden_size) * self.expert_width

    @property
    def matrices(self) -> int:
        """Matrices of one feed-forward: 3 when gated, else 2."""
        return 3 if self.is_gated else 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherWeights:
    """Weights that the specs of single layers get wrong, because layers share them or add some.

    Attributes:
        extra: Weights in no mixer and no feed-forward, which every token goes through.
        repeated: Weights counted once per layer of which the model holds one copy less.
    """

    extra: int = 0
    repeated: int = 0


__all__ = [
    "BothSpec",
    "FeedForwardSpec",
    "FullSpec",
    "GatedDeltaSpec",
    "GqaSpec",
    "IndexerSpec",
    "KimiDeltaSpec",
    "LayerSpec",
    "LightningSpec",
    "LinearSpec",
    "Mamba1Spec",
    "Mamba2Spec",
    "MlaSpec",
    "NoMixerSpec",
    "OtherWeights",
    "ShortConvSpec",
    "full_of",
    "linear_of",
]
