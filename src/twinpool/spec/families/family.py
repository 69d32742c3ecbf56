"""What a family is: a model type, its config defaults, and how its layers are read.

Knows no family in particular.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from twinpool.spec.config import ConfigReader
from twinpool.spec.layer import LayerSpec

MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One `model_type` of HF configs.

    Attributes:
        model_type: The config's `model_type`.
        architecture: The class that is meant when the config lists no architecture.
        defaults: What absent fields are, as transformers has it.
        read_layers: Reads the layers, first to last.
        text_key: The field that holds the text model's config, where it is nested; else empty.
        text_types: Values of `model_type` that may stand inside `text_key`.
    """

    model_type: str
    architecture: str
    defaults: Mapping[str, object]
    read_layers: Callable[[ConfigReader], tuple[LayerSpec, ...]]
    text_key: str = ""
    text_types: tuple[str, ...] = ()
