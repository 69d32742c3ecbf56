"""The composition root: from settings to a loaded engine.

Every dependency is made here and handed to what needs it; nothing here runs a step.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinpool.clock import MonotonicClock
from twinpool.engine import default_model, protocol
from twinpool.engine.end_tokens import read_end_tokens
from twinpool.engine.executor import TorchExecutor
from twinpool.engine.facts import engine_facts
from twinpool.engine.machine import measure_machine
from twinpool.engine.pools import Pools
from twinpool.engine.ports import ProgressSink
from twinpool.engine.recorder import Recorder
from twinpool.engine.sampler import Sampler
from twinpool.engine.stopping import StopWatch
from twinpool.engine.tokenizer import Tokenizer
from twinpool.errors import ConfigError
from twinpool.kernels.warm_up import warm_up
from twinpool.models.config import MoeSpec
from twinpool.models.decoder import Decoder
from twinpool.models.load import load_model
from twinpool.scheduling.decision_log import DecisionLog
from twinpool.scheduling.scheduler import Scheduler
from twinpool.settings.log_settings import settings_line
from twinpool.settings.pools import PoolPlan, plan_pools, pool_bytes
from twinpool.settings.resolve import Resolved, resolve
from twinpool.settings.wiring import build_scheduler, counts_of

# The default model is small, and whoever tries it has other uses for the machine's memory.
SMALL_MODEL_DEFAULTS = {"pool_memory": "256MiB"}


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded engine.

    Attributes:
        scheduler: Decides.
        executor: Does.
        info: What the front is told.
        plan: How the pools were sized.
        recorder: Writes a trace of what is asked; None when nobody wants one.
    """

    scheduler: Scheduler
    executor: TorchExecutor
    info: protocol.EngineFacts
    plan: PoolPlan
    recorder: Recorder | None = None


def build_engine(
    flags: Mapping[str, Any],
    file: Mapping[str, Any],
    progress: ProgressSink,
    *,
    decisions: Callable[[bytes], None] | None = None,
) -> Engine:
    """Load a model, size its pools and wire everything.

    Args:
        flags: What the command line set, by setting name.
        file: What a settings file set.
        progress: Told of long work and of the boot log's lines.
        decisions: Takes the lines of the decision log; None drops them.

    Returns:
        An engine that is ready to step.

    Raises:
        ConfigError: If a setting or a file of the model cannot be used.
        UnsupportedModelError: If the model is not understood.
        CapacityError: If the pools do not fit into memory.
    """
    machine = measure_machine()
    names_model = flags.get("model_path") or file.get("model_path")
    defaults = {} if names_model else SMALL_MODEL_DEFAULTS
    resolved = resolve(flags, defaults, machine, file=file)
    _refuse_what_is_not_there(resolved)
    _use_all_cores()
    folder = _model_folder(resolved, progress)
    model = _load(folder, resolved, progress)
    tokenizer = None if resolved.model.skip_tokenizer_init else Tokenizer.from_folder(folder)
    gc.collect()
    rest = pool_bytes(resolved, machine, measure_machine().free_bytes)
    plan = plan_pools(resolved, model.spec, rest)
    pools = Pools(
        plan.spec,
        plan.geometry,
        num_rows=plan.num_rows,
        num_slots=plan.num_slots,
        page_size=plan.sizes.page_size,
        poison=resolved.model.debug_poison,
        rows_per_slot=None if plan.arena is None else plan.arena.rows_per_slot,
    )
    told = (*resolved.log_lines, *plan.log_lines, settings_line(resolved), *plan.boot_lines)
    for line in told:
        progress(protocol.Log(line))
    eos = read_end_tokens(folder) if tokenizer is None else tuple(tokenizer.eos_token_ids)
    sampler = Sampler(eos_token_ids=eos, stop_watch=StopWatch(tokenizer))
    _warm_up(model, sampler, progress)
    executor = TorchExecutor(model, pools, sampler, MonotonicClock())
    return Engine(
        scheduler=build_scheduler(resolved, counts_of(plan, resolved), DecisionLog(decisions)),
        executor=executor,
        info=engine_facts(
            folder,
            resolved,
            plan,
            model,
            eos_token_ids=eos,
            has_tokenizer=tokenizer is not None,
        ),
        plan=plan,
        recorder=_recorder(resolved),
    )


def _recorder(resolved: Resolved) -> Recorder | None:
    """Open the trace that is to be recorded; a file that is there is not written over."""
    path = resolved.server.record
    if path is None:
        return None
    try:
        # Open as long as the process lives: it ends with the engine.
        stream = Path(path).open("xb")  # noqa: SIM115
    except OSError as error:
        raise ConfigError(
            f"--record: {path!r} cannot be made: {error.strerror}",
            hint="name a file that is not there yet, in a folder that is",
        ) from None
    return Recorder(stream, MonotonicClock().now())


def _refuse_what_is_not_there(resolved: Resolved) -> None:
    for name, value, neutral in (
        ("--tp", resolved.scheduling.tp, 1),
        ("--pp", resolved.scheduling.pp, 1),
        (
            "--speculative-num-draft-tokens",
            resolved.scheduling.speculative_num_draft_tokens,
            0,
        ),
    ):
        if value != neutral:
            raise ConfigError(
                f"{name} is {value}, and serving does not do that yet",
                hint=f"leave {name} out; `twinpool size` plans with it",
            )


def _use_all_cores() -> None:
    import torch

    available = len(os.sched_getaffinity(0))
    wanted = int(os.environ.get("OMP_NUM_THREADS", "0") or 0)
    torch.set_num_threads(min(available, wanted) if wanted > 0 else available)


def _model_folder(resolved: Resolved, progress: ProgressSink) -> Path:
    if resolved.model.model_path is not None:
        folder = Path(resolved.model.model_path)
        if not folder.is_dir():
            raise ConfigError(
                f"{str(folder)!r} is not a folder",
                hint="name a folder with config.json and safetensors, or leave MODEL out",
            )
        return folder
    progress(
        protocol.Log(
            f"no MODEL given: serving {default_model.NAME}, the model in the package; it writes "
            "sentences about Python and knows nothing"
        )
    )
    return default_model.folder()


def _load(folder: Path, resolved: Resolved, progress: ProgressSink) -> Decoder:
    def report(done: int, total: int) -> None:
        progress(protocol.Loading("loading weights", done, total, "bytes"))

    return load_model(folder, dtype=resolved.model.dtype, progress=report)


def _warm_up(model: Decoder, sampler: Sampler, progress: ProgressSink) -> None:
    """Compile every kernel that the model needs, or read it from disk, before the first request."""

    def report(done: int, total: int, name: str) -> None:
        # The sampler's kernels are one part more.
        stage = f"compiling kernels ({name or 'sampler'})"
        progress(protocol.Loading(stage, done, total + 1, "parts"))

    has_experts = any(isinstance(mlp, MoeSpec) for mlp in model.config.mlps)
    warm_up(model.ops, report, has_experts=has_experts)
    sampler.warm_up()
