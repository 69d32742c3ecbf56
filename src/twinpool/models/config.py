"""What a forward pass needs to know of a model beyond its spec, read from a `config.json`.

Knows no weights and no pools. Every field that changes the arithmetic is either understood or an
error that names it; fields without effect are listed, and the rest is told in one log line.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinpool.errors import UnsupportedModelError
from twinpool.models.fields import Fields
from twinpool.spec.families import FAMILIES
from twinpool.spec.model import ModelSpec, parse_model_spec
from twinpool.spec.model import read_config as read_json
from twinpool.units import DType

_log = logging.getLogger(__name__)

# `model_type` to the family whose wiring reads the weights.
_FAMILIES = {
    "qwen3_next": "qwen3_next",
    "qwen3_5": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe": "qwen3_5_moe",
    "qwen3_5_moe_text": "qwen3_5_moe",
}

# Fields of training, of text handling or of other towers: logits do not depend on them.
WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "decoder_start_token_id",
        "id2label",
        "image_token_id",
        "initializer_range",
        "is_encoder_decoder",
        "keys_to_ignore_at_inference",
        "label2id",
        "language_model_only",
        "mtp_num_hidden_layers",
        "mtp_use_dedicated_embeddings",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "sep_token_id",
        "tokenizer_class",
        "transformers_version",
        "unk_token_id",
        "use_cache",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    }
)
# Fields that `spec` reads.
SPEC_FIELDS = frozenset(
    {
        "dtype",
        "torch_dtype",
        "full_attention_interval",
        "head_dim",
        "hidden_size",
        "layer_types",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "mamba_ssm_dtype",
        "max_position_embeddings",
        "model_type",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "tie_word_embeddings",
        "vocab_size",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """A gated MLP.

    Attributes:
        width: Elements between its two linears.
    """

    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """A sparse mixture of gated MLPs, with one shared expert behind a gate.

    Attributes:
        num_experts: Experts of the layer.
        num_chosen: Experts that each token takes.
        width: Elements between the two linears of one expert.
        shared_width: The same of the shared expert.
        is_normalised: True when the weights of the chosen experts are divided by their sum.
    """

    num_experts: int
    num_chosen: int
    width: int
    shared_width: int
    is_normalised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RotarySpec:
    """Rotary positions over the first elements of each head.

    Attributes:
        theta: The base of the frequencies.
        width: Elements that are turned, even; the rest pass.
    """

    theta: float
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Everything that the forward pass of a decoder depends on, weights left out.

    Attributes:
        spec: Layers, sizes and dtypes.
        family: `qwen3_next`, `qwen3_5` or `qwen3_5_moe`: which wiring reads the weights.
        norm_eps: Added to the mean square under every norm's root.
        mlps: What follows the attention of each layer.
        rotary: Positions of the full-attention layers.
        eos_token_ids: Tokens that end a sequence, as the config names them.
    """

    spec: ModelSpec
    family: str
    norm_eps: float
    mlps: tuple[DenseSpec | MoeSpec, ...]
    rotary: RotarySpec
    eos_token_ids: tuple[int, ...]


def read_config(folder: Path) -> DecoderConfig:
    """Read `config.json` of a checkpoint folder.

    Raises:
        ConfigError: If the file is missing or not JSON.
        UnsupportedModelError: If a field is not understood; the message names it.
    """
    return parse_config(read_json(folder))


def parse_config(loaded: dict[str, Any]) -> DecoderConfig:
    """Turn a parsed `config.json` into a `DecoderConfig`.

    Args:
        loaded: The whole object; of a multimodal config the text part is taken.

    Raises:
        UnsupportedModelError: If a field is not understood; the message names it.
    """
    spec = parse_model_spec(loaded)
    family = _FAMILIES.get(spec.model_type)
    if family is None:
        raise UnsupportedModelError(
            f"config field model_type is {spec.model_type!r}, a family without a forward pass",
            hint=f"twinpool serves {', '.join(_FAMILIES)}",
        )
    outer = Fields(loaded)
    text = outer
    if key := FAMILIES[spec.model_type].text_key:
        text = Fields(outer.take(key, dict), within=f"{key}.")
    _refuse_what_is_not_understood(outer, text)
    if spec.state_dtype is not DType.FLOAT32:
        why = "recurrent states are kept in float32; remove the field"
        raise text.wrong("mamba_ssm_dtype", spec.state_dtype.value, why)
    config = DecoderConfig(
        spec=spec,
        family=family,
        norm_eps=text.positive("rms_norm_eps", 1e-6),
        mlps=_mlps(family, text, len(spec.layers)),
        rotary=_rotary(text),
        eos_token_ids=_eos(outer, text),
    )
    unknown = outer.unread(WITHOUT_EFFECT | SPEC_FIELDS) if text is not outer else []
    unknown += text.unread(WITHOUT_EFFECT | SPEC_FIELDS)
    if unknown:
        _log.warning("config fields that are not known and not used: %s", ", ".join(unknown))
    return config


def _refuse_what_is_not_understood(outer: Fields, text: Fields) -> None:
    """Check the fields of which one value alone is supported."""
    for fields in (outer, text):
        for name in ("quantization_config", "compression_config"):
            fields.only(name, None, "quantized checkpoints are not supported; take the bf16 one")
    text.only("hidden_act", "silu", "other activations are not supported")
    text.only("attention_bias", False, "projections with a bias are not supported")
    text.only("attn_output_gate", True, "attention without an output gate is not supported")
    text.only("sliding_window", None, "sliding windows are not supported")
    text.only("use_sliding_window", False, "sliding windows are not supported")


def _mlps(family: str, text: Fields, num_layers: int) -> tuple[DenseSpec | MoeSpec, ...]:
    """Return what follows the attention of every layer."""
    dense_layers = text.take("mlp_only_layers", list, None) or []
    step = text.count("decoder_sparse_step", 1)
    if family == "qwen3_5":
        return (DenseSpec(width=text.count("intermediate_size")),) * num_layers
    num_experts = text.count("num_experts", minimum=0 if family == "qwen3_next" else 1)
    if family == "qwen3_5_moe" and (dense_layers or step != 1):
        raise text.wrong("mlp_only_layers", dense_layers, "every layer of this family is sparse")
    is_sparse = [
        num_experts > 0 and layer not in dense_layers and (layer + 1) % step == 0
        for layer in range(num_layers)
    ]
    dense = None
    if not all(is_sparse):
        dense = DenseSpec(width=text.count("intermediate_size"))
    elif family == "qwen3_next":
        text.take("intermediate_size", int, 0)
    sparse = _moe(family, text, num_experts) if any(is_sparse) else None
    chosen = (sparse if flag else dense for flag in is_sparse)
    return tuple(spec for spec in chosen if spec is not None)


def _moe(family: str, text: Fields, num_experts: int) -> MoeSpec:
    """Return the spec of the sparse layers."""
    num_chosen = text.count("num_experts_per_tok")
    if num_chosen > num_experts:
        raise text.wrong("num_experts_per_tok", num_chosen, f"num_experts is {num_experts}")
    normalise = text.take("norm_topk_prob", bool, True)
    if family == "qwen3_5_moe" and not normalise:
        raise text.wrong("norm_topk_prob", normalise, "this family always normalises")
    return MoeSpec(
        num_experts=num_experts,
        num_chosen=num_chosen,
        width=text.count("moe_intermediate_size"),
        shared_width=text.count("shared_expert_intermediate_size"),
        is_normalised=normalise,
    )


def _rotary(text: Fields) -> RotarySpec:
    """Read positions from `rope_parameters` (new form) or from `rope_theta` and its like (old)."""
    rope = text.take("rope_parameters", dict, None) or {}
    scaling = text.take("rope_scaling", dict, None) or {}
    if rope and scaling and rope != scaling:
        raise text.wrong("rope_scaling", scaling, "rope_parameters is there too and differs")
    inner = Fields({**rope, **scaling}, within="rope_parameters.")
    theta = text.positive("rope_theta", 10000.0)
    fraction = text.positive("partial_rotary_factor", 0.25)
    for name in ("rope_type", "type"):
        inner.only(name, "default", "scaled positions are not supported")
    theta = inner.positive("rope_theta", theta)
    fraction = inner.positive("partial_rotary_factor", fraction)
    # Text alone has equal positions in all three grids, so sections change nothing.
    rest = inner.unread(frozenset({"mrope_section", "mrope_interleaved"}))
    if rest:
        raise UnsupportedModelError(
            f"config field {rest[0]} is not understood", hint="only default positions are supported"
        )
    width = int(text.count("head_dim", 256) * fraction)
    if fraction > 1 or width < 2 or width % 2:
        raise text.wrong("partial_rotary_factor", fraction, f"{width} elements cannot be turned")
    return RotarySpec(theta=theta, width=width)


def _eos(outer: Fields, text: Fields) -> tuple[int, ...]:
    """Return the end tokens that the config names."""
    for fields in (outer, text):
        value = fields.take("eos_token_id", (int, list), None)
        if value is not None:
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(token, int) and token >= 0 for token in values):
                raise fields.wrong("eos_token_id", value, "a token id or a list of them")
            return tuple(values)
    return ()
