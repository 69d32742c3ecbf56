"""Readers of full attention that several families share: grouped queries, latents, indexers.

Knows field names that are spelt alike in many configs; which layers have attention is for the
families to say.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.layer import GqaSpec, IndexerSpec, MlaSpec

FULL = "full_attention"
LINEAR = "linear_attention"
INDEXED = "indexed_attention"
WINDOWED = ("sliding_attention", "chunked_attention", "hybrid_sliding")
WINDOW_HINT = (
    "layers with a sliding window have a pool of their own, which is not sized; "
    "only full attention is"
)


def either_integer(config: ConfigReader, *names: str, low: int = 1) -> int:
    """Read a whole number that goes by several names; the family's default is under the first.

    Args:
        config: The text model's fields.
        names: Fields that mean the same.
        low: Smallest value allowed.

    Raises:
        UnsupportedModelError: If it is missing without a default, no such number, or two of the
            fields contradict each other.
    """
    present = [name for name in names if config.has(name)] or [names[0]]
    value = config.integer(present[0], low=low)
    for name in present[1:]:
        other = config.integer(name, low=low)
        if other != value:
            raise config.error(name, f"is {other}, but {present[0]} is {value}")
    return value


def read_head_width(config: ConfigReader) -> int:
    """Read `head_dim`; without it, the hidden size divided by the heads.

    Raises:
        UnsupportedModelError: If it is no positive integer, or the heads do not divide the hidden
            size.
    """
    width = config.optional_integer("head_dim")
    if width is not None:
        return width
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden % heads:
        raise config.error(
            "num_attention_heads",
            f"is {heads}, which does not divide hidden_size {hidden}",
            hint="give head_dim",
        )
    return hidden // heads


def read_gqa(config: ConfigReader, *, is_gated: bool = False) -> GqaSpec:
    """Read attention with grouped queries; without `num_key_value_heads`, one for every query head.

    Args:
        config: The text model's fields.
        is_gated: True when the query projection also yields a gate for the output.

    Raises:
        UnsupportedModelError: If a field is missing or out of range, or KV heads do not divide
            the query heads.
    """
    heads = config.integer("num_attention_heads")
    kv_heads = config.optional_integer("num_key_value_heads") or heads
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"is {kv_heads}, which does not divide {heads}")
    width = read_head_width(config)
    return GqaSpec(
        num_query_heads=heads,
        num_kv_heads=kv_heads,
        key_width=width,
        value_width=width,
        is_gated=is_gated,
    )


def read_mla(
    config: ConfigReader, *, gate_width: int = 0, indexer: IndexerSpec | None = None
) -> MlaSpec:
    """Read multi-head latent attention.

    Args:
        config: The text model's fields.
        gate_width: Elements of the output gate of one head; 0 without.
        indexer: The sparse indexer; None for dense attention.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.
    """
    heads = config.integer("num_attention_heads")
    return MlaSpec(
        num_query_heads=heads,
        latent_width=config.integer("kv_lora_rank"),
        rope_width=config.integer("qk_rope_head_dim", low=0),
        nope_width=config.integer("qk_nope_head_dim"),
        value_width=config.integer("v_head_dim"),
        query_rank=config.optional_integer("q_lora_rank"),
        gate_width=gate_width,
        indexer=indexer,
    )


def read_indexers(
    config: ConfigReader, count: int, *, tokens_per_key: int = 1, may_share: bool = True
) -> tuple[IndexerSpec, ...]:
    """Read the indexer of each layer, those of layers without full attention included.

    Args:
        config: The text model's fields.
        count: Layers of the model.
        tokens_per_key: Tokens that share one index key.
        may_share: False for a family where each layer has an indexer of its own.

    Returns:
        One spec per layer; a layer that reuses an earlier choice has no cache.

    Raises:
        UnsupportedModelError: If a field is missing or out of range, or of another length.

    Source: transformers 5.24, `GlmMoeDsaConfig`, `Glm5NextTextConfig`.
    """
    heads, width = config.integer("index_n_heads"), config.integer("index_head_dim")
    own, shared = (
        IndexerSpec(num_heads=heads, width=width, tokens_per_key=tokens_per_key, has_cache=has)
        for has in (True, False)
    )
    if not may_share:
        return (own,) * count
    return tuple(own if runs else shared for runs in _runs_indexer(config, count))


def _runs_indexer(config: ConfigReader, count: int) -> tuple[bool, ...]:
    listed = config.names("indexer_types", known=("full", "shared"), count=count)
    if listed is not None:
        return tuple(kind == "full" for kind in listed)
    pattern = config.text("index_topk_pattern")
    if pattern is not None:
        if len(pattern) != count or set(pattern) - {"F", "S"}:
            raise config.error(
                "index_topk_pattern",
                f"is {pattern[:60]!r}, not a letter for each of {count} layers",
                hint="F runs the indexer, S shares the choice of an earlier layer",
            )
        return tuple(letter == "F" for letter in pattern)
    step = config.optional_integer("index_topk_freq", low=0) or 1
    offset = config.optional_integer("index_skip_topk_offset", low=0)
    skipped = 2 if offset is None else offset
    return tuple(max(index - skipped + 1, 0) % step == 0 for index in range(count))


def refuse_listed_windows(config: ConfigReader, count: int, *known: str) -> tuple[str, ...] | None:
    """Read `layer_types`, and refuse a layer with a sliding window.

    Args:
        config: The text model's fields.
        count: Layers of the model.
        known: The kinds that the family has.

    Returns:
        One name per layer, or None when the field is absent.

    Raises:
        UnsupportedModelError: If a layer has a window or is of an unknown kind, or the list is
            not of that length.
    """
    listed = config.names("layer_types", known=(*known, *WINDOWED), count=count)
    for index, kind in enumerate(listed or ()):
        if kind in WINDOWED:
            raise config.error(f"layer_types[{index}]", f"is {kind!r}", hint=WINDOW_HINT)
    return listed


def refuse_window(config: ConfigReader, name: str = "sliding_window") -> None:
    """Refuse a window that the model would use in every layer.

    Args:
        config: The text model's fields.
        name: The field that holds the window.

    Raises:
        UnsupportedModelError: If the field, or the family's default for it, is not null.
    """
    window = config.optional_integer(name)
    if window is not None:
        raise config.error(name, f"is {window}", hint=WINDOW_HINT)
