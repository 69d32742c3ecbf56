"""Logits of every family equal transformers', from folders that transformers wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from model_runs import Bench
from tiny_models import (
    build,
    qwen3_5_config,
    qwen3_5_moe_config,
    qwen3_next_config,
    random_tokens,
    reference_decode,
    reference_logits,
    save,
)
from twinpool.models.load import load_model
from twinpool.units import DType

TOLERANCE = 1e-4
_SAME_HEADS = {"linear_num_key_heads": 3, "linear_num_value_heads": 3}
_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 48,
    "num_position_embeddings": 16,
}


def _multimodal(kind: type, text: Any, **changes: Any) -> Any:
    return kind(text_config=text.to_dict(), vision_config=dict(_VISION), **changes)


CONFIGS = {
    "next-moe": lambda: qwen3_next_config(),
    "next-moe-tied-same-heads": lambda: qwen3_next_config(tie_word_embeddings=True, **_SAME_HEADS),
    "next-with-dense-layers": lambda: qwen3_next_config(mlp_only_layers=[1, 3]),
    "next-sparse-every-other-layer": lambda: qwen3_next_config(
        decoder_sparse_step=2, num_hidden_layers=5
    ),
    "next-unnormalised-experts": lambda: qwen3_next_config(norm_topk_prob=False),
    "next-without-experts": lambda: qwen3_next_config(num_experts=0),
    "3.5-dense": lambda: qwen3_5_config(),
    "3.5-dense-tied-same-heads": lambda: qwen3_5_config(tie_word_embeddings=True, **_SAME_HEADS),
    "3.5-full-attention-first": lambda: qwen3_5_config(
        layer_types=["full_attention", "linear_attention", "full_attention"], num_hidden_layers=3
    ),
    "3.5-wide-values-short-conv": lambda: qwen3_5_config(
        linear_value_head_dim=24, linear_conv_kernel_dim=3, rms_norm_eps=1e-3
    ),
    "3.5-rotary-everywhere": lambda: qwen3_5_config(
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 5e6,
            "partial_rotary_factor": 1.0,
            "mrope_section": [3, 3, 2],
            "mrope_interleaved": True,
        }
    ),
    "3.5-moe": lambda: qwen3_5_moe_config(),
    "3.5-moe-tied": lambda: qwen3_5_moe_config(tie_word_embeddings=True, num_experts_per_tok=3),
    "3.5-multimodal": lambda: _multimodal(transformers.Qwen3_5Config, qwen3_5_config()),
    "3.5-moe-multimodal-tied": lambda: _multimodal(
        transformers.Qwen3_5MoeConfig, qwen3_5_moe_config(), tie_word_embeddings=True
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_and_decode_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    theirs = build(CONFIGS[name](), seed=1)
    ours = load_model(save(theirs, tmp_path))
    tokens = random_tokens(70, seed=2)
    expected = reference_logits(theirs, tokens)
    assert expected.std() > 0.5, "degenerate weights would hide mistakes"
    prefill = Bench(ours).alone(tokens)
    assert (prefill - expected).abs().max() <= TOLERANCE
    decode = Bench(ours).alone(tokens, 30, *[1] * 40)
    assert (decode - reference_decode(theirs, tokens, 30)).abs().max() <= TOLERANCE
    assert prefill.shape == (70, ours.spec.vocab_size)


def test_logits_do_not_depend_on_how_the_checkpoint_is_sharded(tmp_path: Path) -> None:
    theirs = build(qwen3_next_config(), seed=3)
    whole = load_model(save(theirs, tmp_path / "whole"))
    folder = save(theirs, tmp_path / "shards", shard_bytes=60_000)
    assert len(list(folder.glob("*.safetensors"))) > 3
    tokens = random_tokens(20, seed=4)
    assert torch.equal(Bench(whole).alone(tokens), Bench(load_model(folder)).alone(tokens))


def test_only_the_wanted_positions_give_logits(tmp_path: Path) -> None:
    ours = load_model(save(build(qwen3_5_config(), seed=5), tmp_path))
    tokens = random_tokens(33, seed=6)
    every = Bench(ours).alone(tokens)
    bench = Bench(ours)
    some = bench.step_wanting((bench.start(tokens), 33), wanted=[32, 0, 7])
    torch.testing.assert_close(some, every[[32, 0, 7]], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["next-moe", "3.5-dense"])
def test_bfloat16_is_as_near_to_float32_as_transformers_bfloat16(name: str, tmp_path: Path) -> None:
    theirs = build(CONFIGS[name](), seed=7, dtype=torch.bfloat16)
    ours = load_model(save(theirs, tmp_path))
    assert ours.spec.dtype is DType.BFLOAT16
    tokens = random_tokens(48, seed=8)
    rounded = reference_logits(theirs, tokens)
    exact = reference_logits(theirs.float(), tokens)
    error = (Bench(ours).alone(tokens, 17) - exact).abs()
    their_error = (rounded - exact).abs()
    # A rounding may flip the choice of an expert, so the largest error says little.
    assert error.mean() <= 1.1 * their_error.mean()
    assert error.quantile(0.9) <= 1.1 * their_error.quantile(0.9)


def test_a_float16_checkpoint_is_served_in_float32(tmp_path: Path) -> None:
    theirs = build(qwen3_5_config(), seed=9, dtype=torch.float16)
    ours = load_model(save(theirs, tmp_path))
    assert ours.spec.dtype is DType.FLOAT32
    tokens = random_tokens(24, seed=10)
    expected = reference_logits(theirs.float(), tokens)
    assert (Bench(ours).alone(tokens) - expected).abs().max() <= TOLERANCE


def test_a_float32_checkpoint_can_be_served_in_bfloat16(tmp_path: Path) -> None:
    theirs = build(qwen3_5_config(), seed=11)
    folder = save(theirs, tmp_path / "float32")
    rounded = save(theirs.to(torch.bfloat16), tmp_path / "bfloat16")
    tokens = random_tokens(24, seed=12)
    ours = Bench(load_model(folder, dtype=DType.BFLOAT16)).alone(tokens)
    # Norms and decays stay as the file has them, so the two differ a little.
    expected = Bench(load_model(rounded)).alone(tokens)
    assert (ours - expected).abs().mean() < 0.02


def test_experts_stored_in_one_tensor_give_the_same_logits(tmp_path: Path) -> None:
    folder = save(build(qwen3_5_moe_config(), seed=13), tmp_path)
    tokens = random_tokens(20, seed=14)
    apart = Bench(load_model(folder)).alone(tokens)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for layer in range(4):
        name = f"model.layers.{layer}.mlp.experts"
        parts = {
            kind: [tensors.pop(f"{name}.{expert}.{kind}_proj.weight") for expert in range(6)]
            for kind in ("gate", "up", "down")
        }
        pairs = zip(parts["gate"], parts["up"], strict=True)
        tensors[f"{name}.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
        tensors[f"{name}.down_proj"] = torch.stack(parts["down"])
    save_file(tensors, file)
    assert torch.equal(Bench(load_model(folder)).alone(tokens), apart)
