"""Wiring of the scheduler and its memory from settings: the same for live serving and for replay.

Builds objects of the core; allocates no tensor and asks no machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twinpool.memory.allocator import RUN_ROWS
from twinpool.memory.arena import Arena
from twinpool.memory.equal_pages import LayerBytes, SharedMemory, equal_pages, one_budget
from twinpool.memory.eviction import EvictionPolicy, eviction_policy
from twinpool.memory.one_budget import OneBudget
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.snapshots import snapshot_rules
from twinpool.memory.work import NEUTRAL, PrefillWork
from twinpool.scheduling.decision_log import DecisionLog
from twinpool.scheduling.limits import Limits
from twinpool.scheduling.order import queue_order
from twinpool.scheduling.scheduler import Scheduler
from twinpool.scheduling.work_clock import WorkClock
from twinpool.settings.memory import MemoryMode
from twinpool.settings.pools import SHARED_RUNNING_REQUESTS, ArenaPlan, PoolPlan
from twinpool.settings.resolve import Resolved
from twinpool.settings.scheduling import WHOLE_PROMPTS
from twinpool.spec.flops import flops_per_pair
from twinpool.spec.layer import MlaSpec, full_of

# Tokens of the chunks in which the scan kernels of the reference engine work.
CHUNK_GRID = 64
# What a wait for another's prefill must bring, and up to where a long answer is reckoned with.
MIN_AWAITED_TOKENS = 32
MAX_EXPECTED_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCounts:
    """What the scheduler is to share out.

    Attributes:
        num_rows: Rows of the KV pool, padding left out.
        num_slots: Slots of the state pool, padding left out.
        max_running_requests: The cap in force.
        context_length: Longest sequence, in tokens.
        needs_state: False for a model without linear layers.
        shared: What rows and slots are drawn from together by name alone; None: they are not.
        arena: The one memory in which rows and slots are places; None: there is none.
        work: What prefixes of the model cost, per token.
    """

    num_rows: int
    num_slots: int
    max_running_requests: int
    context_length: int
    needs_state: bool = True
    shared: SharedMemory | None = None
    arena: ArenaPlan | None = None
    work: PrefillWork = NEUTRAL


def counts_of(plan: PoolPlan, resolved: Resolved | None = None) -> PoolCounts:
    """Return what a plan gives the scheduler to share out.

    Args:
        plan: Both pools.
        resolved: The settings, where rows and states may share one memory; None: they do not.

    Raises:
        ConfigError: If the model cannot be laid out as the settings ask.
        CapacityError: If one memory is too small for a request.
    """
    geometry, spec = plan.geometry, plan.spec
    shared = None if resolved is None else _shared_memory(plan, resolved)
    asked = plan.cap.asked or SHARED_RUNNING_REQUESTS
    return PoolCounts(
        num_rows=plan.sizes.kv_tokens if shared is None else shared.max_tokens,
        num_slots=plan.sizes.state_slots if shared is None else shared.max_slots,
        max_running_requests=plan.cap.value if shared is None else min(asked, shared.max_slots),
        context_length=spec.context_length,
        needs_state=bool(spec.linear_layers),
        shared=shared,
        arena=plan.arena,
        work=PrefillWork(
            flops_per_row=2 * spec.active_parameters,
            flops_per_pair=flops_per_pair(spec),
            row_bytes=geometry.row_bytes,
            slot_bytes=geometry.slot_bytes,
        ),
    )


def _shared_memory(plan: PoolPlan, resolved: Resolved) -> SharedMemory | None:
    """Cut the one memory that the settings ask for, if they do."""
    mode, page_tokens = resolved.memory.memory_mode, resolved.memory.page_size
    geometry, rest = plan.geometry, plan.sizes.rest_bytes
    layers = LayerBytes(
        row_bytes=geometry.row_bytes,
        slot_bytes=geometry.slot_bytes,
        num_full_layers=geometry.num_full_layers,
        num_linear_layers=geometry.num_linear_layers,
        has_latent_rows=any(isinstance(full_of(layer), MlaSpec) for layer in plan.spec.layers),
    )
    if mode is MemoryMode.EQUAL_PAGES:
        return equal_pages(layers, rest, block_tokens=page_tokens)
    if mode is MemoryMode.ONE_BUDGET:
        return one_budget(layers, rest, page_tokens=page_tokens)
    return None


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

    shared = counts.shared
    page_size = units(memory.page_size if shared is None else shared.page_tokens)
    rules = snapshot_rules(
        memory.mamba_radix_cache_strategy,
        has_overlap=not scheduling.disable_overlap_schedule,
        is_cache_enabled=not memory.disable_radix_cache,
        page_size=page_size,
        track_interval=units(scheduling.mamba_track_interval),
        chunk_grid=units(CHUNK_GRID),
    )
    work = _in_units(counts.work, unit_tokens)
    policy = eviction_policy(
        memory.radix_eviction_policy,
        keeps_dead=rules.is_reference,
        work=work,
        alpha=memory.marconi_alpha,
    )
    clock = WorkClock(work)
    context_length = -(-counts.context_length // unit_tokens)
    chunk = scheduling.chunked_prefill_size
    chunk_tokens = context_length if chunk == WHOLE_PROMPTS else units(chunk)
    # Whole pages, at least one.
    chunk_tokens = max(chunk_tokens // page_size, 1) * page_size
    return Scheduler(
        cache=_cache(resolved, counts, policy, page_size=page_size, unit_tokens=unit_tokens),
        rules=rules,
        order=queue_order(
            scheduling.schedule_policy,
            clock,
            as_reference=rules.is_reference,
            unit_tokens=unit_tokens,
        ),
        clock=clock,
        limits=Limits(
            max_running_requests=counts.max_running_requests,
            chunk_tokens=chunk_tokens,
            context_length=context_length,
            admit_tokens=min(chunk_tokens, units(scheduling.max_prefill_tokens)),
            min_awaited_tokens=units(MIN_AWAITED_TOKENS),
            max_expected_tokens=units(MAX_EXPECTED_TOKENS),
        ),
        log=log,
        is_due=is_due,
    )


def _cache(
    resolved: Resolved,
    counts: PoolCounts,
    policy: EvictionPolicy,
    *,
    page_size: int,
    unit_tokens: int,
) -> PrefixCache:
    """Build the cache over two pools, one memory or one budget, all in units."""
    memory = resolved.memory
    return PrefixCache(
        num_rows=counts.num_rows // unit_tokens // page_size * page_size,
        num_slots=counts.num_slots,
        policy=policy,
        page_size=page_size,
        max_states_per_path=memory.mamba_max_states_per_path,
        needs_state=counts.needs_state,
        is_enabled=not memory.disable_radix_cache,
        arena=None if counts.arena is None else _arena(counts.arena, unit_tokens, page_size),
        budget=None if counts.shared is None else _budget(counts.shared, unit_tokens),
        run_rows=_run_units(unit_tokens),
    )


def _arena(plan: ArenaPlan, unit_tokens: int, page_size: int) -> Arena:
    """Return the arena with rows of whole units; a state takes whole pages of them."""
    per_slot = -(-plan.rows_per_slot // (unit_tokens * page_size)) * page_size
    num_frames = plan.num_rows // unit_tokens // per_slot
    return Arena(num_frames, per_slot, page_size, run_rows=_run_units(unit_tokens))


def _run_units(unit_tokens: int) -> int:
    """Return the units of a run: rows are handed out in runs of tokens, not of whole blocks."""
    return max(1, RUN_ROWS // unit_tokens)


def _budget(shared: SharedMemory, unit_tokens: int) -> OneBudget:
    """Return the budget with pages of whole units: several pages make one where it is longer."""
    budget = shared.budget
    page_cost = budget.page_cost * -(-unit_tokens // shared.page_tokens)
    return OneBudget(total=budget.total, page_cost=page_cost, slot_cost=budget.slot_cost)


def _in_units(work: PrefillWork, unit_tokens: int) -> PrefillWork:
    """Return what prefixes cost when a row stands for so many tokens."""
    return PrefillWork(
        flops_per_row=work.flops_per_row * unit_tokens,
        flops_per_pair=work.flops_per_pair * unit_tokens**2,
        row_bytes=work.row_bytes * unit_tokens,
        slot_bytes=work.slot_bytes,
    )
