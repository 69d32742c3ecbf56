"""Settings files: a flat TOML or JSON table of setting names; knows no setting.

pool_memory = "256MiB"
mamba_full_memory_ratio = 0.9
"""

from __future__ import annotations

import json
import tomllib
from decimal import Decimal
from pathlib import Path

from twinpool.errors import ConfigError

MAX_FILE_BYTES = 1 << 20


def read_settings_file(path: Path) -> dict[str, object]:
    """Read a settings file.

    Args:
        path: A `.toml` or `.json` file.

    Returns:
        Names and values as written; decimal numbers stay exact.

    Raises:
        ConfigError: If it cannot be read, is too large, or is not a flat table.
    """
    text = _read_text(path)
    try:
        if path.suffix == ".json":
            table: object = json.loads(text, parse_float=Decimal)
        elif path.suffix == ".toml":
            table = tomllib.loads(text, parse_float=Decimal)
        else:
            raise ConfigError(f"{path} is neither .toml nor .json", hint="rename the file")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path} holds a {type(table).__name__}, not a table of settings")
    return table


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
        return raw.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from None
