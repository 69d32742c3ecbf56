"""Tiny random configs of delta-rule, lightning, short-conv and plain families, and their models."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextModel

Fields = dict[str, Any]
TOKENS = 7


def latent_fields(draw: random.Random) -> Fields:
    """Draw the shape of latent attention."""
    return {
        "kv_lora_rank": draw.choice([8, 12, 20]),
        "q_lora_rank": draw.choice([None, 10]),
        "qk_rope_head_dim": draw.choice([4, 6]),
        "qk_nope_head_dim": draw.choice([5, 8]),
        "v_head_dim": draw.choice([6, 9]),
    }


def _shared(draw: random.Random) -> Fields:
    heads = draw.choice([2, 4])
    return {
        "vocab_size": 64,
        "hidden_size": draw.choice([32, 48]),
        "intermediate_size": draw.choice([24, 40]),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": draw.choice([5, 8]),
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _grouped(draw: random.Random) -> Fields:
    return {**_shared(draw), "num_attention_heads": 4, "num_key_value_heads": draw.choice([1, 2])}


def _random_kinds(draw: random.Random, count: int, linear: str, full: str) -> list[str]:
    kinds = [draw.choice([linear, full]) for _ in range(count - 2)] + [linear, full]
    draw.shuffle(kinds)
    return kinds


def _delta(draw: random.Random) -> Fields:
    return {
        "linear_head_dim": draw.choice([4, 8]),
        "linear_num_heads": draw.choice([2, 3]),
        "linear_conv_kernel_dim": draw.choice([3, 4]),
    }


def _kimi(draw: random.Random) -> Fields:
    fields = {
        **_shared(draw),
        **latent_fields(draw),
        **_delta(draw),
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_token": 2,
    }
    if draw.random() < 0.5:
        fields["layer_types"] = _random_kinds(
            draw, fields["num_hidden_layers"], "linear_attention", "full_attention"
        )
    return fields


def _glm(draw: random.Random) -> Fields:
    return {
        **_shared(draw),
        **latent_fields(draw),
        **_delta(draw),
        "q_lora_rank": 10,
        "qk_rope_head_dim": 0,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "index_head_dim": 16,
        "index_n_heads": 2,
        "index_kpool": 2,
        "index_topk": 8,
        "index_topk_freq": draw.choice([1, 2]),
    }


def _bailing(draw: random.Random) -> Fields:
    return {
        **_shared(draw),
        **latent_fields(draw),
        "head_dim": draw.choice([4, 8]),
        "short_conv_kernel_size": draw.choice([3, 4]),
        "layer_group_size": draw.choice([2, 3]),
        "moe_intermediate_size": 16,
        "num_experts": 8,
        "num_expert_group": 2,
        "topk_group": 1,
        "num_experts_per_token": 2,
        "first_k_dense_replace": draw.choice([0, 1]),
    }


def _olmo(draw: random.Random) -> Fields:
    fields = _grouped(draw)
    if draw.random() < 0.5:
        fields |= {
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": draw.choice([4, 6]),
            "linear_value_head_dim": draw.choice([8, 10]),
        }
    return fields


def _minimax(draw: random.Random) -> Fields:
    return {
        **_grouped(draw),
        "head_dim": draw.choice([None, 6]),
        "num_local_experts": 4,
        "block_size": 8,
    }


def _lfm2(draw: random.Random) -> Fields:
    fields = {
        **_grouped(draw),
        "conv_L_cache": draw.choice([3, 4]),
        "block_multiple_of": 8,
        "block_auto_adjust_ff_dim": draw.choice([True, False]),
    }
    count = fields["num_hidden_layers"]
    return fields | {"full_attn_idxs": sorted(draw.sample(range(count), 2))}


def _lfm2_moe(draw: random.Random) -> Fields:
    fields = {
        **_grouped(draw),
        "conv_L_cache": draw.choice([3, 4]),
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    }
    kinds = _random_kinds(draw, fields["num_hidden_layers"], "conv", "full_attention")
    return fields | {"layer_types": kinds}


def _deepseek(draw: random.Random) -> Fields:
    return {
        **_shared(draw),
        **latent_fields(draw),
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": draw.choice([0, 2]),
    }


def _indexed(draw: random.Random) -> Fields:
    return {
        **_deepseek(draw),
        "q_lora_rank": 10,
        "index_head_dim": 16,
        "index_n_heads": 2,
        "index_topk": 4,
    }


def _plain(draw: random.Random) -> Fields:
    return {**_grouped(draw), "head_dim": draw.choice([8, 12]), "sliding_window": None}


def _plain_experts(draw: random.Random) -> Fields:
    return {
        **_plain(draw),
        "moe_intermediate_size": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    }


def _local_experts(draw: random.Random) -> Fields:
    return {**_plain(draw), "num_local_experts": 4, "num_experts_per_tok": 2}


def _glm4_moe(draw: random.Random) -> Fields:
    return {
        **_plain(draw),
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
    }


TINY: dict[str, Callable[[random.Random], Fields]] = {
    "kimi_linear": _kimi,
    "glm5_next_text": _glm,
    "bailing_hybrid": _bailing,
    "olmo_hybrid": _olmo,
    "minimax": _minimax,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _indexed,
    "glm_moe_dsa": _indexed,
    "llama": _plain,
    "mistral": _plain,
    "ministral3": _plain,
    "granite": _grouped,
    "olmo2": _grouped,
    "phi3": _grouped,
    "qwen2": _grouped,
    "qwen3": _plain,
    "mixtral": _local_experts,
    "minimax_m2": _local_experts,
    "qwen2_moe": _plain_experts,
    "qwen3_moe": _plain_experts,
    "glm4_moe": _glm4_moe,
}


def tiny_fields(model_type: str, seed: int) -> Fields:
    """Draw the fields of a tiny config.

    Args:
        model_type: One of `TINY`.
        seed: Equal seeds draw equal fields.
    """
    return TINY[model_type](random.Random(f"{model_type} {seed}"))


def config_of(model_type: str, fields: Fields) -> PreTrainedConfig:
    """Make transformers' config object from some fields."""
    return AutoConfig.for_model(model_type, **fields)


def build(config: PreTrainedConfig) -> PreTrainedModel:
    """Build transformers' text model, without a head, on the device that is current."""
    torch.manual_seed(0)
    if config.model_type == "glm5_next_text":
        return Glm5NextTextModel(config).eval()
    return AutoModel.from_config(config).eval()
