"""Wiring of the scheduler and its memory from settings: the same for live serving and for replay.

Builds objects of the core; allocates no tensor and asks no machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twinpool.memory.eviction import eviction_policy
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.snapshots import snapshot_rules
from twinpool.scheduling.decision_log import DecisionLog
from twinpool.scheduling.order import queue_order
from twinpool.scheduling.scheduler import Limits, Scheduler
from twinpool.settings.pools import PoolPlan
from twinpool.settings.resolve import Resolved
from twinpool.settings.scheduling import WHOLE_PROMPTS

# Tokens of the chunks in which the scan kernels of the reference engine work.
CHUNK_GRID = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """What the scheduler is to share out.

    Attributes:
        num_rows: Rows of the KV pool, padding left out.
        num_slots: Slots of the state pool, padding left out.
        max_running_requests: The cap in force.
        context_length: Longest sequence, in tokens.
        needs_state: False for a model without linear layers.
    """

    num_rows: int
    num_slots: int
    max_running_requests: int
    context_length: int
    needs_state: bool = True


def counts_of(plan: PoolPlan) -> PoolCounts:
    """Return what a plan gives the scheduler to share out."""
    return PoolCounts(
        num_rows=plan.sizes.kv_tokens,
        num_slots=plan.sizes.state_slots,
        max_running_requests=plan.cap.value,
        context_length=plan.spec.context_length,
        needs_state=bool(plan.spec.linear_layers),
    )


def build_scheduler(
    resolved: Resolved,
    counts: PoolCounts,
    log: DecisionLog,
    *,
    unit_tokens: int = 1,
    is_due: Callable[[int], bool] | None = None,
) -> Scheduler:
    """Wire a scheduler and its memory.

    Args:
        resolved: The settings.
        counts: Pools and cap, in tokens.
        log: Where decisions go.
        unit_tokens: Tokens that one row, one key of the tree and one step of decode stand for. A
            replay of block traces takes whole blocks as units; live serving has units of a token.
        is_due: Which decoding requests take part in the next step; None: all of them.

    Raises:
        ConfigError: If a setting does not fit the units or another setting.
        CapacityError: If the pools are too small for one request.
    """
    memory, scheduling = resolved.memory, resolved.scheduling

    def units(tokens: int) -> int:
        return max(1, tokens // unit_tokens)

    page_size = units(memory.page_size)
    rules = snapshot_rules(
        memory.mamba_radix_cache_strategy,
        has_overlap=not scheduling.disable_overlap_schedule,
        is_cache_enabled=not memory.disable_radix_cache,
        page_size=page_size,
        track_interval=units(scheduling.mamba_track_interval),
        chunk_grid=units(CHUNK_GRID),
    )
    cache = PrefixCache(
        num_rows=counts.num_rows // unit_tokens // page_size * page_size,
        num_slots=counts.num_slots,
        policy=eviction_policy(memory.radix_eviction_policy),
        page_size=page_size,
        max_states_per_path=memory.mamba_max_states_per_path,
        needs_state=counts.needs_state,
        is_enabled=not memory.disable_radix_cache,
    )
    context_length = -(-counts.context_length // unit_tokens)
    chunk = scheduling.chunked_prefill_size
    chunk_tokens = context_length if chunk == WHOLE_PROMPTS else units(chunk)
    # Whole pages, at least one.
    chunk_tokens = max(chunk_tokens // page_size, 1) * page_size
    return Scheduler(
        cache=cache,
        rules=rules,
        order=queue_order(scheduling.schedule_policy),
        limits=Limits(
            max_running_requests=counts.max_running_requests,
            chunk_tokens=chunk_tokens,
            context_length=context_length,
            admit_tokens=min(chunk_tokens, units(scheduling.max_prefill_tokens)),
        ),
        log=log,
        is_due=is_due,
    )
