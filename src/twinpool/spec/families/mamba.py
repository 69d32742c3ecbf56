"""Pure Mamba models, the first and the second kind, and Falcon-Mamba: a state and no KV row.

Knows the config's fields only. A recurrent model has no longest sequence; where the config gives
none, 2048 is assumed, as the reference engine does.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.families.mamba_blocks import mamba2_of, read_no_feed_forwards
from twinpool.spec.layer import LayerSpec, Mamba1Spec

_RANK_DIVISOR = 16
_CONTEXT_FIELDS = (
    "max_position_embeddings",
    "max_sequence_length",
    "seq_length",
    "max_seq_len",
    "model_max_length",
)
_CONTEXT = {_CONTEXT_FIELDS[0]: 2048}


def _read_mamba(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Source: transformers 5.24, `MambaConfig`; an `intermediate_size` in the file wins."""
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    hidden = config.integer("hidden_size")
    inner = config.optional_integer("intermediate_size")
    mixer = Mamba1Spec(
        inner_size=inner or config.integer("expand") * hidden,
        state_width=config.integer("state_size"),
        conv_width=config.integer("conv_kernel"),
        step_rank=config.integer_or_auto("time_step_rank") or -(-hidden // _RANK_DIVISOR),
    )
    return (mixer,) * count


def _read_mamba2(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Source: transformers 5.24, `Mamba2Config`."""
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    mixer = mamba2_of(
        config,
        inner_size=config.integer("expand") * config.integer("hidden_size"),
        heads_field="num_heads",
        width_field="head_dim",
        width=config.integer("head_dim"),
        groups_field="n_groups",
        state_width=config.integer("state_size"),
        conv_width=config.integer("conv_kernel"),
    )
    return (mixer,) * count


_MAMBA_DEFAULTS: dict[str, object] = {
    **_CONTEXT,
    "vocab_size": 50280,
    "hidden_size": 768,
    "state_size": 16,
    "num_hidden_layers": 32,
    "expand": 2,
    "conv_kernel": 4,
    "time_step_rank": "auto",
    "tie_word_embeddings": True,
}

MAMBA = Family(
    model_type="mamba",
    architecture="MambaForCausalLM",
    defaults=_MAMBA_DEFAULTS,
    read_layers=_read_mamba,
    read_feed_forwards=read_no_feed_forwards,
    context_fields=_CONTEXT_FIELDS,
    draft_fields=(),
)
FALCON_MAMBA = Family(
    model_type="falcon_mamba",
    architecture="FalconMambaForCausalLM",
    defaults=_MAMBA_DEFAULTS,
    read_layers=_read_mamba,
    read_feed_forwards=read_no_feed_forwards,
    context_fields=_CONTEXT_FIELDS,
    draft_fields=(),
)
MAMBA2 = Family(
    model_type="mamba2",
    architecture="Mamba2ForCausalLM",
    defaults={
        **_CONTEXT,
        "vocab_size": 32768,
        "hidden_size": 4096,
        "num_hidden_layers": 64,
        "num_heads": 128,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 8,
        "expand": 2,
        "conv_kernel": 4,
    },
    read_layers=_read_mamba2,
    read_feed_forwards=read_no_feed_forwards,
    context_fields=_CONTEXT_FIELDS,
    draft_fields=(),
)
