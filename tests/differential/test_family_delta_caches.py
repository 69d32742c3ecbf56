"""Layer kinds, rows and slots are those of transformers' own caches, for random tiny configs.

Their conv states keep a column more than is needed; their latent caches are compressed, the latent
as keys and the rotated part as values. Index keys are kept there unpooled and in the model's
dtype, so they are not compared.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from delta_families import TINY, TOKENS, build, config_of, tiny_fields
from twinpool.spec.layer import (
    FullSpec,
    GatedDeltaSpec,
    KimiDeltaSpec,
    LightningSpec,
    LinearSpec,
    MlaSpec,
    ShortConvSpec,
    full_of,
    linear_of,
)
from twinpool.spec.model import ModelSpec, parse_model_spec

LINEAR_NAMES = ("linear_attention", "conv")
SEEDS = range(3)
ALL = [(model_type, seed) for model_type in TINY for seed in SEEDS]


def _cached(model_type: str, config: Any) -> Any:
    positions = torch.arange(TOKENS)[None]
    own_cache = model_type == "minimax"
    cache = None if own_cache else DynamicCache(config=config)
    with torch.no_grad():
        output = build(config)(positions + 3, cache=cache, use_cache=True, position_ids=positions)
    return output.cache if own_cache else cache


def _spec_of(config: Any) -> ModelSpec:
    return parse_model_spec(config.to_dict())


@pytest.mark.parametrize(("model_type", "seed"), ALL)
def test_layer_kinds_are_those_of_the_config_class(model_type: str, seed: int) -> None:
    config = config_of(model_type, tiny_fields(model_type, seed))
    spec = _spec_of(config)
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    assert spec.linear_layers == tuple(
        index for index, kind in enumerate(kinds) if kind in LINEAR_NAMES
    )
    assert spec.full_layers == tuple(
        index for index, kind in enumerate(kinds) if kind not in LINEAR_NAMES
    )


@pytest.mark.parametrize(("model_type", "seed"), ALL)
def test_a_config_reads_the_same_before_and_after_transformers_saved_it(
    model_type: str, seed: int
) -> None:
    fields = tiny_fields(model_type, seed)
    given = parse_model_spec({"model_type": model_type, **fields})
    saved = _spec_of(config_of(model_type, fields))
    assert given.layers == saved.layers
    assert given.feed_forwards == saved.feed_forwards
    assert given.parameters == saved.parameters


@pytest.mark.parametrize(("model_type", "seed"), ALL)
def test_rows_and_slots_have_the_size_of_transformers_caches(model_type: str, seed: int) -> None:
    config = config_of(model_type, tiny_fields(model_type, seed))
    spec, cache = _spec_of(config), _cached(model_type, config)
    for index, layer in enumerate(spec.layers):
        full, linear = full_of(layer), linear_of(layer)
        if full is not None:
            _check_rows(full, cache.layers[index])
        elif model_type == "minimax":
            _check_state(linear, None, cache.linear_cache[index])
        else:
            entry = cache.layers[index]
            recurrent = (
                entry.recurrent_states[0] if entry.is_recurrent_states_initialized[0] else None
            )
            _check_state(linear, entry.conv_states[0], recurrent)


def _check_rows(full: FullSpec, entry: Any) -> None:
    keys, values = entry.keys, entry.values
    assert keys.numel() + values.numel() == TOKENS * full.row_elements()
    if isinstance(full, MlaSpec):
        assert (keys.shape[-1], values.shape[-1]) == (full.latent_width, full.rope_width)
        assert hasattr(entry, "indexer_keys") == (full.indexer is not None)
    else:
        assert keys.shape[1] == full.num_kv_heads
        assert keys.numel() == TOKENS * full.key_elements()
        assert values.numel() == TOKENS * full.value_elements()


def _check_state(linear: LinearSpec | None, conv: Any, recurrent: Any) -> None:
    assert linear is not None
    elements = 0 if recurrent is None else recurrent.numel()
    assert linear.recurrent_elements() == elements
    assert (elements == 0) == isinstance(linear, ShortConvSpec)
    if isinstance(linear, LightningSpec):
        assert conv is None
        assert linear.conv_elements() == 0
    else:
        assert isinstance(linear, GatedDeltaSpec | KimiDeltaSpec | ShortConvSpec)
        width = linear.conv_width
        assert conv.shape[-1] == width
        assert linear.conv_elements() * width == conv.numel() * (width - 1)
