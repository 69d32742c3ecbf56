"""Families with Mamba: weights counted and fields left out are as transformers has them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from twinpool.spec.model import parse_model_spec
from twinpool.units import DType

TOLERANCE = 0.001
LANGUAGE_MODELS: Any = transformers.AutoModelForCausalLM
CLASSES: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING

FAMILIES = (
    "nemotron_h",
    "granitemoehybrid",
    "bamba",
    "falcon_h1",
    "jamba",
    "zamba2",
    "mamba",
    "falcon_mamba",
    "mamba2",
)
PATTERN = "M-M*MEM-*EM-ME"

SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "nemotron_h": ("nemotron_h", {"hybrid_override_pattern": PATTERN, "hidden_size": 2688}),
    "nemotron_h, latent experts": (
        "nemotron_h",
        {
            "hybrid_override_pattern": PATTERN,
            "moe_latent_size": 1024,
            "n_routed_experts": 64,
            "mamba_num_heads": 48,
        },
    ),
    "granite 4 h-small": (
        "granitemoehybrid",
        {
            "vocab_size": 100352,
            "num_hidden_layers": 10,
            "layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 4,
            "num_key_value_heads": 8,
            "intermediate_size": 768,
            "shared_intermediate_size": 1536,
            "num_local_experts": 72,
            "num_experts_per_tok": 10,
            "mamba_d_state": 128,
            "tie_word_embeddings": True,
        },
    ),
    "granite 4 micro": (
        "granitemoehybrid",
        {
            "hidden_size": 2560,
            "num_hidden_layers": 8,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "layer_types": ["attention"] * 8,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 8192,
            "mamba_n_heads": 80,
        },
    ),
    "bamba 9b": ("bamba", {"attn_layer_indices": [9, 18, 27], "mamba_d_state": 128}),
    "falcon-h1 34b": (
        "falcon_h1",
        {
            "hidden_size": 5120,
            "num_hidden_layers": 8,
            "num_attention_heads": 20,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "intermediate_size": 21504,
            "mamba_d_ssm": 4096,
            "mamba_n_heads": 32,
            "mamba_d_head": 128,
            "mamba_n_groups": 2,
        },
    ),
    "falcon-h1, channels from the hidden size": (
        "falcon_h1",
        {"num_hidden_layers": 4, "mamba_d_ssm": None},
    ),
    "jamba": ("jamba", {"num_hidden_layers": 8}),
    "zamba2 2.7b": (
        "zamba2",
        {"num_mem_blocks": 2, "n_mamba_heads": 80, "num_attention_heads": 32},
    ),
    "zamba2 1.2b": (
        "zamba2",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 38,
            "layers_block_type": (["mamba"] * 5 + ["hybrid"]) * 6 + ["mamba"] * 2,
            "n_mamba_heads": 64,
            "mamba_d_state": 128,
            "num_mem_blocks": 1,
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
        },
    ),
    "zamba2, two blocks and adapters": (
        "zamba2",
        {
            "num_hidden_layers": 8,
            "layers_block_type": ["mamba", "hybrid"] * 4,
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
        },
    ),
    "mamba 2.8b": ("mamba", {"hidden_size": 2560, "num_hidden_layers": 16}),
    "falcon-mamba 7b": (
        "falcon_mamba",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 8,
            "expand": 16,
            "intermediate_size": 8192,
            "vocab_size": 65024,
            "tie_word_embeddings": False,
        },
    ),
    "mamba2 2.7b": (
        "mamba2",
        {"hidden_size": 2560, "num_heads": 80, "n_groups": 1, "num_hidden_layers": 16},
    ),
}


def _weights(config: Any) -> int:
    """Count the weights of the model, shared ones once, without any memory for them."""
    with torch.device("meta"):
        model = LANGUAGE_MODELS.from_config(config)
    model.tie_weights()
    return sum(weight.numel() for weight in model.parameters())


def test_every_family_is_counted() -> None:
    assert {model_type for model_type, _ in SHAPES.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", SHAPES)
def test_weights_are_counted_within_a_thousandth(name: str) -> None:
    model_type, fields = SHAPES[name]
    counted = parse_model_spec({"model_type": model_type, **fields}).parameters
    built = _weights(transformers.CONFIG_MAPPING[model_type](**fields))
    assert abs(counted - built) <= TOLERANCE * built


@pytest.mark.parametrize("model_type", FAMILIES)
def test_absent_fields_are_what_transformers_says(model_type: str) -> None:
    config = transformers.CONFIG_MAPPING[model_type]()
    saved = parse_model_spec(json.loads(json.dumps(config.to_dict())))
    bare = parse_model_spec({"model_type": model_type})
    assert replace(saved, state_dtype=DType.FLOAT32, architecture="") == replace(
        bare, architecture=""
    )
    assert bare.hidden_size == config.hidden_size
    assert bare.vocab_size == config.vocab_size
    assert len(bare.layers) == config.num_hidden_layers
    assert bare.tie_word_embeddings == config.tie_word_embeddings
    if hasattr(config, "max_position_embeddings"):
        assert bare.context_length == config.max_position_embeddings


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_architecture_is_the_class_that_transformers_picks(model_type: str) -> None:
    picked = CLASSES[transformers.CONFIG_MAPPING[model_type]]
    assert parse_model_spec({"model_type": model_type}).architecture == picked.__name__
