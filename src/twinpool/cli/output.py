"""What the command line prints: data on stdout, `error: … / hint: …` on stderr, exit codes.

Knows no verb.
"""

from __future__ import annotations

import enum
import sys

import click

from twinpool.errors import ConfigError, TwinpoolError


class ExitCode(enum.IntEnum):
    """What the shell is told."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130


def print_error(message: str, hint: str = "") -> None:
    """Print an error, and what to change, on stderr.

    Args:
        message: What happened, with the numbers.
        hint: What to change; empty when there is nothing to change.
    """
    click.echo(f"error: {message}", file=sys.stderr)
    if hint:
        click.echo(f"hint: {hint}", file=sys.stderr)


def exit_code_of(error: TwinpoolError) -> ExitCode:
    """Return the exit code of an error: a value that cannot be used is a usage error."""
    return ExitCode.USAGE if isinstance(error, ConfigError) else ExitCode.FAILED
