"""Running cap: how many requests may run at once, and the slots that each of them reserves.

Knows the sizes of both pools and nothing of the requests themselves.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from twinpool.errors import CapacityError, ConfigError
from twinpool.memory.sizing import PoolSizes


class SlotStrategy(enum.StrEnum):
    """How a running request comes by its checkpoints, and so how many slots it reserves."""

    DIRECT = "direct"
    EXTRA_BUFFER = "extra_buffer"
    EXTRA_BUFFER_LAZY = "extra_buffer_lazy"
    NO_BUFFER = "no_buffer"
    ALIGN = "align"
    MARCONI = "marconi"


# Those of the reference engine; the others hold nothing beside the working state.
REFERENCE_STRATEGIES = frozenset(
    {SlotStrategy.EXTRA_BUFFER, SlotStrategy.EXTRA_BUFFER_LAZY, SlotStrategy.NO_BUFFER}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCap:
    """How many requests may run at once, and what decided it.

    Attributes:
        value: The cap in force, 1 or more.
        asked: What was asked for; None when nothing was.
        binds: `asked`, `estimate` (nothing asked), `kv` or `state`: which term is the smallest.
    """

    value: int
    asked: int | None
    binds: str

    @property
    def is_clamped(self) -> bool:
        """True when an explicit wish could not be met."""
        return self.asked is not None and self.value < self.asked


def slots_per_request(
    strategy: SlotStrategy | str, *, overlap: bool = True, prefix_cache: bool = True
) -> int:
    """Say how many state slots a running request reserves, `S`.

    Args:
        strategy: How checkpoints are taken.
        overlap: True when the next step may start before this one's results are handled.
        prefix_cache: False when nothing is kept for reuse; then only the working state is there.

    Raises:
        ConfigError: If the strategy is not known, or cannot be combined with `overlap`.

    Source: the reference engine's table; `direct` is ours: a checkpoint is copied at once into a
    slot that the tree owns, so that nothing has to be reserved for it. So it is with `align`
    (vLLM) and `marconi` (its paper), which differ in where checkpoints stand.
    """
    try:
        known = SlotStrategy(strategy)
    except ValueError:
        names = ", ".join(SlotStrategy)
        raise ConfigError(f"unknown slot strategy {strategy!r}", hint=f"one of {names}") from None
    if not prefix_cache or known not in REFERENCE_STRATEGIES:
        return 1
    if known is SlotStrategy.NO_BUFFER:
        return 3
    if known is SlotStrategy.EXTRA_BUFFER:
        return 5 if overlap else 4
    if not overlap:
        raise ConfigError(
            "extra_buffer_lazy needs overlap, and overlap is off",
            hint="drop --disable-overlap-schedule, or use extra_buffer",
        )
    return 4


def running_cap(
    pools: PoolSizes, asked: int | None = None, *, context_length: int | None = None
) -> RunningCap:
    """Say how many requests may run at once: `min(asked, tokens // 2, K // S)`.

    Args:
        pools: Both pools.
        asked: `--max-running-requests`; None: the reference engine's estimate.
        context_length: The model's longest sequence, for the estimate.

    Raises:
        CapacityError: If not even one request could run; the hint says what to change.
    """
    terms = [("kv", pools.kv_tokens // 2)] if pools.geometry.row_bytes else []
    if pools.geometry.slot_bytes:
        terms.append(("state", pools.state_slots // pools.slots_per_request))
    if asked is None:
        terms.append(("estimate", _estimated_requests(pools.kv_tokens, context_length)))
    else:
        if asked < 1:
            raise ConfigError(f"--max-running-requests is {asked}", hint="use 1 or more")
        terms.append(("asked", asked))
    # Of equal terms the wish is named first: it is then not clamped.
    binds, value = min(reversed(terms), key=lambda term: term[1])
    if value < 1:
        raise _no_request_fits(pools, binds)
    return RunningCap(value=value, asked=asked, binds=binds)


def _estimated_requests(tokens: int, context_length: int | None) -> int:
    """Guess how many requests to allow when nothing was asked, as the reference engine does."""
    estimate = tokens * 512 // context_length if context_length else 0
    return min(max(estimate, 2048), 4096)


def _no_request_fits(pools: PoolSizes, binds: str) -> CapacityError:
    if binds == "kv":
        return CapacityError(
            f"the KV pool holds {pools.kv_tokens} tokens, and one request needs 2",
            hint="give the pools more memory, or lower --mamba-full-memory-ratio",
        )
    return CapacityError(
        f"the state pool holds {pools.state_slots} slots, and one request reserves "
        f"{pools.slots_per_request}",
        hint="raise --mamba-full-memory-ratio or --max-mamba-cache-size, give the pools more "
        "memory, or use --mamba-radix-cache-strategy direct, which reserves 1",
    )
