"""Full-attention specs: what one layer writes into a KV row, and its weights.

Frozen values; knows no config file and no memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinpool.errors import ConfigError
from twinpool.units import DType

_INDEX_SCALE_BLOCK = 128
_LATENT_SCALE_BLOCK = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class GqaSpec:
    """Full attention with grouped queries: keys and values go to the KV pool.

    Attributes:
        num_query_heads: Query heads, `H`.
        num_kv_heads: Key and value heads before any tensor parallel split.
        key_width: Elements of one key head.
        value_width: Elements of one value head.
        is_gated: True when the query projection also yields a gate for the output.
        input_width: Width of what the input projections read, where it is not the hidden size.
    """

    num_query_heads: int
    num_kv_heads: int
    key_width: int
    value_width: int
    is_gated: bool = False
    input_width: int | None = None

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

    def key_bytes(self, tp: int, dtype: DType) -> int:
        """Bytes of one token's keys on one rank, scales included."""
        return dtype.bytes_of(self.key_elements(tp))

    def value_bytes(self, tp: int, dtype: DType) -> int:
        """Bytes of one token's values on one rank, scales included."""
        return dtype.bytes_of(self.value_elements(tp))

    def parameters(self, hidden_size: int) -> int:
        """Weights of the four projections; biases and norms are left out."""
        queries = self.num_query_heads * self.key_width * (2 if self.is_gated else 1)
        inputs = queries + self.num_kv_heads * (self.key_width + self.value_width)
        outputs = self.num_query_heads * self.value_width
        return (self.input_width or hidden_size) * inputs + hidden_size * outputs

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split the heads evenly.

        Args:
            tp: Ranks, 1 or more.

        Raises:
            ConfigError: If query heads do not divide by tp, or KV heads neither divide nor
                replicate evenly.
        """
        check_divides("num_attention_heads", self.num_query_heads, tp)
        if tp % self.num_kv_heads:
            check_divides("num_key_value_heads", self.num_kv_heads, tp)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerSpec:
    """The indexer of sparse latent attention: one small key per group of tokens in the KV pool.

    Attributes:
        num_heads: Query heads of the indexer.
        width: Elements of an index key.
        tokens_per_key: Tokens that share one index key, 1 or more.
        has_cache: False for a layer that reuses the choice of an earlier layer.
    """

    num_heads: int
    width: int
    tokens_per_key: int = 1
    has_cache: bool = True

    @property
    def row_bytes(self) -> int:
        """Bytes of one token: its part of an fp8 key and of one float32 scale per 128, rounded up.

        It is the same on every rank and for every dtype of the rows.
        """
        if not self.has_cache:
            return 0
        key = self.width + self.width // _INDEX_SCALE_BLOCK * 4
        return -(-key // self.tokens_per_key)

    def parameters(self, hidden_size: int, query_rank: int) -> int:
        """Weights of the projections, and of the gate that pools keys; 0 without a cache.

        Args:
            hidden_size: Width of the residual stream.
            query_rank: Width of what the queries are projected from.
        """
        if not self.has_cache:
            return 0
        keys = self.width * (2 if self.tokens_per_key > 1 else 1)
        return query_rank * self.num_heads * self.width + hidden_size * (keys + self.num_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlaSpec:
    """Multi-head latent attention: one latent per token, the same on every rank.

    Attributes:
        num_query_heads: Query heads, `H`.
        latent_width: Elements of the latent (`kv_lora_rank`).
        rope_width: Elements of the rotated key part that all heads share; 0 without.
        nope_width: Elements of a head's key that the latent expands to.
        value_width: Elements of one value head.
        query_rank: Rank of the query projection; None when it is one full matrix.
        gate_width: Elements of the output gate of one head; 0 without.
        indexer: The sparse indexer; None for dense attention.
    """

    num_query_heads: int
    latent_width: int
    rope_width: int
    nope_width: int
    value_width: int
    query_rank: int | None = None
    gate_width: int = 0
    indexer: IndexerSpec | None = None

    def key_elements(self, tp: int = 1) -> int:
        """Elements of one token's latent and rotated part; not divided by tensor parallel."""
        return self.latent_width + self.rope_width

    def value_elements(self, tp: int = 1) -> int:
        """Always 0: values are expanded from the latent."""
        return 0

    def row_elements(self, tp: int = 1) -> int:
        """Elements of one token's row, index key left out."""
        return self.key_elements(tp)

    def key_bytes(self, tp: int, dtype: DType) -> int:
        """Bytes of one token's row on each rank: the latent, and the index key where there is one.

        Source: the reference engine's pool configurator. With an indexer and a rotated part, an
        fp8 row keeps a float32 scale per 128 elements of the latent and the rotated part in
        bfloat16.
        """
        index = self.indexer.row_bytes if self.indexer else 0
        if self.indexer and self.rope_width and dtype.is_fp8:
            scales = self.latent_width // _LATENT_SCALE_BLOCK * 4
            return self.latent_width + scales + 2 * self.rope_width + index
        return dtype.bytes_of(self.key_elements(tp)) + index

    def value_bytes(self, tp: int, dtype: DType) -> int:
        """Always 0."""
        return 0

    def parameters(self, hidden_size: int) -> int:
        """Weights of the projections and the indexer; biases and norms are left out."""
        heads = self.num_query_heads
        queries = heads * (self.nope_width + self.rope_width)
        rank = self.query_rank
        total = rank * (hidden_size + queries) if rank else hidden_size * queries
        total += hidden_size * (self.latent_width + self.rope_width)
        total += self.latent_width * heads * (self.nope_width + self.value_width)
        total += hidden_size * heads * (self.value_width + self.gate_width)
        if self.indexer:
            total += self.indexer.parameters(hidden_size, rank or hidden_size)
        return total

    def check_tp(self, tp: int) -> None:
        """Refuse a tensor parallel size that does not split the query heads.

        Args:
            tp: Ranks, 1 or more.

        Raises:
            ConfigError: If query heads do not divide by tp.
        """
        check_divides("num_attention_heads", self.num_query_heads, tp)


def check_divides(field: str, heads: int, tp: int) -> None:
    """Refuse a number of heads that does not split over the ranks.

    Args:
        field: The config's field, for the message.
        heads: How many there are.
        tp: Ranks, 1 or more.

    Raises:
        ConfigError: If `heads` is no multiple of `tp`.
    """
    if heads % tp:
        raise ConfigError(
            f"{field} is {heads}, which does not split over {tp} ranks",
            hint=f"choose --tp so that it divides {heads}",
        )
