"""The model that is trained: its shape, and weights to start from.

The layers are those of transformers' Qwen3.5; knows no data.
"""

from __future__ import annotations

import math

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

VOCAB_SIZE = 4096
_SEED = 6


def config(turn_end: int, end_of_text: int) -> Qwen3_5TextConfig:
    """Return the shape: 8 layers, one in four full attention.

    Args:
        turn_end: Id of the token that ends a turn.
        end_of_text: Id of the token that ends a document.
    """
    return Qwen3_5TextConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        linear_num_key_heads=4,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        full_attention_interval=4,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
        },
        eos_token_id=[turn_end, end_of_text],
        pad_token_id=end_of_text,
    )


def build(shape: Qwen3_5TextConfig) -> Qwen3_5ForCausalLM:
    """Return a model with fresh weights, the same every time."""
    torch.manual_seed(_SEED)
    model = Qwen3_5ForCausalLM(shape)
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("dt_bias"):
                # Heads begin by forgetting over 10 to 1,000 tokens, as in Mamba2.
                draw = torch.rand(parameter.shape, generator=generator)
                step = torch.exp(math.log(1e-3) + draw * math.log(100))
                parameter.copy_(step + torch.log(-torch.expm1(-step)))
            elif name.endswith("A_log"):
                draw = torch.rand(parameter.shape, generator=generator)
                parameter.copy_(torch.log(1 + 3 * draw))
            elif name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                parameter.zero_()  # every layer begins as the identity
            elif name.endswith("conv1d.weight"):
                parameter.normal_(std=0.2, generator=generator)
                parameter[..., -1] += 0.5
            elif parameter.dim() == 2:
                # Unit variance in, unit variance out; the embedding is read, not multiplied.
                width = parameter.shape[1]
                std = 0.5 if name.endswith("embed_tokens.weight") else 0.7 / math.sqrt(width)
                if name == "lm_head.weight":
                    std = 0.1 / math.sqrt(width)
                parameter.normal_(std=std, generator=generator)
    return model
