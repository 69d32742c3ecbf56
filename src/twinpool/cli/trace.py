"""`twinpool trace`: look at a recorded workload, convert it, or make one.

Turns options into calls and prints what they return; knows no format and no arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from twinpool.cli.output import print_json
from twinpool.cli.trace_options import CAPACITIES, trace_of, trace_options
from twinpool.cli.trace_report import trace_document, trace_report
from twinpool.cli.workload_options import COUNT, COUNT_OR_NONE, FromSettings
from twinpool.errors import ConfigError
from twinpool.settings.fields import integer, number
from twinpool.traces.own_format import write_trace
from twinpool.traces.schema import Trace
from twinpool.traces.selection import select
from twinpool.traces.shapes import AgentsShape, BurstShape, ChatShape, Shape, SharedPromptShape
from twinpool.traces.statistics import statistics
from twinpool.traces.synthesis import make_agents, make_burst, make_chat, make_shared_prompt

DEFAULT_CAPACITIES = "16k,64k,256k,1M,4M,16M"
SEED = FromSettings("seed", integer(0, 2**63 - 1))
WHOLE = FromSettings("number", integer(0))
DECIMAL = FromSettings("number", number(0.0, 1e12))


@click.group()
def trace() -> None:
    """Look at a recorded workload, convert it, or make one."""


@trace.command()
@click.argument("trace_path", metavar="TRACE")
@trace_options
@click.option(
    "--lru",
    "capacities",
    type=CAPACITIES,
    default=DEFAULT_CAPACITIES,
    show_default=True,
    metavar="TOKENS,...",
    help="Capacities at which to give the LRU hit rate; k and M are powers of 1024.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def info(trace_path: str, capacities: tuple[int, ...], as_json: bool, **options: Any) -> None:
    """Say what a trace is like, and how much of it a prefix cache could reuse.

    TRACE is a file, a folder or an archive, plain or packed.
    """
    read = trace_of(trace_path, options)
    figures = statistics(read)
    if as_json:
        print_json(trace_document(read, figures, capacities))
    else:
        click.echo(trace_report(read, figures, capacities))


def _output(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        required=True,
        metavar="FILE",
        help="Where to write; .gz and .xz are packed. A file that is there is replaced.",
    )(command)


@trace.command()
@click.argument("trace_path", metavar="TRACE")
@_output
@trace_options
@click.option("--sessions", type=COUNT, metavar="N", help="Keep the first N sessions.")
@click.option(
    "--min-turns", type=COUNT_OR_NONE, metavar="N", help="Keep sessions of N turns or more."
)
@click.option("--max-turns", type=COUNT, metavar="N", help="Keep the first N turns of a session.")
@click.option("--no-subagents", is_flag=True, help="Leave out the sessions that others started.")
def convert(
    trace_path: str,
    output: Path,
    sessions: int | None,
    min_turns: int | None,
    max_turns: int | None,
    no_subagents: bool,
    **options: Any,
) -> None:
    """Write a trace, or a part of it, in twinpool's own format.

    The file holds numbers of prefixes, lengths and times, and no text.
    """
    read = trace_of(trace_path, options)
    kept = select(
        read,
        num_sessions=sessions,
        min_turns=min_turns or 0,
        max_turns=max_turns,
        with_children=not no_subagents,
    )
    if not kept.sessions:
        raise ConfigError(
            f"nothing is left of the {len(read.sessions)} sessions of {read.name}",
            hint="lower --min-turns" if read.sessions else "the trace has none",
        )
    write_trace(kept, output)
    click.echo(
        f"{output}: {len(kept.sessions):,} of {len(read.sessions):,} sessions, "
        f"{_num_requests(kept):,} of {_num_requests(read):,} requests",
        err=True,
    )


@trace.group()
def make() -> None:
    """Make a workload from a seed; the same seed and flags make the same bytes."""


def _maker(name: str, shape: type[Shape], generate: Callable[[Any, int], Trace]) -> None:
    """Add a command that generates one kind of workload: a flag per parameter of its shape."""

    def command(output: Path, seed: int, **options: Any) -> None:
        made = generate(shape(**options), seed)
        write_trace(made, output)
        click.echo(
            f"{output}: {len(made.sessions):,} sessions, {_num_requests(made):,} requests", err=True
        )

    decorated: Callable[..., Any] = command
    for each in reversed(fields(shape)):
        decorated = click.option(
            f"--{each.name.replace('_', '-')}",
            type=WHOLE if isinstance(each.default, int) else DECIMAL,
            default=each.default,
            show_default=True,
            metavar="N" if isinstance(each.default, int) else "X",
            help=each.metadata["about"],
        )(decorated)
    decorated = click.option(
        "--seed", type=SEED, default=0, show_default=True, metavar="N", help="Where chance starts."
    )(decorated)
    make.command(name, help=shape.__doc__)(_output(decorated))


_maker("agents", AgentsShape, make_agents)
_maker("chat", ChatShape, make_chat)
_maker("burst", BurstShape, make_burst)
_maker("shared-prompt", SharedPromptShape, make_shared_prompt)


def _num_requests(of: Trace) -> int:
    return sum(len(each.turns) for session in of.sessions for each in session.walk())
