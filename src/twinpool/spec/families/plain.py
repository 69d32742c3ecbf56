"""Plain transformers with grouped queries: full attention in every layer, and no state at all.

Knows the config's fields only. A sliding window that the model would use is refused, because such
layers have a pool of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import (
    FULL,
    WINDOW_HINT,
    read_gqa,
    refuse_listed_windows,
    refuse_window,
)
from twinpool.spec.families.family import MAX_LAYERS, Family, ReadFeedForwards
from twinpool.spec.families.qwen3_next import read_dense
from twinpool.spec.layer import LayerSpec

ReadLayers = Callable[[ConfigReader], tuple[LayerSpec, ...]]


def read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of a config that has no window of its own.

    Args:
        config: The model's fields.

    Returns:
        One spec per layer, all alike.

    Raises:
        UnsupportedModelError: If a field is missing or of a wrong type, or `layer_types` asks for
            something else than full attention.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    refuse_listed_windows(config, count, FULL)
    return (read_gqa(config),) * count


def read_windowed_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of a config whose `sliding_window` holds for all layers unless it is null.

    Raises:
        UnsupportedModelError: If there is a window, or a field is missing or of a wrong type.

    Source: transformers 5.24, `MistralModel`, `MixtralModel`, `Phi3Model`.
    """
    refuse_window(config)
    return read_layers(config)


def read_switched_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Read the layers of a Qwen config, whose window counts only with `use_sliding_window`.

    Raises:
        UnsupportedModelError: If the window would be used, or a field is missing or of a wrong
            type.

    Source: transformers 5.24, `Qwen2Config`, `Qwen3Config`: with no `layer_types`, the layers
    from `max_window_layers` on have the window. A config of theirs that lists full attention
    alone, or has as many such layers as there are, is plain.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    if refuse_listed_windows(config, count, FULL) is None:
        first = config.optional_integer("max_window_layers", low=0)
        if first is None or first < count:
            refuse_switch(config)
    return read_layers(config)


def refuse_switch(config: ConfigReader) -> None:
    """Refuse the window of a Qwen config that is switched on.

    Raises:
        UnsupportedModelError: If `use_sliding_window` is true and the window is not null.
    """
    if config.boolean("use_sliding_window", default=False) and not config.is_null("sliding_window"):
        window = config.integer("sliding_window", low=0)
        raise config.error(
            "use_sliding_window", f"is True, with a window of {window}", hint=WINDOW_HINT
        )


_LLAMA: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
MISTRAL: dict[str, object] = {
    **_LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
_QWEN2: dict[str, object] = {
    **_LLAMA,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


def plain_family(
    model_type: str,
    architecture: str,
    defaults: Mapping[str, object],
    layers: ReadLayers = read_layers,
    feed_forwards: ReadFeedForwards = read_dense,
    *,
    draft_fields: tuple[str, ...] = ("num_nextn_predict_layers", "num_mtp_layers"),
) -> Family:
    """Make a family without state; see `Family` for the arguments."""
    return Family(
        model_type=model_type,
        architecture=architecture,
        defaults=defaults,
        read_layers=layers,
        read_feed_forwards=feed_forwards,
        draft_fields=draft_fields,
    )


PLAIN_FAMILIES: tuple[Family, ...] = (
    plain_family("llama", "LlamaForCausalLM", _LLAMA),
    plain_family("granite", "GraniteForCausalLM", _LLAMA),
    plain_family("olmo2", "Olmo2ForCausalLM", {**_LLAMA, "vocab_size": 50304}),
    plain_family(
        "mistral",
        "MistralForCausalLM",
        {**MISTRAL, "sliding_window": 4096},
        read_windowed_layers,
    ),
    plain_family(
        "ministral3",
        "Ministral3ForCausalLM",
        {
            **MISTRAL,
            "vocab_size": 131072,
            "num_hidden_layers": 34,
            "head_dim": 128,
            "max_position_embeddings": 262144,
        },
        read_windowed_layers,
    ),
    plain_family(
        "phi3",
        "Phi3ForCausalLM",
        {
            **_LLAMA,
            "vocab_size": 32064,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "max_position_embeddings": 4096,
        },
        read_windowed_layers,
    ),
    plain_family("qwen2", "Qwen2ForCausalLM", _QWEN2, read_switched_layers),
    plain_family("qwen3", "Qwen3ForCausalLM", {**_QWEN2, "head_dim": 128}, read_switched_layers),
)
