"""The bound is never below the best of all histories that keep and drop what they like.

The search knows nothing of gaps or programs: it walks the moments of a tiny trace, and at each one
tries every choice of what to reuse and of what to keep until the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from served import infinite_tokens, most_held, served, traces
from twinpool.replay.bound import ByteBudget, hit_bound
from twinpool.replay.records import ServedRequest

Prefix = tuple[int, ...]
Prefixes = frozenset[Prefix]

DEAD_END = -1_000_000


class Search:
    """Finds the most tokens that any history reuses.

    Args:
        requests: The trace, one token to the unit.
        units, slots: Static pools; with `slot_units`, `units` is one budget, and a slot takes
            so many units of it.
    """

    def __init__(
        self,
        requests: list[ServedRequest],
        units: int,
        slots: int | None,
        slot_units: int | None = None,
    ) -> None:
        self.requests = requests
        self.units, self.slots, self.slot_units = units, slots, slot_units
        self.paths = [tuple(request.path.tolist()) for request in requests]
        times = {time for r in requests for time in (r.admitted_s, r.first_token_s, r.finished_s)}
        self.times = sorted(times)
        self.best = cache(self._best)

    def most(self) -> int:
        """Return the most tokens reused."""
        return self.best(0, frozenset(), frozenset(), ())

    def _best(
        self, moment: int, kv: Prefixes, points: Prefixes, depths: tuple[tuple[int, int], ...]
    ) -> int:
        """Return the most that can be reused from a moment on.

        `depths` are the requests under way, each with what it reused.
        """
        if moment == len(self.times):
            return 0
        now = self.times[moment]
        kv, points = self._produced(now, kv, points, depths)
        new = [n for n, request in enumerate(self.requests) if request.admitted_s == now]
        choices = [self._depths(number, kv, points) for number in new]
        still = tuple(pair for pair in depths if self.requests[pair[0]].finished_s > now)
        # What has been reused and must be locked may leave no room for what begins later.
        best = DEAD_END
        for chosen in product(*choices):
            under_way = still + tuple(zip(new, chosen, strict=True))
            for kept in self._kept(now, kv, points, under_way):
                best = max(best, sum(chosen) + self.best(moment + 1, *kept, under_way))
        return best

    def _produced(
        self, now: float, kv: Prefixes, points: Prefixes, depths: tuple[tuple[int, int], ...]
    ) -> tuple[Prefixes, Prefixes]:
        """Add what the requests under way may have computed by now, at any pace."""
        new_kv, new_points = set(kv), set(points)
        for number, reused in depths:
            request, path = self.requests[number], self.paths[number]
            prompt = request.prompt_units
            in_prefill = now <= request.first_token_s or request.retractions
            end = prompt if now <= request.first_token_s else len(path)
            new_kv |= {path[:depth] for depth in range(1, end + 1)}
            first = reused if in_prefill else max(reused, prompt)
            if request.retractions:
                first = 0
            new_points |= {path[:depth] for depth in range(first + 1, end + 1)}
        return frozenset(new_kv), frozenset(new_points)

    def _depths(self, number: int, kv: Prefixes, points: Prefixes) -> list[int]:
        path = self.paths[number]
        found = [0]
        for depth in range(1, self.requests[number].prompt_units + 1):
            if path[:depth] not in kv:
                break
            if path[:depth] in points or not self._has_states:
                found.append(depth)
        return found

    @property
    def _has_states(self) -> bool:
        return self.slots is not None or self.slot_units is not None

    def _kept(
        self, now: float, kv: Prefixes, points: Prefixes, under_way: tuple[tuple[int, int], ...]
    ) -> Iterator[tuple[Prefixes, Prefixes]]:
        """Yield every choice of what to keep until the next moment that drops no more than it must.

        What runs holds its prompt from its first token on, before that what it reused.
        """
        held: set[Prefix] = set()
        num_running = 0
        for number, reused in under_way:
            request = self.requests[number]
            if request.retractions or request.finished_s <= now:
                continue
            num_running += 1
            end = request.prompt_units if request.first_token_s <= now else reused
            held |= {self.paths[number][:depth] for depth in range(1, end + 1)}
        wanted = {
            path[:depth]
            for path, request in zip(self.paths, self.requests, strict=True)
            if request.admitted_s > now
            for depth in range(1, request.prompt_units + 1)
        }
        idle = sorted((kv - held) & wanted)
        useful = sorted(points & wanted) if self._has_states else []
        for num_points in range(len(useful) + 1):
            room = self.units - len(held)
            if self.slot_units is not None:
                room -= (num_running + num_points) * self.slot_units
            is_over = self.slots is not None and num_running + num_points > self.slots
            if room < 0 or is_over:
                continue
            for some in combinations(useful, num_points):
                for units in combinations(idle, min(room, len(idle))):
                    yield frozenset(units) | frozenset(held & wanted), frozenset(some)


small = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))


@small
@given(
    trace=traces(max_requests=6, max_units=5),
    spare_units=st.integers(0, 3),
    spare_slots=st.integers(0, 2),
)
def test_bound_is_never_below_any_history_in_static_pools(trace, spare_units, spare_slots):
    units, slots = most_held(trace)
    units, slots = units + spare_units, slots + spare_slots
    bound = hit_bound(trace, capacity_units=units, state_slots=slots)
    best = Search(trace, units, slots).most()
    event("tight" if bound.hit_tokens == best else "loose")
    event("bound by memory" if best < infinite_tokens(trace) else "all reused")
    assert bound.hit_tokens >= best


@small
@given(
    trace=traces(max_requests=6, max_units=5),
    spare_units=st.integers(0, 4),
    slot_units=st.integers(1, 3),
)
def test_bound_is_never_below_any_history_in_one_budget(trace, spare_units, slot_units):
    units, slots = most_held(trace)
    total = units + slots * slot_units + spare_units
    budget = ByteBudget(total * 10, 10, slot_units * 10)
    best = Search(trace, total, None, slot_units).most()
    assert hit_bound(trace, one_budget=budget).hit_tokens >= best


@small
@given(trace=traces(max_requests=6, max_units=5), spare_units=st.integers(0, 4))
def test_bound_is_never_below_any_history_without_states(trace, spare_units):
    units = most_held(trace)[0] + spare_units
    best = Search(trace, units, None).most()
    assert hit_bound(trace, capacity_units=units).hit_tokens >= best


def test_search_and_bound_agree_on_two_prompts_that_take_turns():
    # a b a b: beside the one that runs, the other waits for its turn.
    first, second = [1, 1, 1], [2, 2, 2]
    trace = [
        served(path, (10 * turn, 10 * turn + 1, 10 * turn + 2))
        for turn, path in enumerate((first, second, first, second))
    ]
    for units, most in ((3, 0), (4, 2), (5, 4), (6, 6)):
        assert Search(trace, units, 4).most() == most
        assert hit_bound(trace, capacity_units=units, state_slots=4).hit_tokens == most
