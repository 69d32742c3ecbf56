"""The plain twins give what transformers' modules give on the same weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_cases import AttentionCase, DeltaCase, LanePlan, ragged, randn
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as hf

from twinpool.kernels import reference, reference_mixers


def config(**overrides: object) -> Qwen3NextConfig:
    values: dict[str, object] = {
        "hidden_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
        "intermediate_size": 64,
        "moe_intermediate_size": 40,
        "shared_expert_intermediate_size": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "vocab_size": 64,
        "partial_rotary_factor": 0.5,
    }
    return Qwen3NextConfig(**(values | overrides), attn_implementation="eager")


def randomise(module: torch.nn.Module) -> None:
    for index, parameter in enumerate(module.parameters()):
        parameter.data.copy_(randn(100 + index, *parameter.shape, scale=0.3))


@pytest.mark.parametrize("tokens", [1, 63, 65])
def test_gated_delta_twin_equals_the_transformers_layer(tokens: int) -> None:
    module = hf.Qwen3NextGatedDeltaNet(config(), 0)
    randomise(module)
    x = randn(7, 1, tokens, 48)
    with torch.no_grad():
        expected = module(x)[0]
        qkv, ba = module.in_proj_qkvz(x), module.in_proj_ba(x)
        parts = module.fix_query_key_value_ordering(qkv, ba)
    case = DeltaCase(2, 4, 16, 24)
    case.start(5)
    weights = replace(
        case.weights,
        conv_weight=module.conv1d.weight.data.squeeze(1).T.contiguous(),
        decay_rate=-module.A_log.data.exp(),
        dt_bias=module.dt_bias.data,
        norm_weight=module.norm.weight.data,
    )
    proj = torch.cat([part.reshape(tokens, -1) for part in parts], dim=1)
    rows = np.zeros(tokens, np.int32)
    out = reference_mixers.gated_delta(
        proj, weights, case.state, ragged([LanePlan(0, tokens, rows, slot=5)])
    )
    actual = out @ module.out_proj.weight.data.T
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("tokens", [1, 65])
def test_attention_twin_equals_the_transformers_layer(tokens: int) -> None:
    settings = config()
    module = hf.Qwen3NextAttention(settings, 3)
    randomise(module)
    rotary = hf.Qwen3NextRotaryEmbedding(settings)
    x = randn(8, 1, tokens, 48)
    mask = torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]
    with torch.no_grad():
        factors = rotary(x, torch.arange(tokens)[None])
        expected = module(x, factors, mask)[0][0]
        query, gate = module.q_proj(x).view(tokens, 6, 32).chunk(2, dim=-1)
        parts = [query, gate, module.k_proj(x)[0], module.v_proj(x)[0]]
    case = AttentionCase(6, 2, 16, 16, rotary_dim=8)
    norms = {"q_norm": 1 + module.q_norm.weight.data, "k_norm": 1 + module.k_norm.weight.data}
    rows = np.random.default_rng(0).permutation(case.num_rows)[:tokens].astype(np.int32)
    batch = ragged([LanePlan(0, tokens, rows)])
    out = reference_mixers.attention(
        torch.cat([part.reshape(tokens, -1) for part in parts], dim=1),
        reference.rope(batch.positions, rotary.inv_freq),
        replace(case.weights, **norms),
        case.kv,
        batch,
    )
    torch.testing.assert_close(out @ module.o_proj.weight.data.T, expected, atol=1e-5, rtol=1e-4)


def test_route_and_experts_twins_equal_the_transformers_block() -> None:
    settings = config()
    module = hf.Qwen3NextSparseMoeBlock(settings)
    randomise(module)
    x = randn(9, 17, 48)
    with torch.no_grad():
        expected = module(x.unsqueeze(0))[0]
        logits = x @ module.gate.weight.T
        shared, gate = module.shared_expert(x), module.shared_expert_gate(x)
    ids, weights = reference.route(logits, 3, settings.norm_topk_prob)
    experts = reference.ReferenceExperts(
        module.experts.gate_up_proj.data, module.experts.down_proj.data
    )
    out = experts(x, ids, weights)
    reference.add_gated(out, shared, gate)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)


def test_rms_norm_twin_equals_transformers_zero_centred_norm() -> None:
    module = hf.Qwen3NextRMSNorm(48, eps=1e-6)
    randomise(module)
    x = randn(10, 5, 48)
    expected = module(x).detach()
    torch.testing.assert_close(reference.rms_norm(x, 1 + module.weight.data, 1e-6), expected)
