"""How the real engine process is started, and how its tokenizer is loaded into the front.

The only place of the front that knows which classes do text; tests hand in others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from twinpool.engine.chat import ChatRenderer
from twinpool.engine.launch import EngineLaunch
from twinpool.engine.protocol import EngineFacts, EngineSettings
from twinpool.engine.tokenizer import Tokenizer
from twinpool.engine.tokenizer_files import DEFAULT_TEMPLATE
from twinpool.server.service import TextTools


def engine_launch(
    flags: Mapping[str, object], file: Mapping[str, object] | None = None
) -> EngineLaunch:
    """Return how to start the engine.

    Args:
        flags: What the command line set, by setting name, without secrets.
        file: What a settings file set.
    """
    settings = EngineSettings(flags=dict(flags), file=dict(file or {}))
    return EngineLaunch(settings=msgspec.msgpack.encode(settings))


def load_text(facts: EngineFacts) -> TextTools | None:
    """Load the tokenizer and the chat template of a model.

    Returns:
        None when the model has no tokenizer.

    Raises:
        ConfigError: If its files cannot be read.
    """
    if facts.tokenizer_dir is None:
        return None
    tokenizer = Tokenizer.from_folder(Path(facts.tokenizer_dir))
    # A base model has none, and serves completions all the same.
    has_template = DEFAULT_TEMPLATE in tokenizer.chat_templates
    return TextTools(tokenizer, ChatRenderer(tokenizer) if has_template else None)
