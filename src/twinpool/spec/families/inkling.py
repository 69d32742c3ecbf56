"""Inkling: short convs beside attention, most of it with a sliding window; known, not sized.

Knows which field stands in the way, and what the model's serving guide asks for.
"""

from __future__ import annotations

from twinpool.spec.config import ConfigReader
from twinpool.spec.families.attention import WINDOW_HINT
from twinpool.spec.families.family import MAX_LAYERS, Family
from twinpool.spec.families.preferences import PREFERENCES
from twinpool.spec.layer import FeedForwardSpec, LayerSpec

_GLOBAL = "hybrid"
_WINDOWED = "hybrid_sliding"
_GLOBAL_EVERY = 6


def read_layers(config: ConfigReader) -> tuple[LayerSpec, ...]:
    """Refuse the layers of an Inkling text config, naming the field that asks for a window.

    Args:
        config: The text model's fields.

    Raises:
        UnsupportedModelError: Always.

    Source: transformers 5.24, `InklingTextConfig`.
    """
    count = config.integer("num_hidden_layers", high=MAX_LAYERS)
    kinds = config.names("layer_types", known=(_GLOBAL, _WINDOWED), count=count)
    local = config.integers("local_layer_ids", low=0, high=count - 1)
    if kinds is not None and _WINDOWED in kinds:
        index = kinds.index(_WINDOWED)
        raise config.error(f"layer_types[{index}]", f"is {_WINDOWED!r}", hint=WINDOW_HINT)
    if kinds is None and (local or (local is None and count % _GLOBAL_EVERY != 1)):
        windowed = len(local) if local else count - count // _GLOBAL_EVERY
        raise config.error(
            "local_layer_ids" if local else "layer_types",
            f"{'gives' if local else 'is absent, which gives'} a sliding window to {windowed} of "
            f"{count} layers",
            hint=WINDOW_HINT,
        )
    raise config.error(
        "conv_kernel_size",
        "asks for four convs in each layer, which are not sized",
        hint="no setting changes that",
    )


def read_feed_forwards(
    config: ConfigReader, layers: tuple[LayerSpec, ...]
) -> tuple[FeedForwardSpec, ...]:
    """Return nothing: the layers were refused before."""
    return ()


_DEFAULTS: dict[str, object] = {"num_hidden_layers": 66}
_PREFERENCE = PREFERENCES["inkling"]

INKLING_TEXT = Family(
    model_type="inkling_text",
    architecture="InklingForCausalLM",
    defaults=_DEFAULTS,
    read_layers=read_layers,
    read_feed_forwards=read_feed_forwards,
    preferences=_PREFERENCE.settings,
    preference_note=_PREFERENCE.note,
)
INKLING = Family(
    model_type="inkling_mm_model",
    architecture="InklingForConditionalGeneration",
    defaults=_DEFAULTS,
    read_layers=read_layers,
    read_feed_forwards=read_feed_forwards,
    text_key="text_config",
    text_types=("inkling_text",),
    preferences=_PREFERENCE.settings,
    preference_note=_PREFERENCE.note,
)
