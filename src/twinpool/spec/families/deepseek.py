"""Plain transformers with latent attention: DeepSeek V2 to V3.2, Kimi-K2, GLM-5; no state at all.

Knows the config's fields only; a vision part beside the text model is not read.
"""

from __future__ import annotations

from dataclasses import replace

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import (
    FULL,
    INDEXED,
    read_indexers,
    read_mla,
    refuse_listed_windows,
)
from twinpool.spec.families.experts import ExpertFields, read_dense_then_sparse
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.layer import FeedForwardSpec, LayerSpec

_EXPERTS = ExpertFields(taken=("num_experts_per_tok",), shared=("n_shared_experts",))


def read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read layers of dense latent attention.

    Args:
        config: The text model's fields.

    Returns:
        One spec per layer, all alike.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `DeepseekV2Config`, `DeepseekV3Config`.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    refuse_listed_windows(config, count, FULL)
    return (read_mla(config),) * count


def read_indexed_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read layers of latent attention, each with an indexer of its own.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `DeepseekV32Config`.
    """
    return _indexed(config, may_share=False)


def read_sharing_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read layers of latent attention, some of which reuse the choice of an earlier indexer.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `GlmMoeDsaConfig`.
    """
    return _indexed(config, may_share=True)


def _indexed(config: ConfigReader, *, may_share: bool) -> tuple[LayerSpec, ...]:
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    refuse_listed_windows(config, count, INDEXED, FULL)
    full = read_mla(config)
    indexers = read_indexers(config, count, may_share=may_share)
    return tuple(replace(full, indexer=indexer) for indexer in indexers)


def read_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Read the feed-forwards: dense first, then experts with shared ones.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.
    """
    return read_dense_then_sparse(config, layers, _EXPERTS.read(config))


_LATENT: dict[str, object] = {
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
_V2: dict[str, object] = {
    **_LATENT,
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "first_k_dense_replace": 0,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
}
_V3: dict[str, object] = {
    **_LATENT,
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "max_position_embeddings": 4096,
}
_V32: dict[str, object] = {
    **_V3,
    "max_position_embeddings": 163840,
    "index_head_dim": 128,
    "index_n_heads": 64,
}
_GLM: dict[str, object] = {
    **_V32,
    "vocab_size": 154880,
    "hidden_size": 6144,
    "intermediate_size": 12288,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "v_head_dim": 256,
    "qk_nope_head_dim": 192,
    "max_position_embeddings": 202752,
    "index_n_heads": 32,
}
_DRAFTS = ("num_nextn_predict_layers", "num_mtp_layers")

LATENT_FAMILIES: tuple[Family, ...] = (
    *(
        Family(
            model_type=model_type,
            architecture=architecture,
            defaults=defaults,
            read_layers=reader,
            read_feed_forwards=read_feed_forwards,
            draft_fields=_DRAFTS,
        )
        for model_type, architecture, defaults, reader in (
            ("deepseek_v2", "DeepseekV2ForCausalLM", _V2, read_layers),
            ("deepseek_v3", "DeepseekV3ForCausalLM", _V3, read_layers),
            ("deepseek_v32", "DeepseekV32ForCausalLM", _V32, read_indexed_layers),
            ("kimi_k2", "DeepseekV3ForCausalLM", _V3, read_layers),
            ("glm_moe_dsa", "GlmMoeDsaForCausalLM", _GLM, read_sharing_layers),
        )
    ),
    Family(
        model_type="kimi_k25",
        architecture="KimiK25ForConditionalGeneration",
        defaults={**_V3, "tie_word_embeddings": True},
        read_layers=read_layers,
        read_feed_forwards=read_feed_forwards,
        text_key="text_config",
        text_types=("deepseek_v3", "kimi_k2"),
        draft_fields=_DRAFTS,
    ),
)
