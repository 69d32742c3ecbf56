"""From the options of `replay` and `sweep` to a setup; reads the trace and the lanes file.

Knows no report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from twinpool.cli.model_argument import NamedModel, read_model
from twinpool.cli.options import given, settings_options
from twinpool.cli.replay_loop import check_loop
from twinpool.cli.size import SIZING_SETTINGS
from twinpool.cli.trace_options import text_of, trace_options
from twinpool.cli.workload_options import BYTES, COUNT, COUNT_OR_NONE, FromSettings
from twinpool.errors import ConfigError, TraceError
from twinpool.replay.cost import (
    NEUTRAL_DECODE_BASE_S,
    NEUTRAL_DECODE_PER_REQUEST_S,
    NEUTRAL_PREFILL_RATE,
    GivenRates,
    Overridden,
    Roofline,
    StepCost,
)
from twinpool.replay.load import LaneStart, Turns, seeded_starts
from twinpool.replay.run import Setup
from twinpool.replay.units import unit_of
from twinpool.settings.budget import MemoryAsk
from twinpool.settings.engines import ENGINES, preset_of
from twinpool.settings.fields import number
from twinpool.settings.memory import MemorySettings
from twinpool.settings.model import ModelSettings
from twinpool.settings.scheduling import SchedulingSettings
from twinpool.settings.size_plan import SizePlan, SizeRequest, plan_size
from twinpool.settings.values import Source, Value
from twinpool.settings.wiring import counts_of
from twinpool.spec.hardware import find_hardware
from twinpool.traces.read import read_trace
from twinpool.traces.schema import Trace

F = TypeVar("F", bound=Callable[..., Any])

REPLAY_SETTINGS = SIZING_SETTINGS | {
    "memory_mode",
    "radix_eviction_policy",
    "marconi_alpha",
    "mamba_max_states_per_path",
    "schedule_policy",
    "mamba_track_interval",
    "max_prefill_tokens",
}
# Options that decide how the trace is read.
READ_OPTIONS = ("format", "tokenizer", "as_bytes", "block_tokens", "output_tokens", "min_turns")
# Prompts are computed whole unless chunks are asked for: how an engine cuts them depends on it.
ASSUMED = {"chunked_prefill_size": -1}
_CHUNKS_UNUSED = "chunked_prefill_size has no effect"
SECONDS = FromSettings("seconds", number(0.0, 1e9))
RATE = FromSettings("rate", number(1e-9, 1e12))
MILLISECONDS = FromSettings("ms", number(0.0, 1e9))

_OPTIONS: tuple[tuple[str, Any, str, str], ...] = (
    ("--lanes", COUNT, "N", "Closed loop with N clients, each with a session of its own."),
    ("--lanes-file", str, "FILE", "Closed loop: sessions and first turns, a line for each lane."),
    ("--seed", COUNT_OR_NONE, "S", "Decides sessions and first turns of lanes.  [default: 0]"),
    ("--gap-cap", SECONDS, "SECONDS", "Longest think time between turns.  [default: as recorded]"),
    ("--min-turns", COUNT, "N", "Leave out sessions with fewer turns."),
    ("--duration", SECONDS, "SECONDS", "Virtual time after which the run ends."),
    ("--unit-tokens", COUNT, "N", "Tokens of a unit; default: a block, or a part of one of 64."),
    ("--memory-after-weights", BYTES, "BYTES", "Memory per rank for both pools, as 62.4GiB."),
    ("--gpu", str, "NAME", "GPU: its memory, unless given, and its rates for the step cost."),
    ("--num-gpus", COUNT, "N", "GPUs; without --tp the model is split over all."),
    ("--weights-bytes", BYTES, "BYTES", "Weights of the whole model, for --gpu."),
    ("--draft-layers", COUNT_OR_NONE, "N", "Draft layers that write KV rows."),
    ("--prefill-rate", RATE, "TOKENS/S", "Prompt tokens computed per second."),
    ("--decode-base-ms", MILLISECONDS, "MS", "A decode step before any request."),
    ("--decode-per-request-ms", MILLISECONDS, "MS", "What each decoding request adds to a step."),
)


def replay_options(command: F) -> F:
    """Give a command the options of a replay: workload, model, memory, policies and rates."""
    command = click.option(
        "--answers",
        type=click.Choice(["canned", "recorded"]),
        default="canned",
        show_default=True,
        help="canned: the model writes its own answers, and the next turn brings the recorded "
        "ones; recorded: it writes what was recorded.",
    )(command)
    command = click.option(
        "--subagents", is_flag=True, help="Open loop: send what sessions started, too."
    )(command)
    command = click.option(
        "--recycle", is_flag=True, help="Closed loop: start over when all sessions are used up."
    )(command)
    command = settings_options(
        MemorySettings,
        SchedulingSettings,
        ModelSettings,
        only=REPLAY_SETTINGS,
        without_default=("mem_fraction_static", "chunked_prefill_size"),
    )(command)
    command = trace_options(command)
    for flag, kind, metavar, text in reversed(_OPTIONS):
        command = click.option(flag, type=kind, metavar=metavar, help=text)(command)
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="Set strategy, eviction, order, memory and page size to what an engine does, as far "
        "as no flag says otherwise.",
    )(command)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A replay that can start.

    Attributes:
        model: The model whose bytes count.
        plan: Its pools.
        setup: What is replayed.
    """

    model: NamedModel
    plan: SizePlan
    setup: Setup


def prepare(trace_path: str, model: str, options: dict[str, Any]) -> Prepared:
    """Read trace and model, size the pools and put a replay together.

    Args:
        trace_path: File or folder of the trace.
        model: A config, a folder or a catalog name.
        options: Click's values by option name.

    Raises:
        ConfigError: If options do not go together.
        TraceError: If the trace or the lanes file cannot be read.
        CapacityError: If a pool would be empty.
    """
    named = read_model(model)
    # Sizes first: what is wrong with them shows before a long file is read.
    plan = plan_replay(named, options)
    return assemble(named, plan, load_trace(trace_path, options), options)


def load_trace(trace_path: str, options: dict[str, Any]) -> Trace:
    """Read the trace, without the sessions that are too short.

    Raises:
        TraceError: If it cannot be read.
        ConfigError: If no session is left.
    """
    trace = read_trace(Path(trace_path), format=options["format"], text=text_of(options))
    return _with_min_turns(trace, options["min_turns"])


def plan_replay(named: NamedModel, options: dict[str, Any], *, is_split: bool = False) -> SizePlan:
    """Size the pools that the options ask for.

    Args:
        named: The model.
        options: Click's values by option name.
        is_split: True to size two pools where the options say nothing of the memory.

    Raises:
        ConfigError: If options do not go together.
        CapacityError: If a pool would be empty or no request could run.
    """
    check_loop(options)
    plan = plan_size(dataclasses.replace(_size_request(named, options), is_split=is_split))
    # Chunks change no size where the bytes are given, and every step of a replay.
    notes = tuple(note for note in plan.notes if not note.startswith(_CHUNKS_UNUSED))
    return dataclasses.replace(plan, notes=notes)


def assemble(named: NamedModel, plan: SizePlan, trace: Trace, options: dict[str, Any]) -> Prepared:
    """Put a replay together from what has been read and sized.

    Raises:
        ConfigError: If options do not go together.
        TraceError: If the lanes file cannot be read.
    """
    turns = Turns(
        unit_tokens=unit_of(trace.block_tokens, options["unit_tokens"]),
        recorded_answers=options["answers"] == "recorded",
        gap_cap_s=options["gap_cap"],
        with_children=options["subagents"],
    )
    setup = Setup(
        trace=trace,
        resolved=plan.resolved,
        counts=counts_of(plan.pools, plan.resolved),
        cost=_cost(plan, named, options),
        turns=turns,
        starts=_starts(trace, options),
        is_endless=options["recycle"],
        duration_s=options["duration"],
    )
    return Prepared(model=named, plan=plan, setup=setup)


def _size_request(named: NamedModel, options: dict[str, Any]) -> SizeRequest:
    preset, fallback = preset_of(options["engine"]) if options["engine"] else ({}, {})
    flags = given({name: options[name] for name in REPLAY_SETTINGS})
    num_gpus = options["num_gpus"]
    if num_gpus is not None and "tp" not in flags and "pp" not in flags:
        flags["tp"] = num_gpus
    after = options["memory_after_weights"]
    weights = options["weights_bytes"]
    hardware = find_hardware(options["gpu"]) if options["gpu"] and after is None else None
    return SizeRequest(
        spec=named.spec,
        memory=MemoryAsk(
            after_weights_bytes=after,
            hardware=hardware,
            num_gpus=num_gpus,
            weights=named.weights if weights is None else Value(weights, Source.FLAG),
        ),
        flags=flags,
        assumed={**ASSUMED, **fallback},
        preset=preset,
        draft_layers=options["draft_layers"],
        is_split=False,
    )


def _cost(plan: SizePlan, named: NamedModel, options: dict[str, Any]) -> StepCost:
    """Take the rates that were given, those of the GPU, or neutral ones that say so."""
    rates = {
        "prefill_tokens_per_s": options["prefill_rate"],
        "decode_base_s": _seconds(options["decode_base_ms"]),
        "decode_per_request_s": _seconds(options["decode_per_request_ms"]),
    }
    known = [name for name, rate in rates.items() if rate is not None]
    if options["gpu"] and len(known) < len(rates):
        return _of_gpu(plan, named, options["gpu"], rates)
    neutral = {
        "prefill_tokens_per_s": NEUTRAL_PREFILL_RATE,
        "decode_base_s": NEUTRAL_DECODE_BASE_S,
        "decode_per_request_s": NEUTRAL_DECODE_PER_REQUEST_S,
    }
    chosen = {name: neutral[name] if rate is None else rate for name, rate in rates.items()}
    return GivenRates(**chosen, given=frozenset(known))


def _of_gpu(
    plan: SizePlan, named: NamedModel, gpu: str, rates: dict[str, float | None]
) -> StepCost:
    """Predict from the GPU what was not given."""
    spec = plan.pools.spec
    predicted = Roofline(
        spec=spec,
        geometry=plan.pools.geometry,
        hardware=find_hardware(gpu),
        weight_itemsize=named.weights.value / max(spec.parameters, 1),
    )
    prefill, base_s, per_request_s = rates.values()
    if prefill is None and base_s is None and per_request_s is None:
        return predicted
    if base_s is None and per_request_s is None:
        return Overridden(predicted=predicted, prefill_tokens_per_s=prefill)
    if base_s is None or per_request_s is None:
        raise ConfigError(
            "--decode-base-ms and --decode-per-request-ms describe a decode step together",
            hint="give both, or neither and the step is predicted from --gpu",
        )
    return Overridden(
        predicted=predicted, prefill_tokens_per_s=prefill, decode=(base_s, per_request_s)
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000.0


def _with_min_turns(trace: Trace, min_turns: int | None) -> Trace:
    if min_turns is None:
        return trace
    kept = tuple(session for session in trace.sessions if len(session.turns) >= min_turns)
    if not kept:
        raise ConfigError(
            f"no session of {trace.name} has {min_turns} turns", hint="lower --min-turns"
        )
    return dataclasses.replace(trace, sessions=kept)


def _starts(trace: Trace, options: dict[str, Any]) -> list[LaneStart] | None:
    if options["lanes_file"] is not None:
        starts = read_lanes(Path(options["lanes_file"]))
        lanes = options["lanes"] or len(starts)
        if lanes > len(starts):
            raise ConfigError(
                f"--lanes is {lanes}, and {options['lanes_file']} names {len(starts)}",
                hint=f"use --lanes {len(starts)} or fewer, or leave it out",
            )
        return starts[:lanes]
    if options["lanes"] is None:
        return None
    return seeded_starts(trace, options["lanes"], options["seed"] or 0)


def read_lanes(path: Path) -> list[LaneStart]:
    """Read where lanes begin: a header line, then session and first turn, split by tabs.

    Args:
        path: The file.

    Raises:
        TraceError: If it cannot be read or a line is no lane; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot be read: {error}", path=str(path)) from None
    starts = []
    for line_number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) < 2 or not (cells[1].isascii() and cells[1].isdigit()):
            raise TraceError(
                "not a lane", path=str(path), line=line_number, hint="session TAB first turn"
            )
        starts.append(LaneStart(cells[0], int(cells[1])))
    if not starts:
        raise TraceError("names no lane", path=str(path), hint="session TAB first turn")
    return starts
