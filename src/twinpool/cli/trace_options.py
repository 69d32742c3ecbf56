"""Options of verbs that read a trace: its format, and how text becomes tokens.

Knows no verb and no format; capacities in tokens are read here too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from twinpool.cli.workload_options import COUNT, COUNT_OR_NONE, FromSettings
from twinpool.errors import ConfigError
from twinpool.traces.read import FORMATS, read_trace
from twinpool.traces.schema import Trace
from twinpool.traces.tokens import DEFAULT_BLOCK_TOKENS, TextOptions

F = TypeVar("F", bound=Callable[..., Any])

_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_COUNT = re.compile(r"([0-9]{1,12})([kmg]?)", re.ASCII | re.IGNORECASE)


def parse_tokens(text: object) -> int:
    """Read a number of tokens such as `64k` or `1M`.

    Args:
        text: A number with an optional k, M or G: powers of 1024.

    Raises:
        ConfigError: If it is none, or 0.
    """
    match = _COUNT.fullmatch(str(text).strip())
    tokens = int(match.group(1)) * _FACTORS[match.group(2).lower()] if match else 0
    if not tokens:
        raise ConfigError(
            f"{text!r} is not a number of tokens", hint="write 65536, 64k or 1M; k is 1024"
        )
    return tokens


def parse_capacities(text: object) -> tuple[int, ...]:
    """Read capacities in tokens, separated by commas.

    Raises:
        ConfigError: If one of them is no number of tokens.
    """
    return tuple(parse_tokens(part) for part in str(text).split(","))


CAPACITIES = FromSettings("capacities", parse_capacities)


def trace_options(command: F) -> F:
    """Give a command the options with which a trace is read.

    Args:
        command: The command; it gets what `trace_of` reads.
    """
    names = ", ".join(each.name for each in FORMATS)
    options = (
        click.option(
            "--format",
            metavar="F",
            help=f"Format of the trace: {names}; default: found out from its first line.",
        ),
        click.option(
            "--tokenizer",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="tokenizer.json with which text becomes tokens.",
        ),
        click.option(
            "--bytes",
            "as_bytes",
            is_flag=True,
            help="Count four bytes of UTF-8 text as a token, in place of a tokenizer.",
        ),
        click.option(
            "--block-tokens",
            type=COUNT,
            metavar="N",
            help=f"Tokens of a block of text.  [default: {DEFAULT_BLOCK_TOKENS}]",
        ),
        click.option(
            "--output-tokens",
            type=COUNT_OR_NONE,
            metavar="N",
            help="Tokens of an answer that an OpenAI-style trace says nothing of.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def text_of(options: dict[str, Any]) -> TextOptions:
    """Return how text becomes tokens, as the options have it.

    Args:
        options: Click's values by option name.
    """
    block_tokens = options["block_tokens"]
    return TextOptions(
        tokenizer=options["tokenizer"],
        as_bytes=options["as_bytes"],
        block_tokens=DEFAULT_BLOCK_TOKENS if block_tokens is None else block_tokens,
        output_tokens=options["output_tokens"],
    )


def trace_of(path: str, options: dict[str, Any]) -> Trace:
    """Read a trace; on stderr, say which format was found.

    Args:
        path: The file or folder.
        options: Click's values by option name.

    Raises:
        TraceError: If it cannot be read.
        ConfigError: If the options do not go with it.
    """
    trace = read_trace(Path(path), format=options["format"], text=text_of(options))
    if options["format"] is None:
        click.echo(f"{path}: format {trace.format}", err=True)
    return trace
