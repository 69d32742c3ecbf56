"""Flags to paste for a split that was replayed: those of a plan, and the policies it was seen with.

Knows which policies an engine takes; decides nothing.

Source: SGLang 0.5.23 server arguments.
"""

from __future__ import annotations

import dataclasses

from twinpool.cli.paste import Paste, pastes
from twinpool.memory.running_cap import SlotStrategy
from twinpool.settings.size_plan import SizePlan
from twinpool.settings.values import Source

# What an engine does where it is told nothing.
_DEFAULT_ORDER = {"sglang": "fcfs", "twinpool": "least-work"}
_DEFAULT_EVICTION = {"sglang": "lru", "twinpool": "value"}
# Queue orders of ours that it has, too.
_SGLANG_ORDERS = frozenset({"fcfs", "lpm"})


def replayed_flags(plan: SizePlan) -> tuple[Paste, ...]:
    """Write the flags of all engines, with what the replay did otherwise than their defaults.

    Args:
        plan: The pools that were replayed.
    """
    return tuple(_with_policies(paste, plan) for paste in pastes(plan))


def _with_policies(paste: Paste, plan: SizePlan) -> Paste:
    """An engine that takes no such policy says so, as its own would give other hits."""
    memory, scheduling = plan.resolved.memory, plan.resolved.scheduling
    order, eviction = scheduling.schedule_policy, memory.radix_eviction_policy
    if not paste.flags:
        return paste
    if paste.engine == "sglang" and memory.mamba_radix_cache_strategy is SlotStrategy.DIRECT:
        note = "it has no `direct`: `--engine sglang` replays its rules"
        return dataclasses.replace(paste, flags="", note=note)
    if paste.engine == "vllm":
        note = "the hits shown are not its own: `--engine vllm` replays its rules"
        return dataclasses.replace(paste, note="; ".join(filter(None, (paste.note, note))))
    flags, notes = [paste.flags], [paste.note] if paste.note else []
    missing = []
    if paste.engine == "sglang" and order not in _SGLANG_ORDERS:
        missing.append(f"no order by {order}")
    elif order != _DEFAULT_ORDER[paste.engine]:
        flags.append(f"--schedule-policy {order}")
    if paste.engine == "sglang" and eviction != _DEFAULT_EVICTION["sglang"]:
        missing.append(f"no eviction by {eviction}")
    elif eviction != _DEFAULT_EVICTION[paste.engine]:
        flags.append(f"--radix-eviction-policy {eviction}")
    if missing:
        notes.append(f"there is {' and '.join(missing)}: `--engine sglang` replays its rules")
    if memory.mamba_max_states_per_path >= 0:
        flags.append(f"--mamba-max-states-per-path {memory.mamba_max_states_per_path}")
    if plan.resolved.values["chunked_prefill_size"].source is Source.FLAG:
        flags.append(f"--chunked-prefill-size {scheduling.chunked_prefill_size}")
    return dataclasses.replace(paste, flags=" ".join(flags), note="; ".join(notes))
