"""LFM2, dense, with experts and nested below a vision-language config: short convs and attention.

Knows the config's fields only; the vision part is not read.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import FULL, read_gqa, refuse_listed_windows
from twinpool.spec.families.experts import ExpertFields
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.layer import FeedForwardSpec, LayerSpec, ShortConvSpec

_CONVS = ("conv", "short_conv")
_EXPERTS = ExpertFields(routed=("num_experts",), taken=("num_experts_per_tok",))


def read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of an LFM2 config; one without a list of layers has attention in all.

    Args:
        config: The text model's fields.

    Returns:
        One spec per layer, first to last.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `Lfm2Config`.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    return _layers(config, _read_kinds(config, count) or (FULL,) * count)


def read_moe_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of an LFM2 config with experts, which must list them.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `Lfm2MoeConfig`, which cannot be built without `layer_types`.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    kinds = _read_kinds(config, count)
    if kinds is None:
        raise config.error("layer_types", "is missing", hint="list conv and full_attention layers")
    return _layers(config, kinds)


def _layers(config: ConfigReader, kinds: tuple[str, ...]) -> tuple[LayerSpec, ...]:
    full = read_gqa(config)
    conv = ShortConvSpec(
        num_channels=config.integer("hidden_size"), conv_width=config.integer("conv_L_cache")
    )
    return tuple(full if kind == FULL else conv for kind in kinds)


def _read_kinds(config: ConfigReader, count: int) -> tuple[str, ...] | None:
    named = refuse_listed_windows(config, count, FULL, *_CONVS)
    if named is not None:
        return named
    full = config.integers("full_attn_idxs", low=0, high=count - 1)
    if full is None:
        return None
    return tuple(FULL if index in full else _CONVS[0] for index in range(count))


def read_dense(config: ConfigReader, layers: tuple[LayerSpec, ...]) -> tuple[FeedForwardSpec, ...]:
    """Read the feed-forwards of a dense config: two thirds of the width given, then rounded up.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.

    Source: transformers 5.24, `Lfm2MLP`.
    """
    width = config.integer("block_ff_dim" if config.has("block_ff_dim") else "intermediate_size")
    if config.boolean("block_auto_adjust_ff_dim", default=True):
        width = 2 * width // 3
        if not config.is_null("block_ffn_dim_multiplier"):
            # In floats, because the widths of published weights came out of this arithmetic.
            factor = config.number("block_ffn_dim_multiplier")
            if factor <= 0:
                raise config.error("block_ffn_dim_multiplier", f"is {factor}, not above 0")
            width = int(factor * width)
            multiple = config.integer("block_multiple_of")
            width = -(-width // multiple) * multiple
    return (FeedForwardSpec(dense_width=width),) * len(layers)


def read_experts(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Read the feed-forwards of a config with experts: `num_dense_layers` dense ones first.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.

    Source: transformers 5.24, `Lfm2MoeDecoderLayer`.
    """
    count = len(layers)
    num_dense = min(config.integer("num_dense_layers", low=0, high=MAX_LAYERS), count)
    dense = FeedForwardSpec(dense_width=config.integer("intermediate_size"))
    return (dense,) * num_dense + (_EXPERTS.read(config),) * (count - num_dense)


_SHARED: dict[str, object] = {
    "vocab_size": 65536,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128000,
    "conv_L_cache": 3,
    "tie_word_embeddings": True,
}
_DENSE: dict[str, object] = {
    **_SHARED,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
}
_TIES = ("tie_embedding", "tie_word_embeddings")

LFM2 = Family(
    model_type="lfm2",
    architecture="Lfm2ForCausalLM",
    defaults=_DENSE,
    read_layers=read_layers,
    read_feed_forwards=read_dense,
    tie_fields=_TIES,
)
LFM2_VL = Family(
    model_type="lfm2_vl",
    architecture="Lfm2VlForConditionalGeneration",
    defaults=_DENSE,
    read_layers=read_layers,
    read_feed_forwards=read_dense,
    text_key="text_config",
    text_types=("lfm2",),
    tie_fields=_TIES,
)
LFM2_MOE = Family(
    model_type="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    defaults={
        **_SHARED,
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "num_experts_per_tok": 4,
        "num_experts": 32,
    },
    read_layers=read_moe_layers,
    read_feed_forwards=read_experts,
    tie_fields=_TIES,
)
