"""Whether the options of a load go together: open loop, or lanes; nothing given is passed over.

Knows no trace and no model.
"""

from __future__ import annotations

from typing import Any

from twinpool.errors import ConfigError

_OF_LANES = ("seed", "gap_cap", "recycle")


def check_loop(options: dict[str, Any]) -> None:
    """Refuse options that would have no effect, or no end.

    Args:
        options: Click's values by option name.

    Raises:
        ConfigError: If an option does not go with the others; names both.
    """
    if options["duration"] == 0:
        raise ConfigError(
            "--duration is 0, in which nothing is served",
            hint="use seconds above 0, or leave it out to serve all",
        )
    has_lanes = options["lanes"] is not None or options["lanes_file"] is not None
    if not has_lanes:
        for name in _OF_LANES:
            # `is`: a gap of 0 seconds was given as well.
            if options[name] is not None and options[name] is not False:
                raise ConfigError(
                    f"--{name.replace('_', '-')} is for lanes, and without them requests are sent "
                    "at their recorded times",
                    hint="add --lanes N or --lanes-file FILE, or leave it out",
                )
        return
    if options["subagents"]:
        raise ConfigError(
            "--subagents is for the open loop, and lanes send no sessions that others started",
            hint="leave out --subagents, or the lanes",
        )
    if options["lanes_file"] is not None and options["seed"] is not None:
        raise ConfigError(
            "--lanes-file says where lanes begin, and --seed would draw it", hint="give one of them"
        )
    if options["recycle"] and options["duration"] is None:
        raise ConfigError(
            "--recycle starts over for ever", hint="say when to end: --duration SECONDS"
        )
