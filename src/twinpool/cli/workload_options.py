"""Options that describe a workload, and the value types of counts and bytes; shared by verbs.

Knows no verb.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from twinpool.errors import ConfigError
from twinpool.memory.workload import Workload
from twinpool.settings.fields import Parser, integer
from twinpool.settings.fields import size as byte_size

F = TypeVar("F", bound=Callable[..., Any])


class FromSettings(click.ParamType):  # type: ignore[type-arg]
    """A click type over a settings parser, so that flags of all verbs are read alike.

    Args:
        name: What the value is, for help.
        parse: Reads a value, or raises a `ConfigError`.
    """

    def __init__(self, name: str, parse: Parser) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a value; an error names the flag.

        Raises:
            ConfigError: If the value cannot be used.
        """
        try:
            return self._parse(value)
        except ConfigError as error:
            label = param.opts[0] if param else self.name
            raise ConfigError(f"{label}: {error.message}", hint=error.hint) from None


COUNT = FromSettings("count", integer(1))
COUNT_OR_NONE = FromSettings("count", integer(0))
BYTES = FromSettings("bytes", byte_size)


_WORKLOAD = (
    ("--average-context", COUNT, "TOKENS", "Mean tokens per running request, prompt and answer."),
    ("--sessions", COUNT, "N", "Sessions that return turn after turn."),
    ("--session-context", COUNT, "TOKENS", "Tokens of one session at its longest."),
    ("--running", COUNT, "N", "Requests that run at once; default: all sessions."),
    ("--checkpoints-per-session", COUNT, "N", "Checkpoints kept for an idle session; default: 1."),
    (
        "--margin-slots",
        COUNT_OR_NONE,
        "N",
        "Slots to spare; default: one request's, or with `direct` one more per running request.",
    ),
)


def workload_options(command: F) -> F:
    """Give a command the options that describe a workload.

    Args:
        command: The command; it gets `average_context` and what `workload_of` reads.
    """
    for flag, kind, metavar, help_line in reversed(_WORKLOAD):
        command = click.option(flag, type=kind, metavar=metavar, help=help_line)(command)
    return command


def workload_of(options: dict[str, Any]) -> Workload | None:
    """Read the workload options; None when none of them is given.

    Raises:
        ConfigError: If some are given and `--sessions` or `--session-context` is missing.
    """
    names = ("sessions", "session_context", "running", "checkpoints_per_session", "margin_slots")
    if all(options[name] is None for name in names):
        return None
    missing = [name for name in names[:2] if options[name] is None]
    if missing:
        flags = [f"--{name.replace('_', '-')}" for name in names]
        present = [
            flag for flag, name in zip(flags, names, strict=True) if options[name] is not None
        ]
        raise ConfigError(
            f"{present[0]} needs --{missing[0].replace('_', '-')}",
            hint="a workload is --sessions N --session-context TOKENS [--running N]",
        )
    return Workload(
        sessions=options["sessions"],
        session_context=options["session_context"],
        running=options["running"] or options["sessions"],
        checkpoints_per_session=options["checkpoints_per_session"] or 1,
        margin_slots=options["margin_slots"],
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
