"""`twinpool sweep TRACE`: one workload at many splits of the same bytes, and which to take.

Turns options into cells, runs them in rounds and prints the table; knows no policy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from twinpool.cli.output import print_json
from twinpool.cli.replay_setup import replay_options
from twinpool.cli.sweep_cells import Job, default_processes
from twinpool.cli.sweep_report import sweep_report
from twinpool.cli.sweep_rounds import Group, SweepAsk, groups_of, run_sweep
from twinpool.cli.workload_options import COUNT, COUNT_OR_NONE
from twinpool.errors import ConfigError
from twinpool.replay.sweep import COARSE_CELLS

# The first character tells click to keep the lines as they are.
EXAMPLES = """\b
Examples:
  twinpool sweep sessions.jsonl.gz --model GLM-5.3-Flash --tp 2 --kv-cache-dtype fp8 \\
      --memory-after-weights 62.4GiB --lanes 48 --gap-cap 10 --duration 3600 -o report.html
  twinpool sweep mooncake.jsonl --model Qwen3.5-35B-A3B --gpu H200 \\
      --slots 100,200,400,800 --schedule-policies fcfs,lpm --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("trace", metavar="TRACE")
@click.option("--model", required=True, metavar="CONFIG|NAME", help="Model whose bytes count.")
@replay_options
@click.option("--slots", metavar="LIST", help="State slots to try, as 429,300,192.")
@click.option("--ratios", metavar="LIST", help="Ratios to try, as 0.25,0.5,0.9.")
@click.option(
    "--engines", metavar="LIST", help="Engines to try, as sglang,twinpool-static,twinpool."
)
@click.option("--strategies", metavar="LIST", help="Slot strategies to try at every split.")
@click.option("--schedule-policies", metavar="LIST", help="Queue orders to try at every split.")
@click.option("--evictions", metavar="LIST", help="Eviction policies to try at every split.")
@click.option("--cells", type=COUNT, metavar="N", help="Splits of the first round.  [default: 9]")
@click.option(
    "--rounds",
    type=COUNT_OR_NONE,
    metavar="N",
    help="Rounds that look between the best split and its neighbours.  [default: 2]",
)
@click.option("--processes", type=COUNT, metavar="N", help="Replays at once.  [default: all cores]")
@click.option(
    "--executor",
    type=click.Choice(["process", "ray"]),
    default="process",
    show_default=True,
    help="Where replays run.",
)
@click.option("--bound", is_flag=True, help="Say what no cache policy could exceed.")
@click.option("-o", "--output", metavar="FILE", help="Write a page with charts: report.html.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def sweep(trace: str, model: str, as_json: bool, **options: Any) -> None:
    """Replay a trace at many splits of the same bytes and find the one to run with.

    TRACE is a file or a folder; see `twinpool trace info` for formats. Without --slots or --ratios
    the splits are chosen, coarse first, then between the best one and its neighbours.
    """
    ask = _ask(options)
    job = Job(trace, model, {name: options[name] for name in options if name not in _OWN})
    document = run_sweep(job, ask, progress=_progress)
    if options["output"]:
        _write_page(Path(options["output"]), document)
    if as_json:
        print_json(document)
    else:
        click.echo(sweep_report(document))


_OWN = {
    "engines",
    "slots",
    "ratios",
    "strategies",
    "schedule_policies",
    "evictions",
    "cells",
    "rounds",
    "processes",
    "executor",
    "bound",
    "output",
}


def _ask(options: dict[str, Any]) -> SweepAsk:
    for listed, single in (
        ("slots", "max_mamba_cache_size"),
        ("ratios", "mamba_full_memory_ratio"),
        ("engines", "engine"),
        ("strategies", "mamba_radix_cache_strategy"),
        ("schedule_policies", "schedule_policy"),
        ("evictions", "radix_eviction_policy"),
    ):
        if options[listed] is not None and options[single] is not None and single not in _SPLIT:
            raise ConfigError(
                f"--{listed.replace('_', '-')} and --{single.replace('_', '-')} are both given",
                hint="give one of them",
            )
    groups: list[Group] = groups_of(
        engines=_names(options["engines"]),
        strategies=_names(options["strategies"]),
        orders=_names(options["schedule_policies"]),
        evictions=_names(options["evictions"]),
    )
    return SweepAsk(
        groups=tuple(groups),
        slots=tuple(_whole(text) for text in _names(options["slots"])),
        ratios=_names(options["ratios"]),
        num_cells=options["cells"] or COARSE_CELLS,
        num_rounds=2 if options["rounds"] is None else options["rounds"],
        processes=options["processes"] or default_processes(),
        executor=options["executor"],
        with_bound=options["bound"],
    )


_SPLIT = {"max_mamba_cache_size", "mamba_full_memory_ratio"}


def _names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise ConfigError(f"{text!r} has an empty entry", hint="write a,b,c")
    return names


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10 and int(text) > 0):
        raise ConfigError(f"--slots: {text!r} is not a number of slots", hint="write 429,300,192")
    return int(text)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        click.echo(f"\r{done} of {total} replays", err=True, nl=False)
        click.echo(end, err=True, nl=False)


def _write_page(path: Path, document: dict[str, Any]) -> None:
    from twinpool.replay.report.page import render_report

    try:
        path.write_text(render_report(document), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    click.echo(f"{path} written", err=True)
