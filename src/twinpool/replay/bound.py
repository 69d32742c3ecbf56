r"""An upper bound on the hit rate of any cache policy, for one schedule and given bytes.

Knows what was served and when, and how much memory there is; neither a policy, nor a tree, nor
what a step costs. Device memory alone: a policy that loads back from a host may do better.

**What is bounded.** Requests arrive, are admitted and end as recorded. A request that reuses `d`
units at its admission needs the KV of units `[0, d)` of its path and one checkpoint exactly at
`d`. Both were produced by a request admitted before it and were kept in device memory from then
on. A linear program over how much of each reuse is kept takes every such history as a solution:

    request  k        |--prefill--|--decode--|
    request  k+1                                            |--prefill--|
    KV of what they share         [ held by k ][ idle: costs ][ locked   ]
    checkpoint at its end         [ costs                     ]

**Why nothing beats it.** Let a history be given: what any policy keeps at any time. Each
constraint below holds for it, each shortcut only gives it more room, and the objective counts its
cached tokens in full.

* *Segments.* The prefix tree of everything served, cut where paths part or end. The variable of a
  segment and a request is the part of it that the request reuses, from the top. Reuse is a prefix,
  so no segment is reused more than the one above it.
* *KV.* A segment's KV can be produced only by requests whose path it is on: a prompt's from their
  admission to their first token, an answer's between first token and end (to the end for both
  where a request was retracted and may have computed it again). What the next admitted request
  on that path reuses was therefore in memory from the latest of those moments on, without a
  break: what it does not reuse it computes again itself, so it need not be kept past it. Idle
  spans of one segment never overlap, whichever request they are for.
* *Checkpoints.* The same with one slot in place of the KV, at any depth inside the segment where
  the reuse ends; any earlier request on the path is taken to have left it, at the latest moment it
  could. One that lies deeper serves all above it, so a slot is counted once per request, over
  the span of the shallowest segment that is due, and never twice for a path.
* *Running requests* hold the KV of their prompt from first token to end, once however many share
  it, and one working slot from admission to end; what they reuse is locked from admission to first
  token, and counted for one of those that share it. Left out, in a policy's favour: KV of answers
  while they are written, of prompts while they are computed, further slots of a strategy,
  padding and pages, and all that a retracted request held.
* *Ties.* What is reused at the moment it is admitted takes memory up to that moment, and what
  ends at a moment is gone by then. Requests admitted at one moment reuse the same copy: one
  variable, counted for each of them.
* *Moments.* Capacity is asked for only at moments where something ends next: between, the use of
  memory only grows. Leaving more of them out (`max_rows`) can only raise the bound.
* *Fractions.* Parts may be kept, and rows of the program are the history's own inequalities, so
  its optimum is at least what the history reuses. The figure returned is the value of a dual
  solution, recomputed here: it is proved by weak duality even where the solver is inexact.

The records must name every request that was admitted: one that is missing has left nothing that
others could reuse. A working state is taken to be a slot of its own, apart from all checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Literal, NamedTuple

from twinpool.errors import ConfigError
from twinpool.replay.bound_gaps import find_gaps
from twinpool.replay.bound_solve import Limit, Program
from twinpool.replay.records import ServedRequest

MAX_ROWS = 20_000

# Sums of floats err by far less; real reuse is whole tokens, so what is above may be cut off.
_ROUNDING = 1e-9


class ByteBudget(NamedTuple):
    """Bytes that KV and states share.

    Attributes:
        total_bytes: All there is, working states and running KV included.
        unit_bytes: Bytes of the KV of one unit, 1 or more.
        slot_bytes: Bytes of one state slot; 0 for a model without linear layers.
    """

    total_bytes: int
    unit_bytes: int
    slot_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """No policy reuses more in this schedule with this memory.

    Attributes:
        hit_tokens: Prompt tokens reused at most.
        prompt_tokens: Prompt tokens of all requests.
        kind: Whether the split of the memory was fixed.
        is_exact: True when the bound takes every moment into account; False when rows were left
            out to save time, and it may be higher than it had to be.
        num_hits: Variables of the program.
        num_rows: Rows of capacity that took part.
    """

    hit_tokens: int
    prompt_tokens: int
    kind: Literal["static", "one-budget"]
    is_exact: bool
    num_hits: int
    num_rows: int

    @property
    def hit_rate(self) -> float:
        """Cached prompt tokens as a part of all; 0 when nothing was asked."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def hit_bound(
    requests: Sequence[ServedRequest],
    *,
    unfinished: Sequence[ServedRequest] = (),
    capacity_units: int | None = None,
    state_slots: int | None = None,
    one_budget: tuple[int, int, int] | None = None,
    max_rows: int = MAX_ROWS,
) -> Bound:
    """Bound the cached prompt tokens of any policy that serves these requests at these times.

    Args:
        requests: Everything that was served, in any order; all in units of one size.
        unfinished: What had been admitted and not ended when the schedule was cut off, with that
            moment as its end (and as its first token, where it had none). Others may reuse what
            it left; what it reuses itself does not count.
        capacity_units: Units of KV in a static pool; None for no end.
        state_slots: State slots in a static pool, padding left out; None for no end, or for a
            model without linear layers.
        one_budget: `ByteBudget`, in place of the two pools.
        max_rows: Rows of capacity at most; see `Bound.is_exact`.

    Returns:
        The bound; a prompt's reuse counts at most its input tokens.

    Raises:
        ConfigError: If a number is out of range, both kinds of memory are given, or a record's
            numbers contradict each other.
        CapacityError: If the running requests alone need more memory than there is: the schedule
            was not served within it.

    Cost:
        Seconds for ten thousand requests.
    """
    limits = _limits(capacity_units, state_slots, one_budget)
    if max_rows < 1:
        raise ConfigError(f"max_rows is {max_rows}", hint="use 1 or more")
    everything = [*requests, *unfinished]
    for request in everything:
        _check(request, everything[0].unit_tokens)
    solution = Program(find_gaps(requests, unfinished), limits).solve(max_rows)
    return Bound(
        hit_tokens=floor(solution.tokens * (1 + _ROUNDING) + _ROUNDING),
        prompt_tokens=sum(request.input_tokens for request in requests),
        kind="static" if one_budget is None else "one-budget",
        is_exact=solution.is_exact,
        num_hits=solution.num_hits,
        num_rows=solution.num_rows,
    )


def _limits(
    capacity_units: int | None, state_slots: int | None, one_budget: tuple[int, int, int] | None
) -> list[Limit]:
    limits: list[Limit] = []
    if one_budget is not None:
        if capacity_units is not None or state_slots is not None:
            raise ConfigError(
                "a bound over static pools and over one budget at once",
                hint="give capacity_units and state_slots, or one_budget",
            )
        total, unit, slot = one_budget
        if min(total, slot) < 0 or unit < 1:
            raise ConfigError(
                f"one budget of {total} bytes, {unit} per unit and {slot} per slot",
                hint="use 1 or more per unit, and 0 or more for the others",
            )
        return [Limit(name="bytes", per_unit=unit, per_slot=slot, total=total)]
    if capacity_units is not None:
        limits.append(Limit(name="units of KV", per_unit=1, per_slot=0, total=capacity_units))
    if state_slots is not None:
        limits.append(Limit(name="state slots", per_unit=0, per_slot=1, total=state_slots))
    for limit in limits:
        if limit.total < 0:
            raise ConfigError(f"{limit.total} {limit.name}", hint="use 0 or more")
    return limits


def _check(request: ServedRequest, unit_tokens: int) -> None:
    """Check what the argument above relies on."""
    times = (request.admitted_s, request.first_token_s, request.finished_s)
    problem = ""
    if not times[0] <= times[1] <= times[2]:
        problem = f"admission, first token and end at {times[0]}, {times[1]} and {times[2]} s"
    elif request.unit_tokens != unit_tokens or unit_tokens < 1:
        problem = f"units of {request.unit_tokens} tokens, another has {unit_tokens}"
    elif not 0 <= request.prompt_units <= len(request.path):
        problem = f"{request.prompt_units} units of prompt in a path of {len(request.path)}"
    elif request.input_tokens < 0:
        problem = f"{request.input_tokens} input tokens"
    if problem:
        raise ConfigError(
            f"request {request.index} of session {request.session!r} has {problem}",
            hint="pass the records of one replay as it made them",
        )
