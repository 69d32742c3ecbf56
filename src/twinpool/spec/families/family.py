"""What a family is: a model type, its config defaults, and how its layers are read.

Knows no family in particular.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from twinpool.spec.config import ConfigReader
from twinpool.spec.layer import FeedForwardSpec, LayerSpec, OtherWeights

MAX_LAYERS = 4096

ReadFeedForwards = Callable[[ConfigReader, tuple[LayerSpec, ...]], tuple[FeedForwardSpec, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One `model_type` of HF configs.

    Attributes:
        model_type: The config's `model_type`.
        architecture: The class that is meant when the config lists no architecture.
        defaults: What absent fields are, as transformers has it.
        read_layers: Reads the mixers, first layer to last.
        read_feed_forwards: Reads the feed-forward of each layer, as many as there are layers; a
            layer without one has an empty spec.
        read_other_weights: Reads what the specs of single layers get wrong; None: nothing.
        text_key: The field that holds the text model's config, where it is nested; else empty.
        text_types: Values of `model_type` that may stand inside `text_key`.
        is_flat_allowed: True when a config without `text_key` has the text fields at the top.
        context_fields: Fields that may hold the longest sequence, the first that is there counts.
        tie_fields: Fields that may say whether the head is the embedding table, likewise.
        draft_fields: Fields that may hold the number of layers that predict further tokens.
        preferences: Settings that the model's own serving guide asks for, by setting name.
        preference_note: Where the preferences come from, and what to mind.
    """

    model_type: str
    architecture: str
    defaults: Mapping[str, object]
    read_layers: Callable[[ConfigReader], tuple[LayerSpec, ...]]
    read_feed_forwards: ReadFeedForwards
    read_other_weights: Callable[[ConfigReader, tuple[LayerSpec, ...]], OtherWeights] | None = None
    text_key: str = ""
    text_types: tuple[str, ...] = ()
    is_flat_allowed: bool = False
    context_fields: tuple[str, ...] = ("max_position_embeddings",)
    tie_fields: tuple[str, ...] = ("tie_word_embeddings",)
    draft_fields: tuple[str, ...] = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
    preferences: Mapping[str, object] = field(default_factory=dict)
    preference_note: str = ""
