"""The default model: a small trained hybrid that lies in the package, for when no model is named.

Knows only where it is. `checkpoint` beside this module is a folder in Hugging Face layout like any
other; its README says what it was trained on.
"""

from __future__ import annotations

from pathlib import Path

from twinpool.errors import ConfigError

# What clients call it.
NAME = "twinpool-8m"


def folder() -> Path:
    """Return the folder of the model.

    Raises:
        ConfigError: If the package was installed without it.
    """
    path = Path(__file__).with_name("checkpoint")
    if not (path / "model.safetensors").is_file():
        raise ConfigError(
            f"the default model is not in {path}",
            hint="install the package again, or name a MODEL folder",
        )
    return path
