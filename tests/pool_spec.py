"""A small model without weights, for tests of physical pools: two full layers among linear ones."""

from __future__ import annotations

from twinpool.spec.layer import GatedDeltaSpec, GqaSpec
from twinpool.spec.model import ModelSpec
from twinpool.units import DType

LINEAR = GatedDeltaSpec(
    num_key_heads=1, num_value_heads=3, key_width=5, value_width=3, conv_width=4
)
FULL = GqaSpec(num_query_heads=4, num_kv_heads=2, key_width=5, value_width=3)
SPEC = ModelSpec(
    model_type="qwen3_next",
    architecture="",
    layers=(LINEAR, FULL, LINEAR, LINEAR, FULL),
    hidden_size=8,
    vocab_size=9,
    context_length=100,
    dtype=DType.FLOAT32,
)
