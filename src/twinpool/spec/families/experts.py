"""Readers of feed-forwards that several families share: dense layers first, then experts.

Knows field names and their aliases; the mixers of the layers are read elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import either_integer
from twinpool.spec.families.family import MAX_LAYERS
from twinpool.spec.layer import FeedForwardSpec, LayerSpec

DENSE = "dense"
SPARSE = "sparse"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertFields:
    """The names under which a family's configs keep the counts of experts.

    Attributes:
        routed: Names of the number of routed experts.
        taken: Names of the number that one token takes.
        shared: Names of the number of shared experts.
        width: Name of the width of one expert.
    """

    routed: tuple[str, ...] = ("n_routed_experts", "num_local_experts", "num_experts")
    taken: tuple[str, ...] = ("num_experts_per_tok", "num_experts_per_token")
    shared: tuple[str, ...] = ("n_shared_experts", "num_shared_experts")
    width: str = "moe_intermediate_size"

    def read(
        self, config: ConfigReader, *, expert_input_width: int | None = None
    ) -> FeedForwardSpec:
        """Read a layer of experts; shared ones count as its dense part.

        Args:
            config: The text model's fields.
            expert_input_width: Width of what experts read and write; None: the hidden size.

        Raises:
            UnsupportedModelError: If a field is missing or out of range, or a token takes more
                experts than there are.
        """
        routed = either_integer(config, *self.routed)
        taken = either_integer(config, *self.taken)
        if taken > routed:
            raise config.error(self.taken[0], f"is {taken}, more than the {routed} experts")
        width = config.integer(self.width)
        return FeedForwardSpec(
            dense_width=self._shared(config) * width,
            num_experts=routed,
            experts_per_token=taken,
            expert_width=width,
            expert_input_width=expert_input_width,
        )

    def _shared(self, config: ConfigReader) -> int:
        if not self.shared:
            return 0
        if any(config.has(name) for name in self.shared):
            return either_integer(config, *self.shared, low=0)
        return config.optional_integer(self.shared[0], low=0) or 0


def read_dense_then_sparse(
    config: ConfigReader, layers: tuple[LayerSpec, ...], sparse: FeedForwardSpec
) -> tuple[FeedForwardSpec, ...]:
    """Read which layers are dense: `mlp_layer_types`, else the first few and every n-th after.

    Args:
        config: The text model's fields.
        layers: The model's mixers; only their number counts.
        sparse: The feed-forward of the other layers.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.

    Source: transformers 5.24, `DeepseekV3DecoderLayer`; `moe_layer_freq` as in the configs that
    DeepSeek and Moonshot publish.
    """
    count = len(layers)
    kinds = config.names("mlp_layer_types", known=(DENSE, SPARSE), count=count)
    if kinds is None:
        first = config.integer("first_k_dense_replace", low=0, high=MAX_LAYERS)
        step = config.integer("moe_layer_freq") if config.has("moe_layer_freq") else 1
        kinds = tuple(
            SPARSE if index >= first and index % step == 0 else DENSE for index in range(count)
        )
    if DENSE not in kinds:
        return (sparse,) * count
    plain = FeedForwardSpec(dense_width=config.integer("intermediate_size"))
    return tuple(sparse if kind == SPARSE else plain for kind in kinds)
