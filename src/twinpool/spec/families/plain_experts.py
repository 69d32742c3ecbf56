"""Plain mixtures of experts with grouped queries: full attention alone, and no state at all.

Knows the config's fields only.
"""

from __future__ import annotations

from dataclasses import replace

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import WINDOW_HINT
from twinpool.spec.families.experts import ExpertFields, read_dense_then_sparse
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.families.plain import (
    MISTRAL,
    plain_family,
    read_layers,
    read_windowed_layers,
    refuse_switch,
)
from twinpool.spec.layer import FeedForwardSpec, LayerSpec

_MIXTRAL_EXPERTS = ExpertFields(
    routed=("num_local_experts", "num_experts"),
    taken=("num_experts_per_tok",),
    shared=(),
    width="intermediate_size",
)
_QWEN_EXPERTS = ExpertFields(
    routed=("num_experts", "num_local_experts"), taken=("num_experts_per_tok",), shared=()
)


def read_alternating_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of a Qwen mixture of experts: the switch alone decides.

    Raises:
        UnsupportedModelError: If the window would be used, or a field is missing or of a wrong
            type.

    Source: transformers 5.24, `Qwen2MoeConfig`, `Qwen3MoeConfig`.
    """
    refuse_switch(config)
    return read_layers(config)


def read_gpt_oss_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of a gpt-oss config, which has a window in every other layer unless listed.

    Raises:
        UnsupportedModelError: If a layer has a window, or a field is missing or of a wrong type.

    Source: transformers 5.24, `GptOssConfig`.
    """
    if not config.has("layer_types"):
        what = "is missing, which gives every other layer a sliding window"
        raise config.error("layer_types", what, hint=WINDOW_HINT)
    return read_layers(config)


def read_qwen_experts(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Read every n-th layer as experts, with a shared one where its width is given.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.

    Source: transformers 5.24, `Qwen2MoeDecoderLayer`, `Qwen3MoeDecoderLayer`.
    """
    count = len(layers)
    listed = set(config.integers("mlp_only_layers", low=0, high=MAX_LAYERS) or ())
    step = config.integer("decoder_sparse_step")
    shared = config.integer("shared_expert_intermediate_size", low=0)
    sparse = replace(_QWEN_EXPERTS.read(config), dense_width=shared)
    is_sparse = [index not in listed and (index + 1) % step == 0 for index in range(count)]
    if all(is_sparse):
        return (sparse,) * count
    plain = FeedForwardSpec(dense_width=config.integer("intermediate_size"))
    return tuple(sparse if chosen else plain for chosen in is_sparse)


def read_mixtral(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Read experts in every layer, each as wide as `intermediate_size`.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.
    """
    return (_MIXTRAL_EXPERTS.read(config),) * len(layers)


def read_glm4_moe(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Read dense layers first, then experts with shared ones.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.
    """
    return read_dense_then_sparse(config, layers, ExpertFields().read(config))


_QWEN_MOE: dict[str, object] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "decoder_sparse_step": 1,
}


PLAIN_EXPERT_FAMILIES: tuple[Family, ...] = (
    plain_family(
        "mixtral",
        "MixtralForCausalLM",
        {**MISTRAL, "num_experts_per_tok": 2, "num_local_experts": 8},
        read_windowed_layers,
        read_mixtral,
    ),
    plain_family(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        {
            **_QWEN_MOE,
            "intermediate_size": 5632,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_experts_per_tok": 4,
            "num_experts": 60,
        },
        read_alternating_layers,
        read_qwen_experts,
    ),
    plain_family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        {
            **_QWEN_MOE,
            "intermediate_size": 6144,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "shared_expert_intermediate_size": 0,
            "num_experts_per_tok": 8,
            "num_experts": 128,
        },
        read_alternating_layers,
        read_qwen_experts,
    ),
    plain_family(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        {
            "vocab_size": 151552,
            "hidden_size": 4096,
            "intermediate_size": 10944,
            "num_hidden_layers": 46,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "moe_intermediate_size": 1408,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "n_routed_experts": 128,
            "first_k_dense_replace": 1,
        },
        feed_forwards=read_glm4_moe,
    ),
    plain_family(
        "minimax_m2",
        "MiniMaxM2ForCausalLM",
        {
            "vocab_size": 200064,
            "hidden_size": 3072,
            "intermediate_size": 1536,
            "num_hidden_layers": 62,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "num_experts_per_tok": 8,
            "num_local_experts": 256,
        },
        feed_forwards=read_mixtral,
        draft_fields=("num_mtp_modules", "num_nextn_predict_layers"),
    ),
    plain_family(
        "gpt_oss",
        "GptOssForCausalLM",
        {
            "vocab_size": 201088,
            "hidden_size": 2880,
            "intermediate_size": 2880,
            "num_hidden_layers": 36,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "num_experts_per_tok": 4,
            "num_local_experts": 128,
        },
        read_gpt_oss_layers,
        read_mixtral,
    ),
)
