"""`twinpool replay TRACE`: a workload through the live scheduler in virtual time.

Turns options into a replay and prints what came of it; knows no policy.
"""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from twinpool.cli.output import print_json
from twinpool.cli.replay_bound import bound_document
from twinpool.cli.replay_json import replay_document
from twinpool.cli.replay_report import replay_report
from twinpool.cli.replay_setup import prepare, replay_options
from twinpool.cli.workload_options import COUNT_OR_NONE
from twinpool.errors import ConfigError
from twinpool.replay.run import Setup, run_replay

# The first character tells click to keep the lines as they are.
EXAMPLES = """\b
Examples:
  twinpool replay sessions.jsonl.gz --model GLM-5.3-Flash --tp 2 --kv-cache-dtype fp8 \\
      --memory-after-weights 62.4GiB --max-mamba-cache-size 192 --lanes 48 --gap-cap 10 \\
      --duration 3600
  twinpool replay mooncake.jsonl --model Qwen3.5-35B-A3B --gpu H200 --schedule-policy lpm
"""


@click.command(epilog=EXAMPLES)
@click.argument("trace", metavar="TRACE")
@click.option("--model", required=True, metavar="CONFIG|NAME", help="Model whose bytes count.")
@replay_options
@click.option(
    "--recorded-steps",
    is_flag=True,
    help="Send requests at the steps at which a server got them (serve --record).",
)
@click.option("--decision-log", metavar="FILE", help="Write every decision, one line per step.")
@click.option("--timeline", type=COUNT_OR_NONE, metavar="N", help="Take N samples over the run.")
@click.option("--audit", is_flag=True, help="Check the books after every step (slow).")
@click.option("--bound", is_flag=True, help="Say what no cache policy could exceed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def replay(trace: str, model: str, as_json: bool, **options: Any) -> None:
    """Replay a trace in virtual time: the live scheduler and memory, predicted steps.

    TRACE is a file or a folder; see `twinpool trace info` for formats. Without --lanes, requests
    are sent at their recorded times.
    """
    prepared = prepare(trace, model, options)
    setup = prepared.setup
    if options["recorded_steps"]:
        setup = _by_steps(setup)
    with ExitStack() as stack:
        sink = None
        if options["decision_log"]:
            try:
                file = stack.enter_context(Path(options["decision_log"]).open("wb"))
            except OSError as error:
                raise ConfigError(
                    f"--decision-log: {options['decision_log']} cannot be written: {error.strerror}"
                ) from None

            def sink(line: bytes) -> None:
                file.write(line)

        if options["timeline"]:
            setup = dataclasses.replace(setup, samples=options["timeline"], with_sessions=True)
        outcome = run_replay(setup, decisions=sink, audit=options["audit"])
    bound = bound_document(prepared, outcome) if options["bound"] else None
    if as_json:
        print_json({**replay_document(prepared, outcome), "bound": bound})
    else:
        click.echo(replay_report(prepared, outcome, bound))


def _by_steps(setup: Setup) -> Setup:
    if setup.starts is not None:
        raise ConfigError(
            "--recorded-steps and lanes both say when requests are sent", hint="give one of them"
        )
    return dataclasses.replace(setup, by_steps=True)
