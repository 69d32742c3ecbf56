"""The MODEL argument of verbs that need a model's shapes: a config, a folder or a catalog name.

Reads `config.json` and the sizes of weight files; knows no weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from twinpool.errors import ConfigError
from twinpool.settings.values import Source, Value
from twinpool.spec.catalog import find_model
from twinpool.spec.model import ModelSpec, parse_model_spec, read_model_spec
from twinpool.units import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model that the command line named.

    Attributes:
        name: What to call it: the catalog's name, or the folder's.
        path: The path that was given; None for a catalog name.
        spec: Its shapes.
        weights: Bytes of its weights.
        source: Where its facts come from.
    """

    name: str
    path: Path | None
    spec: ModelSpec
    weights: Value[int]
    source: str


def read_model(argument: str) -> NamedModel:
    """Find a model by path or by catalog name.

    Args:
        argument: A `config.json`, a folder with one in it, or a name in the catalog.

    Raises:
        ConfigError: If it is neither a path that exists nor a known name.
        UnsupportedModelError: If the config is not understood.
    """
    path = Path(argument)
    if path.exists() or _looks_like_a_path(argument):
        return _from_path(path)
    try:
        entry = find_model(argument)
    except ConfigError as error:
        raise ConfigError(
            f"no file, folder or catalog model is called {argument!r}",
            hint=error.hint or "give a config.json, a checkpoint folder, or a name from --models",
        ) from None
    spec = parse_model_spec(entry.config)
    return NamedModel(
        name=entry.name,
        path=None,
        spec=spec,
        weights=Value(entry.weights_bytes, Source.CATALOG, entry.source),
        source=entry.source,
    )


def _looks_like_a_path(argument: str) -> bool:
    return argument.endswith(".json") or argument.startswith((".", "/", "~"))


def _from_path(path: Path) -> NamedModel:
    spec = read_model_spec(path)
    folder = path if path.is_dir() else path.parent
    name = folder.resolve().name if path.name == "config.json" or path.is_dir() else path.stem
    return NamedModel(
        name=name, path=path, spec=spec, weights=_weights(path, spec), source=str(path)
    )


def _weights(path: Path, spec: ModelSpec) -> Value[int]:
    """Add up the weight files of a folder; without any, count the weights of the config."""
    if path.is_dir():
        sizes = [file.stat().st_size for file in sorted(path.glob("*.safetensors"))]
        if sizes:
            return Value(sum(sizes), Source.MEASURED, f"{len(sizes)} safetensors files")
    dtype = spec.dtype if spec.has_dtype else DType.BFLOAT16
    return Value(
        spec.parameters * dtype.itemsize,
        Source.DERIVED,
        f"{spec.parameters / 1e9:.2f} billion weights counted from the config, {dtype.value}",
    )
