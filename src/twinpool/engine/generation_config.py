"""Reading `generation_config.json` of a checkpoint: the sampling defaults it asks for.

Knows the fields that serving uses and ignores the rest; a field of a wrong type is an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinpool.engine.protocol import GenerationDefaults
from twinpool.errors import ConfigError

# Field, least value, greatest value; those are what a request may ask for too.
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 1e6),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, 1e6),
}


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """Read the sampling defaults that a model asks for.

    Args:
        folder: The checkpoint.

    Returns:
        Values of the file; all None where there is no file. `do_sample: false` means greedy.

    Raises:
        ConfigError: If the file is no JSON object or a value is out of range.
    """
    config = _read_object(folder / "generation_config.json")
    values: dict[str, Any] = {}
    for name, (low, high) in _RANGES.items():
        value = config.get(name)
        if value is not None:
            values[name] = _number(value, name, low, high)
    if config.get("do_sample") is False and config:
        values["temperature"] = 0.0
    if "top_k" in values:
        values["top_k"] = int(values["top_k"])
    return GenerationDefaults(**values)


def _read_object(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}") from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path.name} is not a JSON object")
    return value


def _number(value: object, name: str, low: float, high: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:  # type: ignore[arg-type,operator]
        raise ConfigError(
            f"generation_config.json: {name} is {value!r}",
            hint=f"use a number from {low:g} to {high:g}",
        )
    return value  # type: ignore[return-value]
