"""Layer specs: the shapes of one attention layer that decide what a row and a slot hold.

Frozen values; knows no config file, no dtype and no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class GqaSpec:
    """Full attention with grouped queries: keys and values go to the KV pool.

    Attributes:
        num_query_heads: Query heads, `H`.
        num_kv_heads: Key and value heads before any tensor parallel split.
        key_width: Elements of one key head.
        value_width: Elements of one value head.
    """

    num_query_heads: int
    num_kv_heads: int
    key_width: int
    value_width: int

    def kv_heads(self, tp: int = 1) -> int:
        """Key and value heads on one rank; heads replicate once tp > heads."""
        return max(1, self.num_kv_heads // tp)

    def key_elements(self, tp: int = 1) -> int:
        """Elements of one token's keys on one rank."""
        return self.kv_heads(tp) * self.key_width

    def value_elements(self, tp: int = 1) -> int:
        """Elements of one token's values on one rank."""
        return self.kv_heads(tp) * self.value_width

    def row_elements(self, tp: int = 1) -> int:
        """Elements of one token's keys and values on one rank."""
        return self.key_elements(tp) + self.value_elements(tp)

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split the heads evenly.

        Args:
            tp: Ranks, 1 or more.

        Raises:
            ConfigError: If query heads do not divide by tp, or KV heads neither divide nor
                replicate evenly.
        """
        _check_divides("num_attention_heads", self.num_query_heads, tp)
        if tp % self.num_kv_heads:
            _check_divides("num_key_value_heads", self.num_kv_heads, tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaSpec:
    """Gated DeltaNet: a conv state and a recurrent state go to the state pool.

    Attributes:
        num_key_heads: Key (and query) heads, `HK`.
        num_value_heads: Value heads, `HV`, a multiple of `HK`.
        key_width: Elements of one key head, `K`.
        value_width: Elements of one value head, `V`.
        conv_width: Taps of the causal conv, `W`; its state holds `W - 1` columns.
    """

    num_key_heads: int
    num_value_heads: int
    key_width: int
    value_width: int
    conv_width: int

    @property
    def conv_channels(self) -> int:
        """Channels of the causal conv: queries, keys and values side by side."""
        return 2 * self.num_key_heads * self.key_width + self.num_value_heads * self.value_width

    def conv_elements(self, tp: int = 1) -> int:
        """Elements of one conv state on one rank."""
        return self.conv_channels // tp * (self.conv_width - 1)

    def recurrent_elements(self, tp: int = 1) -> int:
        """Elements of one recurrent state on one rank."""
        return self.num_value_heads // tp * self.key_width * self.value_width

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split the heads evenly.

        Args:
            tp: Ranks, 1 or more.

        Raises:
            ConfigError: If key or value heads do not divide by tp.
        """
        _check_divides("linear_num_key_heads", self.num_key_heads, tp)
        _check_divides("linear_num_value_heads", self.num_value_heads, tp)


FullSpec = GqaSpec
LinearSpec = GatedDeltaSpec
LayerSpec = FullSpec | LinearSpec


def _check_divides(field: str, heads: int, tp: int) -> None:
    if heads % tp:
        raise ConfigError(
            f"{field} is {heads}, which does not split over {tp} ranks",
            hint=f"choose --tp so that it divides {heads}",
        )
