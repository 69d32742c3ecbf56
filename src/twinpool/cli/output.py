"""What the command line prints: data on stdout, `error: … / hint: …` on stderr, exit codes.

Knows no verb.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Sequence

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


def print_json(document: object) -> None:
    """Print a document as JSON on stdout, keys in their own order.

    Args:
        document: What `json` can write; numbers that are not finite are refused.
    """
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def columns(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: int = 2) -> str:
    """Lay rows out in aligned columns, with two blanks between them.

    Args:
        rows: Rows of cells; shorter rows are filled up.
        right: Indices of the columns that end flush right.
        indent: Blanks before each line.

    Returns:
        Lines without trailing blanks.
    """
    count = max((len(row) for row in rows), default=0)
    filled = [[*row, *[""] * (count - len(row))] for row in rows]
    widths = [max(len(row[index]) for row in filled) for index in range(count)]
    lines = []
    for row in filled:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((" " * indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)
