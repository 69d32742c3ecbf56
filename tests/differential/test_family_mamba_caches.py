"""Families with Mamba: states and rows are as large as what transformers keeps for one request."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from twinpool.spec.layer import full_of, linear_of
from twinpool.spec.model import ModelSpec, parse_model_spec

TOKENS = 5
LANGUAGE_MODELS: Any = transformers.AutoModelForCausalLM
SEEDS = range(5)

Fields = dict[str, Any]


def _attention(rng: random.Random, *, hidden: int) -> Fields:
    heads = rng.choice([2, 4, 8])
    return {
        "vocab_size": 61,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice([1, heads, heads // 2]),
        "intermediate_size": rng.choice([24, 40]),
        "max_position_embeddings": rng.choice([64, 128]),
        "pad_token_id": 0,
    }


def _mamba2(rng: random.Random, *, inner: int) -> Fields:
    heads = rng.choice([4, 8])
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": rng.choice(["auto", inner // heads]),
        "mamba_n_groups": rng.choice([1, 2, 4]),
        "mamba_d_state": rng.choice([6, 16]),
        "mamba_d_conv": rng.choice([2, 3, 4]),
        "mamba_chunk_size": 8,
    }


def _nemotron_h(rng: random.Random) -> Fields:
    hidden = rng.choice([32, 64])
    kinds = rng.sample(["linear_attention", "full_attention", "moe", "mlp"], 4)
    kinds += rng.choices(kinds, k=rng.randrange(4))
    return {
        **_attention(rng, hidden=hidden),
        "layers_block_type": kinds,
        "head_dim": rng.choice([8, 16]),
        "ssm_state_size": rng.choice([6, 16]),
        "mamba_num_heads": 8,
        "mamba_head_dim": rng.choice([4, 12]),
        "n_groups": rng.choice([1, 2, 4]),
        "conv_kernel": rng.choice([2, 3, 4]),
        "chunk_size": 8,
        "n_routed_experts": 4,
        "moe_intermediate_size": 20,
        "moe_shared_expert_intermediate_size": 28,
        "moe_latent_size": rng.choice([None, 12]),
    }


def _granitemoehybrid(rng: random.Random) -> Fields:
    hidden, count = 32, rng.choice([2, 3, 5])
    kinds = rng.choices(["linear_attention", "full_attention"], k=count)
    return {
        **_attention(rng, hidden=hidden),
        **_mamba2(rng, inner=2 * hidden),
        "num_hidden_layers": count,
        "layer_types": rng.choice([kinds, ["full_attention"] * count, None]),
        "num_local_experts": rng.choice([0, 4]),
        "shared_intermediate_size": 20,
    }


def _bamba(rng: random.Random) -> Fields:
    hidden, count, expand = 64, rng.choice([2, 4]), rng.choice([1, 2])
    return {
        **_attention(rng, hidden=hidden),
        **_mamba2(rng, inner=expand * hidden),
        "mamba_expand": expand,
        "num_hidden_layers": count,
        "attn_layer_indices": rng.choice([None, [0], [1], [0, count - 1]]),
    }


def _falcon_h1(rng: random.Random) -> Fields:
    inner = rng.choice([None, 48, 96])
    return {
        **_attention(rng, hidden=32),
        **_mamba2(rng, inner=inner or 64),
        "head_dim": rng.choice([8, 12]),
        "mamba_d_ssm": inner,
        "num_hidden_layers": rng.choice([1, 3]),
    }


def _jamba(rng: random.Random) -> Fields:
    period, expert_period = rng.choice([2, 3]), rng.choice([1, 2])
    return {
        **_attention(rng, hidden=32),
        "num_hidden_layers": rng.choice([3, 4]),
        "attn_layer_period": period,
        "attn_layer_offset": rng.randrange(period),
        "expert_layer_period": expert_period,
        "expert_layer_offset": rng.randrange(expert_period),
        "num_experts": rng.choice([1, 4]),
        "num_experts_per_tok": 1,
        "mamba_d_state": rng.choice([4, 8]),
        "mamba_d_conv": rng.choice([2, 4]),
        "mamba_expand": rng.choice([1, 2]),
        "mamba_dt_rank": rng.choice(["auto", 3]),
    }


def _zamba2(rng: random.Random) -> Fields:
    kinds = ["linear_attention", "hybrid", *rng.choices(["linear_attention", "hybrid"], k=3)]
    return {
        **_attention(rng, hidden=32),
        "num_hidden_layers": len(kinds),
        "layers_block_type": kinds,
        "mamba_d_state": rng.choice([4, 8]),
        "mamba_d_conv": rng.choice([2, 4]),
        "mamba_expand": rng.choice([1, 2]),
        "mamba_ngroups": rng.choice([1, 2]),
        "n_mamba_heads": rng.choice([2, 4]),
        "num_mem_blocks": rng.choice([1, 2]),
        "adapter_rank": 4,
        "chunk_size": 8,
    }


def _mamba(rng: random.Random) -> Fields:
    return {
        "vocab_size": 61,
        "hidden_size": rng.choice([24, 32]),
        "num_hidden_layers": rng.choice([1, 3]),
        "state_size": rng.choice([4, 8]),
        "conv_kernel": rng.choice([2, 4]),
        "expand": rng.choice([1, 2]),
        "time_step_rank": rng.choice(["auto", 3]),
        **rng.choice([{}, {"intermediate_size": 40}]),
    }


def _mamba2_alone(rng: random.Random) -> Fields:
    heads = rng.choice([4, 8])
    return {
        "vocab_size": 61,
        "hidden_size": 32,
        "num_hidden_layers": rng.choice([1, 3]),
        "expand": 2,
        "num_heads": heads,
        "head_dim": 64 // heads,
        "state_size": rng.choice([4, 8]),
        "conv_kernel": rng.choice([2, 4]),
        "n_groups": rng.choice([1, 2, 4]),
        "chunk_size": 8,
    }


DRAWS: dict[str, Callable[[random.Random], Fields]] = {
    "nemotron_h": _nemotron_h,
    "granitemoehybrid": _granitemoehybrid,
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "jamba": _jamba,
    "zamba2": _zamba2,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
    "mamba2": _mamba2_alone,
}
CASES = [(model_type, seed) for model_type in DRAWS for seed in SEEDS]


def _config(model_type: str, seed: int) -> Any:
    fields = DRAWS[model_type](random.Random(f"{model_type}-{seed}"))
    return transformers.CONFIG_MAPPING[model_type](**fields)


def _spec(config: Any) -> ModelSpec:
    """Read the config as transformers saves it, through JSON."""
    return parse_model_spec(json.loads(json.dumps(config.to_dict())))


def _runs_in_transformers(model_type: str, seed: int) -> bool:
    """A mixed family cannot run there when no layer has attention: its cache finds no length."""
    config = _config(model_type, seed)
    return "mamba" in model_type or set(config.layer_types) != {"linear_attention"}


@pytest.mark.parametrize(("model_type", "seed"), CASES)
def test_layers_are_of_the_kinds_that_transformers_names(model_type: str, seed: int) -> None:
    config = _config(model_type, seed)
    spec = _spec(config)
    linear = [kind in ("linear_attention", "hybrid") for kind in config.layer_types]
    full = [kind in ("full_attention", "hybrid") for kind in config.layer_types]
    assert [linear_of(layer) is not None for layer in spec.layers] == linear
    assert [full_of(layer) is not None for layer in spec.layers] == full


@pytest.mark.parametrize(
    ("model_type", "seed"), [case for case in CASES if _runs_in_transformers(*case)]
)
def test_states_and_rows_have_the_sizes_of_the_cache(model_type: str, seed: int) -> None:
    config = _config(model_type, seed)
    spec = _spec(config)
    torch.manual_seed(seed)
    model = LANGUAGE_MODELS.from_config(config).eval()
    tokens = torch.arange(1, TOKENS + 1)[None]
    places = {} if "mamba" in model_type else {"position_ids": tokens - 1}
    with torch.inference_mode():
        cache = model(tokens, use_cache=True, **places).cache
    assert len(cache.layers) == len(spec.layers)
    for layer, kept in zip(spec.layers, cache.layers, strict=True):
        linear, full = linear_of(layer), full_of(layer)
        expected = {}
        if linear is not None:
            expected["conv"] = linear.conv_elements()
            expected["recurrent"] = linear.recurrent_elements()
        if full is not None:
            expected["keys"] = TOKENS * full.key_elements()
            expected["values"] = TOKENS * full.value_elements()
        assert _elements(kept) == expected


def _elements(kept: Any) -> dict[str, int]:
    """Count what one cache layer holds; of the K columns of a conv state, K - 1 are needed."""
    found = {}
    if getattr(kept, "conv_states", None):
        conv, recurrent = kept.conv_states[0], kept.recurrent_states[0]
        found["conv"] = conv[..., 1:].numel()
        found["recurrent"] = recurrent.numel()
    if getattr(kept, "keys", None) is not None:
        found["keys"], found["values"] = kept.keys.numel(), kept.values.numel()
    return found
