"""`twinpool explain LOG`: what a server's boot log or its metrics say of its two pools.

Reads the inputs and prints what comes of them; knows no arithmetic.
"""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import click

from twinpool.cli.explain_json import explain_document
from twinpool.cli.explain_report import explain_report
from twinpool.cli.metrics_source import read_metrics_text
from twinpool.cli.model_argument import read_model
from twinpool.cli.options import given, settings_options
from twinpool.cli.output import print_json
from twinpool.cli.workload_options import workload_of, workload_options
from twinpool.errors import ConfigError, TraceError
from twinpool.memory.boots import BootLog, read_boot_log
from twinpool.settings.explain_plan import plan_explain
from twinpool.settings.explain_records import ExplainPlan, ExplainRequest
from twinpool.settings.memory import MemorySettings
from twinpool.settings.pools import ARENA_LINE
from twinpool.settings.scheduling import SchedulingSettings
from twinpool.telemetry.diagnosis import Known, diagnose
from twinpool.telemetry.scrape import EngineReading, read_metrics, since

EXPLAIN_SETTINGS = frozenset(
    {
        "mamba_full_memory_ratio",
        "max_mamba_cache_size",
        "page_size",
        "kv_cache_dtype",
        "mamba_ssm_dtype",
        "mamba_radix_cache_strategy",
        "disable_radix_cache",
        "disable_overlap_schedule",
        "max_running_requests",
        "tp",
        "pp",
        "speculative_num_draft_tokens",
    }
)
MAX_LINE = 2**20
# The first character tells click to keep the lines as they are.
EXAMPLES = """\b
Examples:
  twinpool explain server.log --average-context 9216
  journalctl -u sglang | twinpool explain - --sessions 48 --session-context 160000 --running 24
  twinpool explain server.log --metrics http://localhost:30000/metrics
"""


@click.command(epilog=EXAMPLES)
@click.argument("log", metavar="[LOG]", required=False)
@click.option(
    "--metrics",
    "metrics",
    metavar="URL|FILE",
    multiple=True,
    help="Prometheus text of a live engine: twinpool, SGLang or vLLM. Given twice, the older "
    "first, counters are those of the time between.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="The model of the log, for exact bytes: a config.json, a folder, or a catalog name.",
)
@settings_options(
    MemorySettings, SchedulingSettings, only=EXPLAIN_SETTINGS, without_default=EXPLAIN_SETTINGS
)
@workload_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain(log: str | None, metrics: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Explain a server's two pools from its boot log, its load from its metrics.

    LOG is a file, or - for standard input: the log of SGLang or twinpool, whatever stands around
    the lines. Bytes per slot and per token are recovered from it with their rounding error; the
    flags say what the log does not, or ask what another split of the same bytes would give.
    """
    if log is None and not metrics:
        raise ConfigError("nothing to explain", hint="give a LOG, or --metrics URL or FILE")
    if len(metrics) > 2:
        raise ConfigError(f"--metrics is given {len(metrics)} times", hint="give it once or twice")
    plan = _plan(log, options)
    reading = _reading(metrics)
    diagnosis = diagnose(reading, _known(plan, reading)) if reading else None
    if as_json:
        print_json(explain_document(log, plan, reading, diagnosis))
    else:
        click.echo(explain_report(log, plan, reading, diagnosis))


def read_log(log: str) -> BootLog:
    """Read a boot log.

    Args:
        log: A file, or `-` for standard input; UTF-8, or UTF-16 with its mark.

    Raises:
        ConfigError: If it cannot be opened.
        TraceError: If no pools are found in it, or the server that began last has none.
    """
    name = "standard input" if log == "-" else log
    elastic = _Elastic()
    with _opened(log) as raw:
        try:
            found = read_boot_log(elastic.watch(_lines(raw)), name)
        except TraceError:
            if elastic.line:
                raise elastic.error(name) from None
            raise
    if elastic.line > max(rank.line for rank in found.boot.ranks):
        raise elastic.error(name)
    return found


class _Elastic:
    """Where a server that splits nothing last began; it prints no pools.

    Attributes:
        line: The line, from 1; 0 when there is none.
    """

    def __init__(self) -> None:
        self.line = 0

    def watch(self, lines: Iterator[str]) -> Iterator[str]:
        """Pass lines on."""
        for number, line in enumerate(lines, start=1):
            if ARENA_LINE in line:
                self.line = number
            yield line

    def error(self, name: str) -> TraceError:
        """Say that there is no split to explain."""
        return TraceError(
            "this server of twinpool has elastic memory: rows and states share it, and nothing is "
            "split",
            path=name,
            line=self.line,
            hint="there is no split to explain: give --metrics alone for what it does with the "
            "memory, or start it with --memory static",
        )


@contextmanager
def _opened(log: str) -> Iterator[BinaryIO]:
    if log == "-":
        # None when the shell closed it: `<&-`.
        if sys.stdin is None:
            raise ConfigError("standard input is closed", hint="pipe a log into it, or name a file")
        yield sys.stdin.buffer
        return
    # Only opening it is the user's affair; what comes later has errors of its own.
    with ExitStack() as stack:
        try:
            file = stack.enter_context(Path(log).open("rb"))
        except OSError as error:
            raise ConfigError(
                f"{log} cannot be read: {error.strerror}",
                hint="give the log's file, or - to pipe it in",
            ) from None
        yield file


def _lines(raw: BinaryIO) -> Iterator[str]:
    """Yield lines; a progress bar's carriage returns end a line, too."""
    buffered = cast(io.BufferedReader, raw)
    mark = buffered.peek(2)[:2]
    encoding = "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    text = io.TextIOWrapper(buffered, encoding=encoding, errors="replace")
    try:
        # Bounded: a file without line ends is no reason to hold it in memory.
        yield from iter(lambda: text.readline(MAX_LINE), "")
    finally:
        text.detach()


def _plan(log: str | None, options: dict[str, Any]) -> ExplainPlan | None:
    workload = workload_of(options)
    flags = given({name: options[name] for name in EXPLAIN_SETTINGS})
    if log is None:
        asked = [
            f"--{name.replace('_', '-')}"
            for name in (*sorted(flags), "model", "average_context", "sessions")
            if name in flags or options.get(name) is not None
        ]
        if asked:
            raise ConfigError(f"{asked[0]} needs a LOG", hint="give the boot log beside --metrics")
        return None
    named = None if options["model"] is None else read_model(options["model"])
    return plan_explain(
        ExplainRequest(
            log=read_log(log),
            flags=flags,
            model=None if named is None else (named.name, named.spec),
            average_context=options["average_context"],
            workload=workload,
        )
    )


def _reading(sources: tuple[str, ...]) -> EngineReading | None:
    readings = [read_metrics(read_metrics_text(source)) for source in sources]
    if len(readings) == 2:
        return since(readings[0], readings[1])
    return readings[0] if readings else None


def _known(plan: ExplainPlan | None, reading: EngineReading) -> Known:
    """What the log knows of the engine: its cap is per replica."""
    if plan is None:
        return Known()
    replicas = max(plan.replicas, reading.replicas)
    return Known(cap=plan.cap * replicas, cap_binds=plan.binding)
