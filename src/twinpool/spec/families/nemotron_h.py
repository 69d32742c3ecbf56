"""Nemotron-H and Nemotron 3: one part per layer, Mamba2, attention, a dense part or experts.

Knows the config's fields only; of the vision and audio models only the text part is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import (
    FULL,
    LINEAR,
    either_integer,
    read_gqa,
    refuse_window,
)
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.families.mamba_blocks import (
    MIXER_WORDS,
    check_groups,
    read_kinds,
)
from twinpool.spec.layer import FeedForwardSpec, LayerSpec, Mamba2Spec, NoMixerSpec

_DENSE = "mlp"
_EXPERTS = "moe"
_WORDS: Mapping[str, str] = {**MIXER_WORDS, _DENSE: _DENSE, _EXPERTS: _EXPERTS}
_LETTERS: Mapping[str, str] = {"M": LINEAR, "*": FULL, "-": _DENSE, "E": _EXPERTS}
_DEFAULT_KINDS = (LINEAR, _EXPERTS, FULL, _DENSE)
_DRAFT_FIELD = "num_nextn_predict_layers"


def _read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    kinds = _layer_kinds(config)
    _check_draft_kinds(config)
    mixers: dict[str, LayerSpec] = {_DENSE: NoMixerSpec(), _EXPERTS: NoMixerSpec()}
    if FULL in kinds:
        refuse_window(config)
        width = either_integer(config, "head_dim", "attention_head_dim")
        mixers[FULL] = replace(read_gqa(config), key_width=width, value_width=width)
    if LINEAR in kinds:
        mixers[LINEAR] = _read_mamba(config)
    return tuple(mixers[kind] for kind in kinds)


def _read_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    kinds = _layer_kinds(config)
    specs = {LINEAR: FeedForwardSpec(), FULL: FeedForwardSpec()}
    if _DENSE in kinds:
        width = config.integer("intermediate_size")
        specs[_DENSE] = FeedForwardSpec(dense_width=width, is_gated=False)
    if _EXPERTS in kinds:
        specs[_EXPERTS] = _read_experts(config)
    return tuple(specs[kind] for kind in kinds)


def _read_experts(config: ConfigReader) -> FeedForwardSpec:
    """Read one layer of experts, none of which has a gate.

    Source: transformers 5.24, `NemotronHMoE`. It builds one shared expert whatever
    `n_shared_experts` says; the reference engine, followed here, multiplies its width.
    """
    experts = either_integer(config, "n_routed_experts", "num_local_experts")
    shared = config.integer("n_shared_experts", low=0)
    return FeedForwardSpec(
        dense_width=shared and shared * config.integer("moe_shared_expert_intermediate_size"),
        num_experts=experts,
        experts_per_token=config.integer("num_experts_per_tok", high=experts),
        expert_width=config.integer("moe_intermediate_size"),
        is_gated=False,
        expert_input_width=config.optional_integer("moe_latent_size"),
    )


def _read_mamba(config: ConfigReader) -> Mamba2Spec:
    """Read the Mamba2 mixer: its heads set the channels, `expand` is not looked at.

    Source: transformers 5.24, `NemotronHMamba2Mixer`.
    """
    heads = config.integer("mamba_num_heads")
    groups = either_integer(config, "n_groups", "mamba_n_groups")
    return Mamba2Spec(
        num_heads=heads,
        head_width=config.integer("mamba_head_dim"),
        state_width=config.integer("ssm_state_size"),
        num_groups=check_groups(config, "n_groups", groups, heads=heads),
        conv_width=either_integer(config, "conv_kernel", "mamba_d_conv"),
    )


def _layer_kinds(config: ConfigReader) -> tuple[str, ...]:
    """Read the kinds from a list of names, else from a pattern of letters.

    Source: transformers 5.24, `NemotronHConfig`; unlike there, a number of layers that is not the
    length of the list is an error.
    """
    count = config.optional_integer("num_hidden_layers", high=MAX_LAYERS)
    fields = ("layers_block_type", "layer_types")
    listed = _kinds(config, fields, "hybrid_override_pattern", count)
    if listed is not None:
        return listed
    if count not in (None, len(_DEFAULT_KINDS)):
        raise config.error(
            "layers_block_type", f"is missing, and num_hidden_layers is {count}, not 4"
        )
    config.assume("layers_block_type")
    return _DEFAULT_KINDS


def _check_draft_kinds(config: ConfigReader) -> None:
    """Refuse draft layers of another make than one attention layer each."""
    if not config.has(_DRAFT_FIELD) or not config.integer(_DRAFT_FIELD, low=0):
        return
    fields = ("mtp_layers_block_type", "mtp_hybrid_override_pattern")
    kinds = _kinds(config, fields[:1], fields[1], None) or (FULL, _EXPERTS)
    if kinds.count(FULL) != 1 or LINEAR in kinds:
        field = next(field for field in fields if config.has(field))
        raise config.error(
            field, f"is {', '.join(kinds)}: a draft layer with one attention part is sized"
        )


def _kinds(
    config: ConfigReader, fields: tuple[str, ...], pattern_field: str, count: int | None
) -> tuple[str, ...] | None:
    listed = read_kinds(config, fields, _WORDS, count=count)
    pattern = config.text(pattern_field)
    if pattern is None:
        return listed
    for index, letter in enumerate(pattern):
        if letter not in _LETTERS:
            raise config.error(
                f"{pattern_field}[{index}]",
                f"is {letter!r}",
                hint=f"this family knows {' '.join(_LETTERS)}",
            )
    kinds = tuple(_LETTERS[letter] for letter in pattern)
    if not kinds or count not in (None, len(kinds)):
        raise config.error(pattern_field, f"has {len(kinds)} letters for {count or 'the'} layers")
    if listed not in (None, kinds):
        raise config.error(pattern_field, f"contradicts {fields[0]}", hint="leave one of them out")
    return kinds


_DEFAULTS: dict[str, object] = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "intermediate_size": 21504,
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "conv_kernel": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "num_experts_per_tok": 2,
}

NEMOTRON_H = Family(
    model_type="nemotron_h",
    architecture="NemotronHForCausalLM",
    defaults=_DEFAULTS,
    read_layers=_read_layers,
    read_feed_forwards=_read_feed_forwards,
    draft_fields=(_DRAFT_FIELD,),
)


def _nested(model_type: str, architecture: str) -> Family:
    return Family(
        model_type=model_type,
        architecture=architecture,
        defaults=_DEFAULTS,
        read_layers=_read_layers,
        read_feed_forwards=_read_feed_forwards,
        text_key="llm_config",
        text_types=(NEMOTRON_H.model_type,),
        draft_fields=(_DRAFT_FIELD,),
    )


NEMOTRON_H_NESTED = (
    _nested("NemotronH_Nano_VL_V2", "NemotronH_Nano_VL_V2"),
    _nested("NemotronH_Nano_Omni_Reasoning_V3", "NemotronH_Nano_Omni_Reasoning_V3"),
    _nested("nemotron_h_omni", "NemotronH_Omni_Reasoning_V3"),
)
"""Models that see or hear: the text model stands in `llm_config`."""
