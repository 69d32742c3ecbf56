"""The table of known models and the look-up by name.

Knows nothing of layers: a config is a mapping that `spec.model` reads. The facts are in
`models.json`; each entry says where its own come from.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType
from typing import Any

from twinpool.errors import ConfigError

_NEAREST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """One published model.

    Attributes:
        name: Organisation and name, for example `Qwen/Qwen3.5-27B`.
        aliases: Other names of the same shapes and size.
        config: What the published `config.json` says of the geometry; other fields are left out.
        parameters: Weights of the language model. Counted from that config with the model's own
            code, unless the source says otherwise; vision towers and draft layers are left out.
        active_parameters: Weights that one token goes through: the embedding table and idle
            experts left out, a block that runs several times counted each time.
        weights_bytes: Bytes of the checkpoint; all that is in it where `weights_are_published`,
            else the language model alone at the width of `weights_dtype`.
        weights_dtype: How the checkpoint stores its weights, in words: `bfloat16`, `fp8`.
        weights_are_published: True when `weights_bytes` follows from the published checkpoint,
            false when it is `parameters` times the width of a weight.
        source: Where the config and the sizes come from.
    """

    name: str
    aliases: tuple[str, ...] = ()
    config: Mapping[str, object] = field(compare=False)
    parameters: int
    active_parameters: int
    weights_bytes: int
    weights_dtype: str
    weights_are_published: bool
    source: str


def find_model(name: str) -> CatalogModel:
    """Return a model of the catalog by name.

    Args:
        name: With or without the organisation, in any case: `Qwen/Qwen3.5-27B`, `qwen3.5-27b`.

    Raises:
        ConfigError: If the catalog has no such model; the hint gives the nearest names.
    """
    key = name.strip().lower()
    found = _BY_NAME.get(key)
    if found is not None:
        return found
    close = difflib.get_close_matches(key, _BY_NAME, n=4 * _NEAREST, cutoff=0.5)
    # Several spellings may lead to one model, which is to be named once.
    near = list(dict.fromkeys(_BY_NAME[spelling].name for spelling in close))[:_NEAREST]
    raise ConfigError(
        f"model {name[:80]!r} is not one of the {len(CATALOG)} in the catalog",
        hint=(f"nearest: {', '.join(near)}; or " if near else "")
        + "give the model's config.json or its folder",
    )


def _model(entry: dict[str, Any]) -> CatalogModel:
    facts = {
        **entry,
        "aliases": tuple(entry["aliases"]),
        "config": MappingProxyType(entry["config"]),
    }
    return CatalogModel(**facts)


def _load() -> tuple[CatalogModel, ...]:
    table = resources.files(__package__).joinpath("models.json").read_text(encoding="utf-8")
    return tuple(_model(entry) for entry in json.loads(table))


def _spellings(model: CatalogModel) -> list[str]:
    """Return the names of a model in lower case, with and without the organisation."""
    names = [name.lower() for name in (model.name, *model.aliases)]
    return names + [name.partition("/")[2] for name in names]


CATALOG = _load()
_BY_NAME = {spelling: model for model in CATALOG for spelling in _spellings(model)}
