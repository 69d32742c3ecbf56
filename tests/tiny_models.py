"""Tiny random Hugging Face checkpoints, made with transformers, for tests of every layer.

Weights are drawn so that a mistake shows: norms are not 1, decays differ between heads, and
projections are large enough that logits spread.
"""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

VOCAB = 97

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

_SHARED: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "full_attention_interval": 4,
    "max_position_embeddings": 4096,
    "bos_token_id": None,
    "eos_token_id": 1,
}
_MOE: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}


def qwen3_next_config(**changes: Any) -> Any:
    """Qwen3-Next: sparse MoE in every layer unless `mlp_only_layers` or a step says otherwise."""
    return transformers.Qwen3NextConfig(**{**_SHARED, **_MOE, "intermediate_size": 72, **changes})


def qwen3_5_config(**changes: Any) -> Any:
    """Qwen3.5 text, dense."""
    return transformers.Qwen3_5TextConfig(**{**_SHARED, "intermediate_size": 72, **changes})


def qwen3_5_moe_config(**changes: Any) -> Any:
    """Qwen3.5 text, MoE."""
    return transformers.Qwen3_5MoeTextConfig(**{**_SHARED, **_MOE, **changes})


_CLASSES = {
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
}


def build(config: Any, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Make the transformers model of a config with random weights that are not degenerate.

    Args:
        config: A transformers config of a family of `_CLASSES`.
        seed: Same seed, same weights.
        dtype: Of all weights.
    """
    model = getattr(transformers, _CLASSES[config.model_type])(config)
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        weight.data = _random_weight(name, weight.shape, generator)
    return model.to(dtype).eval()


def _random_weight(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):
        return 0.7 * noise - 1.0
    if name.endswith("dt_bias"):
        return noise - 1.5
    if "linear_attn.norm" in name:
        return 1.0 + 0.3 * noise
    if "norm" in name:
        return 0.3 * noise
    if "conv1d" in name:
        return 0.5 * noise
    if "embed_tokens" in name:
        return 0.3 * noise
    return noise * 1.4 / shape[-1] ** 0.5


def save(model: Any, folder: Path, *, shard_bytes: int | None = None) -> Path:
    """Write a checkpoint as transformers writes it, in shards when a size is given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, max_shard_size=shard_bytes or "5GB")
    return folder


def reference_logits(model: Any, tokens: np.ndarray) -> torch.Tensor:
    """Logits of a one-shot prefill.

    Args:
        model: What `build` returned.
        tokens: int32 `[T]`.

    Returns:
        float32 `[T, vocab]`.
    """
    ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64))[None]
    with torch.no_grad():
        out = model(ids, position_ids=torch.arange(ids.shape[1])[None], use_cache=False)
    return out.logits[0].float()


def reference_decode(model: Any, tokens: np.ndarray, num_prompt: int) -> torch.Tensor:
    """Logits of a prefill of `num_prompt` tokens and then one step per token, with a cache.

    Returns:
        float32 `[T, vocab]`.
    """
    ids = torch.from_numpy(np.asarray(tokens, dtype=np.int64))[None]
    positions = torch.arange(ids.shape[1])[None]
    cache = transformers.DynamicCache(config=model.config.get_text_config())
    parts = []
    bounds = [0, num_prompt, *range(num_prompt + 1, ids.shape[1] + 1)]
    with torch.no_grad():
        for low, high in itertools.pairwise(bounds):
            out = model(
                ids[:, low:high], position_ids=positions[:, low:high], cache=cache, use_cache=True
            )
            parts.append(out.logits[0].float())
    return torch.cat(parts)


def random_tokens(count: int, *, seed: int = 0, vocab: int = VOCAB) -> np.ndarray:
    """Random token ids, int32 `[count]`."""
    return np.random.default_rng(seed).integers(0, vocab, count, dtype=np.int32)
