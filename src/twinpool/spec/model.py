"""The model spec: what a `config.json` says of a model's layers, and the reader of such files.

Knows no bytes (`spec.geometry` does) and no weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from twinpool.errors import ConfigError, UnsupportedModelError
from twinpool.spec.config import ConfigReader
from twinpool.spec.families import FAMILIES, Family
from twinpool.spec.layer import (
    FeedForwardSpec,
    FullSpec,
    LayerSpec,
    OtherWeights,
    full_of,
    linear_of,
)
from twinpool.units import DType

DTYPE_FIELDS = ("dtype", "torch_dtype")
STATE_DTYPE_FIELDS = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
MAX_DRAFT_LAYERS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What sizing, pools and models need to know of one model.

    Attributes:
        model_type: The config's `model_type`, for example `qwen3_5_moe`.
        architecture: The first of its `architectures`, or the family's own.
        layers: One spec per layer, first to last.
        hidden_size: Width of the residual stream.
        vocab_size: Rows of the embedding table.
        context_length: Longest sequence the config allows, in tokens.
        dtype: Dtype of the weights; float32 when the config does not say.
        state_dtype: Dtype of recurrent states: `mamba_ssm_dtype`, else float32.
        has_dtype: False when the config does not say the dtype of the weights.
        tie_word_embeddings: True when the output head is the embedding table.
        feed_forwards: One feed-forward per layer, first to last.
        other_weights: What the specs of single layers get wrong: shared and additional weights.
        draft_layers: Full attention of the layers that predict further tokens, for speculation.
        preferences: Settings that the model's serving guide asks for, by setting name.
        preference_note: Where the preferences come from, and what to mind.
        assumed: Fields that the config lacks and that were taken from the family's defaults.
    """

    model_type: str
    architecture: str
    layers: tuple[LayerSpec, ...]
    hidden_size: int
    vocab_size: int
    context_length: int
    dtype: DType
    state_dtype: DType = DType.FLOAT32
    has_dtype: bool = True
    tie_word_embeddings: bool = False
    feed_forwards: tuple[FeedForwardSpec, ...] = ()
    other_weights: OtherWeights = field(default_factory=OtherWeights)
    draft_layers: tuple[FullSpec, ...] = ()
    preferences: Mapping[str, object] = field(default_factory=dict, compare=False)
    preference_note: str = field(default="", compare=False)
    assumed: tuple[str, ...] = field(default=(), compare=False)

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of the layers with full attention, rising."""
        return tuple(i for i, layer in enumerate(self.layers) if full_of(layer) is not None)

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of the layers with linear attention, rising; empty for a plain transformer."""
        return tuple(i for i, layer in enumerate(self.layers) if linear_of(layer) is not None)

    @property
    def parameters(self) -> int:
        """Weights of the model: tables, mixers and feed-forwards; norms and biases are left out."""
        tables = self.hidden_size * self.vocab_size * (1 if self.tie_word_embeddings else 2)
        return (
            tables
            + self._mixers()
            + sum(ff.parameters(self.hidden_size) for ff in self.feed_forwards)
            + self.other_weights.extra
            - self.other_weights.repeated
        )

    @property
    def active_parameters(self) -> int:
        """Weights that one token goes through: all but the embedding table and idle experts."""
        head = self.hidden_size * self.vocab_size
        active = sum(ff.active_parameters(self.hidden_size) for ff in self.feed_forwards)
        return head + self._mixers() + active + self.other_weights.extra

    def _mixers(self) -> int:
        mixers = [mixer for layer in self.layers for mixer in (full_of(layer), linear_of(layer))]
        return sum(mixer.parameters(self.hidden_size) for mixer in mixers if mixer)


def parse_model_spec(config: Mapping[str, object]) -> ModelSpec:
    """Read a model spec from a parsed `config.json`.

    Args:
        config: The config's top object; never changed.

    Returns:
        The spec; `assumed` names the fields that were filled from the family's defaults.

    Raises:
        UnsupportedModelError: If the model type is not known, or a field is not understood; the
            message names the field.
    """
    family = _family(config)
    reader = _text_reader(config, family)
    layers = family.read_layers(reader)
    other = family.read_other_weights
    return ModelSpec(
        model_type=family.model_type,
        architecture=_architecture(config, family),
        layers=layers,
        hidden_size=reader.integer("hidden_size"),
        vocab_size=reader.integer("vocab_size"),
        context_length=reader.integer(_first(reader, family.context_fields)),
        dtype=reader.dtype(DTYPE_FIELDS, DType.FLOAT32),
        state_dtype=reader.dtype(STATE_DTYPE_FIELDS, DType.FLOAT32),
        has_dtype=reader.has_any(DTYPE_FIELDS),
        tie_word_embeddings=_is_tied(reader, family),
        feed_forwards=family.read_feed_forwards(reader, layers),
        other_weights=other(reader, layers) if other else OtherWeights(),
        draft_layers=_draft_layers(reader, family, layers),
        preferences=family.preferences,
        preference_note=family.preference_note,
        assumed=reader.assumed,
    )


def read_model_spec(path: Path) -> ModelSpec:
    """Read a model spec from a checkpoint folder or a config file.

    Args:
        path: A folder with a `config.json` in it, or the JSON file itself.

    Raises:
        ConfigError: If there is no such file, it cannot be read, or it is not a JSON object.
        UnsupportedModelError: If the config is not understood.
    """
    return parse_model_spec(read_config(path))


def read_config(path: Path) -> dict[str, object]:
    """Read the top object of a `config.json`.

    Args:
        path: A folder with a `config.json` in it, or the JSON file itself.

    Raises:
        ConfigError: If there is no such file, it cannot be read, or it is not a JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(
            f"{file} does not exist", hint="give a checkpoint folder or its config.json"
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}:{error.colno} is not JSON: {error.msg}") from None
    except (RecursionError, ValueError):
        raise ConfigError(f"{file} is not JSON that can be read: too deep or too long") from None
    if not isinstance(config, dict):
        raise ConfigError(f"{file} holds a JSON {type(config).__name__}, not an object")
    return config


def _family(config: Mapping[str, object]) -> Family:
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UnsupportedModelError(
            "config field model_type is missing"
            if model_type is None
            else f"config field model_type is a {type(model_type).__name__}, not a string",
            hint="give the config.json of a language model in Hugging Face layout",
        )
    family = FAMILIES.get(model_type)
    if family is None:
        raise UnsupportedModelError(
            f"config field model_type is {model_type!r}, a family that is not supported",
            hint=f"supported: {', '.join(sorted(FAMILIES))}",
        )
    return family


def _text_reader(config: Mapping[str, object], family: Family) -> ConfigReader:
    if not family.text_key:
        return ConfigReader(config, family.defaults)
    text = config.get(family.text_key)
    if text is None and family.is_flat_allowed:
        return ConfigReader(config, family.defaults)
    if not isinstance(text, Mapping):
        problem = "is missing" if text is None else f"is a {type(text).__name__}, not an object"
        raise UnsupportedModelError(
            f"config field {family.text_key} {problem}",
            hint=f"a {family.model_type} config nests the text model there; a flat one has the "
            f"model_type {' or '.join(family.text_types)}",
        )
    inner = text.get("model_type")
    if inner is not None and inner not in family.text_types:
        raise UnsupportedModelError(
            f"config field {family.text_key}.model_type is {inner!r}",
            hint=f"a {family.model_type} config holds {' or '.join(family.text_types)}",
        )
    return ConfigReader(text, family.defaults, where=f"{family.text_key}.", outer=config)


def _first(reader: ConfigReader, names: tuple[str, ...]) -> str:
    """Return the first field that the config has; when it has none, the first of all."""
    return next((name for name in names if reader.has(name)), names[0])


def _is_tied(reader: ConfigReader, family: Family) -> bool:
    given = (name for name in family.tie_fields if reader.has_any((name,)))
    default = bool(family.defaults.get("tie_word_embeddings", False))
    return reader.boolean(next(given, family.tie_fields[0]), default=default)


def _draft_layers(
    reader: ConfigReader, family: Family, layers: tuple[LayerSpec, ...]
) -> tuple[FullSpec, ...]:
    """Return the attention of the layers that predict further tokens: that of the last full one."""
    name = next((name for name in family.draft_fields if reader.has(name)), None)
    count = reader.integer(name, low=0, high=MAX_DRAFT_LAYERS) if name else 0
    full = [mixer for mixer in map(full_of, layers) if mixer is not None]
    return (full[-1],) * count if full else ()


def _architecture(config: Mapping[str, object], family: Family) -> str:
    listed = config.get("architectures")
    if listed is None or listed == []:
        return family.architecture
    if not isinstance(listed, list) or not isinstance(listed[0], str):
        raise UnsupportedModelError("config field architectures is not a list of names")
    return listed[0]
