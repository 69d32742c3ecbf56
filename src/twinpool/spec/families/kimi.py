"""Kimi-Linear and Kimi-K3: Kimi Delta Attention in most layers, latent attention in the others.

Knows the config's fields only, in the layout that Moonshot publishes and in that of transformers;
GLM-5.3-Flash shares the reading of the delta layers.
"""

from __future__ import annotations

from dataclasses import replace

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import FULL, LINEAR, read_mla
from twinpool.spec.families.experts import ExpertFields, read_dense_then_sparse
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.layer import FeedForwardSpec, KimiDeltaSpec, LayerSpec

PUBLISHED = "linear_attn_config"
_EXPERTS = ExpertFields(
    routed=("num_experts", "num_local_experts"),
    taken=("num_experts_per_token", "num_experts_per_tok"),
    shared=("num_shared_experts", "n_shared_experts"),
)


def read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of a Kimi-Linear text config.

    Args:
        config: The text model's fields.

    Returns:
        One spec per layer, first to last.

    Raises:
        UnsupportedModelError: If a field is missing, of a wrong type, or fits no other field.

    Source: transformers 5.24, `KimiLinearConfig`; the reference engine's `KimiLinearConfig`.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    kinds = read_kinds(config, count, known=(LINEAR, FULL), first=1) or tuple(
        FULL if index and index % 4 == 0 else LINEAR for index in range(count)
    )
    full = read_mla(config)
    if config.boolean("mla_use_output_gate", default=False):
        full = replace(full, gate_width=full.value_width)
    linear = read_kimi_delta(config)
    return tuple(linear if kind == LINEAR else full for kind in kinds)


def read_kinds(
    config: ConfigReader, count: int, *, known: tuple[str, ...], first: int
) -> tuple[str, ...] | None:
    """Read which layers are linear: `layer_types`, or the lists of the published layout.

    Args:
        config: The text model's fields.
        count: Layers of the model.
        known: The names that may stand in `layer_types`.
        first: The number that the published lists give the first layer.

    Returns:
        A name per layer, or None when the config has neither.

    Raises:
        UnsupportedModelError: If the lists leave a layer out or name it twice, or contradict
            `layer_types`.
    """
    named = config.names("layer_types", known=known, count=count)
    listed = _published_kinds(config, count, first)
    if named is None or listed is None:
        return named or listed
    for index, (name, other) in enumerate(zip(named, listed, strict=True)):
        if (name == LINEAR) != (other == LINEAR):
            raise config.error(
                f"layer_types[{index}]",
                f"is {name!r}, but {PUBLISHED} has layer {index + first} as {other!r}",
            )
    return named


def _published_kinds(config: ConfigReader, count: int, first: int) -> tuple[str, ...] | None:
    inner = config.inside(PUBLISHED, {})
    if inner is None:
        return None
    low, high = first, first + count - 1
    full = inner.integers("full_attn_layers", low=low, high=high)
    linear = inner.integers("kda_layers", low=low, high=high)
    if full is None and linear is None:
        return None
    if full is None or linear is None:
        raise inner.error("kda_layers" if full is not None else "full_attn_layers", "is missing")
    kinds: dict[int, str] = {}
    for field, kind, numbers in (
        ("full_attn_layers", FULL, full),
        ("kda_layers", LINEAR, linear),
    ):
        for number in numbers:
            if number in kinds:
                raise inner.error(field, f"names layer {number}, which is named before")
            kinds[number] = kind
    missing = [number for number in range(low, high + 1) if number not in kinds]
    if missing:
        raise inner.error("kda_layers", f"leaves out layer {missing[0]} of {low} to {high}")
    return tuple(kinds[number] for number in range(low, high + 1))


def read_kimi_delta(config: ConfigReader) -> KimiDeltaSpec:
    """Read the delta layers: the published object's fields where it has them, else the flat ones.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.
    """
    inner = config.inside(PUBLISHED, {})

    def size(published: str, flat: str) -> int:
        if inner is not None and inner.has(published):
            return inner.integer(published)
        return config.integer(flat)

    full_gate = inner is not None and inner.boolean("use_full_rank_gate", default=False)
    return KimiDeltaSpec(
        num_heads=size("num_heads", "linear_num_heads"),
        width=size("head_dim", "linear_head_dim"),
        conv_width=size("short_conv_kernel_size", "linear_conv_kernel_dim"),
        num_full_gates=1 if full_gate else 0,
    )


def read_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Read the feed-forwards: dense first, then experts, which may work in a narrower stream.

    Raises:
        UnsupportedModelError: If a field is missing or out of range.

    Source: transformers 5.24, `KimiLinearConfig`; the reference engine's Kimi-K3 for
    `routed_expert_hidden_size`.
    """
    narrow = config.optional_integer("routed_expert_hidden_size")
    sparse = _EXPERTS.read(config, expert_input_width=narrow)
    return read_dense_then_sparse(config, layers, sparse)


_DEFAULTS: dict[str, object] = {
    "vocab_size": 163840,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_shared_experts": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "qk_nope_head_dim": 128,
    "num_experts_per_token": 8,
    "num_experts": 256,
    "model_max_length": 1048576,
    "linear_head_dim": 128,
    "linear_num_heads": 32,
    "linear_conv_kernel_dim": 4,
    "first_k_dense_replace": 1,
}
_CONTEXT = ("model_max_length", "max_position_embeddings")

KIMI_LINEAR = Family(
    model_type="kimi_linear",
    architecture="KimiLinearForCausalLM",
    defaults=_DEFAULTS,
    read_layers=read_layers,
    read_feed_forwards=read_feed_forwards,
    context_fields=_CONTEXT,
)
KIMI_K3 = Family(
    model_type="kimi_k3",
    architecture="KimiK3ForConditionalGeneration",
    defaults=_DEFAULTS,
    read_layers=read_layers,
    read_feed_forwards=read_feed_forwards,
    text_key="text_config",
    text_types=("kimi_linear",),
    context_fields=_CONTEXT,
)
