"""The end tokens of a checkpoint folder whose tokenizer is not loaded.

Knows no tokenizer: without one, what the model's configs name is all there is.
"""

from __future__ import annotations

from pathlib import Path

from twinpool.engine.tokenizer_files import read_end_token_ids


def read_end_tokens(folder: Path) -> tuple[int, ...]:
    """Return the end tokens that `generation_config.json` or `config.json` name.

    Args:
        folder: The checkpoint.

    Raises:
        ConfigError: If a file is there and cannot be used.
    """
    return read_end_token_ids(folder)
