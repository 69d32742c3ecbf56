"""Counted weights are those of transformers' models, for published shapes and for tiny ones.

Left out are norms, biases, and the few matrices with a side of one or of a pool: the mixing of
residual streams, the pooled index key's positions, the gate of a shared expert. The models stand
on the meta device, so nothing is allocated; a head is added where it is not tied.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from delta_families import TINY, build, config_of, tiny_fields
from twinpool.spec.model import parse_model_spec

LEFT_OUT = ("hc", "A_log", "compress_ape", "shared_expert_gate")
KINDS = ["conv", "conv", "full_attention"]
PUBLISHED: dict[str, dict[str, Any]] = {
    "kimi_linear": {},
    "glm5_next_text": {},
    "bailing_hybrid": {},
    "olmo_hybrid": {},
    "minimax": {"head_dim": 128, "num_hidden_layers": 8},
    "lfm2": {"hidden_size": 2048, "num_hidden_layers": 16, "full_attn_idxs": [2, 5, 8, 10, 12, 14]},
    "lfm2_moe": {"num_hidden_layers": 24, "layer_types": KINDS * 8},
    "llama": {"num_key_value_heads": 8, "intermediate_size": 14336},
    "mistral": {"sliding_window": None},
    "ministral3": {},
    "granite": {},
    "olmo2": {},
    "phi3": {},
    "qwen2": {},
    "qwen3": {},
    "mixtral": {},
    "qwen2_moe": {},
    "qwen3_moe": {"decoder_sparse_step": 2, "mlp_only_layers": [1]},
    "glm4_moe": {"head_dim": 128},
    "minimax_m2": {},
    "deepseek_v2": {"num_experts_per_tok": 6, "first_k_dense_replace": 1, "q_lora_rank": None},
    "deepseek_v3": {},
    "deepseek_v32": {},
    "glm_moe_dsa": {"index_topk_freq": 4},
}


def _weights(model_type: str, fields: dict[str, Any]) -> tuple[int, int]:
    config = config_of(model_type, fields)
    spec = parse_model_spec(config.to_dict())
    with torch.device("meta"):
        model = build(config)
    theirs = sum(weight.numel() for weight in model.parameters())
    if not spec.tie_word_embeddings:
        theirs += spec.hidden_size * spec.vocab_size
    return spec.parameters, theirs


def test_every_family_has_a_published_shape() -> None:
    assert set(PUBLISHED) == set(TINY)


@pytest.mark.parametrize("model_type", sorted(PUBLISHED))
def test_published_shapes_are_counted_within_a_hundredth(model_type: str) -> None:
    ours, theirs = _weights(model_type, PUBLISHED[model_type])
    assert abs(ours - theirs) <= theirs // 100


@pytest.mark.parametrize("model_type", sorted(TINY))
@pytest.mark.parametrize("seed", range(3))
def test_tiny_shapes_are_counted_exactly_but_for_norms_and_biases(
    model_type: str, seed: int
) -> None:
    config = config_of(model_type, tiny_fields(model_type, seed))
    spec = parse_model_spec(config.to_dict())
    with torch.device("meta"):
        model = build(config)
    matrices = sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if weight.dim() > 1 and not any(part in name for part in LEFT_OUT)
    )
    if not spec.tie_word_embeddings:
        matrices += spec.hidden_size * spec.vocab_size
    assert spec.parameters == matrices
