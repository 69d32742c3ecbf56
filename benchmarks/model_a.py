"""Model A: 114 M parameters of `qwen3_5_text` with random weights, the same on every machine.

Written as a Hugging Face folder, so that transformers and other engines load the very same files.
Knows nothing of who measures what on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from twinpool.models.config import parse_config
from twinpool.models.load import expected_tensors

# 9 Gated DeltaNet layers of 6 heads x 128 x 128, 3 full-attention layers of 6 query and 2 KV heads.
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "full_attention_interval": 4,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "linear_num_key_heads": 6,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "attention_bias": False,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": None,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
    },
}


def write_model_a(folder: Path, dtype: torch.dtype = torch.bfloat16, *, seed: int = 0) -> Path:
    """Write the checkpoint, unless the folder holds one already.

    Args:
        folder: Created when it is not there.
        dtype: bfloat16 or float32, of every tensor.
        seed: Same seed, same weights.

    Returns:
        `folder`.
    """
    weights = folder / "model.safetensors"
    if weights.is_file():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, "dtype": str(dtype).removeprefix("torch.")}
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: _random_weight(name, shape, generator).to(dtype)
        for name, shape in expected_tensors(parse_config(config)).items()
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    # The weights come last, so that a folder that has them is whole.
    unfinished = folder / "model.safetensors.part"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    unfinished.rename(weights)
    return folder


def _random_weight(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Draw a tensor of the size that trained ones have, so that no number grows or dies."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):
        return 0.5 * noise - 1.0
    if name.endswith("dt_bias"):
        return 0.5 * noise - 2.0
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.1 * noise
    if "norm" in name:
        return 0.1 * noise
    if "conv1d" in name:
        return 0.5 * noise
    return noise / shape[-1] ** 0.5
