"""`twinpool serve [MODEL]`: an OpenAI-compatible server on a state pool and a KV pool.

Turns flags into settings and starts the front; knows no route and no tensor.
"""

from __future__ import annotations

import os
from typing import Any

import click

from twinpool.cli.options import given, settings_options
from twinpool.settings.memory import MemorySettings
from twinpool.settings.model import ModelSettings
from twinpool.settings.resolve import SETTINGS, resolve
from twinpool.settings.scheduling import SchedulingSettings
from twinpool.settings.server import ServerSettings

KEY_VARIABLE = "TWINPOOL_API_KEY"


@click.command()
@click.argument("model_path", metavar="[MODEL]", required=False)
@settings_options(ModelSettings, MemorySettings, SchedulingSettings, ServerSettings)
def serve(**options: Any) -> None:
    """Serve a model over HTTP.

    MODEL is a checkpoint folder in Hugging Face layout. Without one, the small model
    in the package is served; it writes sentences and knows nothing. Keys can also be given in the
    variable TWINPOOL_API_KEY, separated by spaces.
    """
    flags = given(options)
    keys = os.environ.get(KEY_VARIABLE, "").split()
    if keys and "api_keys" not in flags:
        flags["api_keys"] = tuple(keys)
    resolved = resolve(flags)
    # Here and not above: `--help` and bad flags need no server stack.
    from twinpool.server.console import Console
    from twinpool.server.launch import engine_launch, load_text
    from twinpool.server.run import serve as run_server

    shared = {name: value for name, value in flags.items() if not SETTINGS[name].is_secret}
    run_server(resolved, engine_launch(shared), load_text=load_text, console=Console())
