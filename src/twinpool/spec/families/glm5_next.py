"""GLM-5.3-Flash: Kimi Delta Attention, and in every fourth layer latent attention with an indexer.

Knows the config's fields only; the vision part is not read.
"""

from __future__ import annotations

from dataclasses import replace

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import FULL, INDEXED, LINEAR, read_indexers, read_mla
from twinpool.spec.families.experts import ExpertFields, read_dense_then_sparse
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.families.kimi import read_kimi_delta, read_kinds
from twinpool.spec.families.preferences import PREFERENCES
from twinpool.spec.layer import FeedForwardSpec, LayerSpec

_TOKENS_PER_KEY = {16: 4}


def read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of a GLM-5.3-Flash text config.

    Args:
        config: The text model's fields.

    Returns:
        One spec per layer, first to last.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `Glm5NextTextConfig`. That class takes no layers from
    `linear_attn_config`; here its lists count, from 0, as in the reference engine.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    kinds = read_kinds(config, count, known=(LINEAR, INDEXED, FULL), first=0) or tuple(
        INDEXED if index % 4 == 3 else LINEAR for index in range(count)
    )
    indexers = read_indexers(config, count, tokens_per_key=_tokens_per_key(config))
    full, linear = read_mla(config), read_kimi_delta(config)
    return tuple(
        linear if kind == LINEAR else replace(full, indexer=indexer)
        for kind, indexer in zip(kinds, indexers, strict=True)
    )


def _tokens_per_key(config: ConfigReader) -> int:
    """Return the tokens that share one stored index key.

    A config with an `index_kpool` of 16 stores one key per 4 tokens, other values are taken as
    they are. Source: the published boot log of GLM-5.3-Flash, whose rows take 5995 bytes: 11
    layers of 512 bytes of latent and 33 of index, a quarter of a key of 132 bytes.
    """
    pool = config.integer("index_kpool")
    return _TOKENS_PER_KEY.get(pool, pool)


def read_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Read the feed-forwards: three dense layers, then experts, unless the config says otherwise.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.
    """
    return read_dense_then_sparse(config, layers, ExpertFields().read(config))


_DEFAULTS: dict[str, object] = {
    "vocab_size": 154880,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 288,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 0,
    "v_head_dim": 256,
    "qk_nope_head_dim": 256,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 1048576,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "linear_head_dim": 128,
    "linear_num_heads": 64,
    "linear_conv_kernel_dim": 4,
    "index_kpool": 16,
    "first_k_dense_replace": 3,
}
_PREFERENCE = PREFERENCES["glm5_next"]

GLM5_NEXT_TEXT = Family(
    model_type="glm5_next_text",
    architecture="Glm5NextForCausalLM",
    defaults=_DEFAULTS,
    read_layers=read_layers,
    read_feed_forwards=read_feed_forwards,
    preferences=_PREFERENCE.settings,
    preference_note=_PREFERENCE.note,
)
GLM5_NEXT = Family(
    model_type="glm5_next",
    architecture="Glm5NextForConditionalGeneration",
    defaults=_DEFAULTS,
    read_layers=read_layers,
    read_feed_forwards=read_feed_forwards,
    text_key="text_config",
    text_types=("glm5_next_text",),
    is_flat_allowed=True,
    preferences=_PREFERENCE.settings,
    preference_note=_PREFERENCE.note,
)
