"""Zamba2: Mamba2 in every layer, and few attention blocks that many layers share.

Knows the config's fields only. A hybrid layer has its own rows and its own state; the weights of
its attention and feed-forward are those of one of `num_mem_blocks` blocks, in turn.
"""

from __future__ import annotations

from collections.abc import Mapping

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import LINEAR
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.families.mamba_blocks import mamba2_of, read_kinds
from twinpool.spec.layer import (
    BothSpec,
    FeedForwardSpec,
    GqaSpec,
    LayerSpec,
    Mamba2Spec,
    OtherWeights,
)

_HYBRID = "hybrid"
_WORDS: Mapping[str, str] = {LINEAR: LINEAR, "mamba": LINEAR, _HYBRID: _HYBRID}
_DEFAULT_KINDS = (
    (LINEAR,)
    + ((LINEAR,) * 5 + (_HYBRID,)) * 7
    + (LINEAR,) * 4
    + (_HYBRID,)
    + (LINEAR,) * 3
    + (_HYBRID,)
    + (LINEAR,) * 2
)
_LONG_CONTEXT = 16384


def _read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Source: transformers 5.24, `Zamba2Config`, `Zamba2Attention`, `Zamba2MambaMixer`."""
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    fields = ("layers_block_type", "layer_types")
    kinds = read_kinds(config, fields, _WORDS, count=count)
    if kinds is None:
        kinds = _DEFAULT_KINDS
        config.assume(fields[0])
    if len(kinds) != count:
        raise config.error(fields[0], f"is missing, and num_hidden_layers is {count}, not 54")
    _check_context(config)
    mixers: dict[str, LayerSpec] = {LINEAR: _read_mamba(config)}
    if _HYBRID in kinds:
        mixers[_HYBRID] = _read_hybrid(config)
    return tuple(mixers[kind] for kind in kinds)


def _read_hybrid(config: ConfigReader) -> BothSpec:
    """Attention reads the layer's input beside the embedding, so its heads make up twice hidden."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    doubled = config.optional_integer("attention_hidden_size") or 2 * hidden
    if doubled != 2 * hidden:
        raise config.error(
            "attention_hidden_size", f"is {doubled}, not twice the hidden_size of {hidden}"
        )
    if doubled % heads:
        raise config.error("num_attention_heads", f"is {heads}, which does not divide {doubled}")
    width = doubled // heads
    for field in ("attention_head_dim", "head_dim"):
        named = config.optional_integer(field)
        if named not in (None, width):
            raise config.error(field, f"is {named}, and {doubled} over {heads} heads is {width}")
    attention = GqaSpec(
        num_query_heads=heads,
        num_kv_heads=_kv_heads(config, heads),
        key_width=width,
        value_width=width,
        input_width=doubled,
    )
    return BothSpec(full=attention, linear=_read_mamba(config))


def _kv_heads(config: ConfigReader, heads: int) -> int:
    kv_heads = config.optional_integer("num_key_value_heads") or heads
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"is {kv_heads}, which does not divide {heads}")
    return kv_heads


def _read_mamba(config: ConfigReader) -> Mamba2Spec:
    return mamba2_of(
        config,
        inner_size=config.integer("mamba_expand") * config.integer("hidden_size"),
        heads_field="n_mamba_heads",
        width_field="mamba_headdim",
        width=config.optional_integer("mamba_headdim"),
        groups_field="mamba_ngroups",
        state_width=config.integer("mamba_d_state"),
        conv_width=config.integer("mamba_d_conv"),
    )


def _check_context(config: ConfigReader) -> None:
    context = config.integer("max_position_embeddings")
    if config.boolean("use_long_context", default=False) and context != _LONG_CONTEXT:
        raise config.error(
            "max_position_embeddings",
            f"is {context}, and use_long_context makes it {_LONG_CONTEXT}",
            hint=f"write {_LONG_CONTEXT}, or leave use_long_context out",
        )


def _read_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    shared = FeedForwardSpec(dense_width=_width(config))
    return tuple(shared if isinstance(layer, BothSpec) else FeedForwardSpec() for layer in layers)


def _read_other_weights(config: ConfigReader, layers: tuple[LayerSpec, ...]) -> OtherWeights:
    """Count what each hybrid layer has of its own, and what it has not because it shares.

    Source: transformers 5.24, `Zamba2Model.get_layers`, `Zamba2MLP`, `Zamba2Attention`.
    """
    hybrid = [layer for layer in layers if isinstance(layer, BothSpec)]
    if not hybrid:
        return OtherWeights()
    hidden, rank, width = (
        config.integer("hidden_size"),
        config.integer("adapter_rank"),
        _width(config),
    )
    own = hidden * hidden + rank * (hidden + 2 * width)
    if config.boolean("use_shared_attention_adapter", default=False):
        own += 3 * rank * 2 * (2 * hidden)
    block = hybrid[0].full.parameters(hidden)
    block += FeedForwardSpec(dense_width=width).parameters(hidden)
    blocks = min(config.integer("num_mem_blocks"), len(hybrid))
    return OtherWeights(extra=len(hybrid) * own, repeated=(len(hybrid) - blocks) * block)


def _width(config: ConfigReader) -> int:
    width = config.optional_integer("intermediate_size")
    if width is None:
        config.assume("intermediate_size")
        width = 4 * config.integer("hidden_size")
    return width


ZAMBA2 = Family(
    model_type="zamba2",
    architecture="Zamba2ForCausalLM",
    defaults={
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "hidden_size": 2560,
        "num_hidden_layers": 54,
        "num_attention_heads": 32,
        "num_key_value_heads": None,
        "mamba_d_state": 64,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_ngroups": 1,
        "n_mamba_heads": 8,
        "num_mem_blocks": 1,
        "adapter_rank": 128,
        "tie_word_embeddings": True,
    },
    read_layers=_read_layers,
    read_feed_forwards=_read_feed_forwards,
    read_other_weights=_read_other_weights,
    draft_fields=(),
)
