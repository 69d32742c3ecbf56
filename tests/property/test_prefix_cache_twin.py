"""The prefix cache and its naive twin do the same, operation by operation.

Requests arrive, wait and look again, start, go on and end as under the scheduler. By value the
twin's victims are the ones worth least of all, exactly: of likelihood x savings per byte, these in
steps of the square root of 2.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from twin_caches import TwinCaches
from twin_requests import TwinRequests, User
from twin_walks import serve, walk
from twinpool.memory.naive import POLICIES
from twinpool.memory.place import PlaceKind

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)


class TwinMachine(RuleBasedStateMachine):
    """Operations in any order, shrunk to a short one when the twins differ."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        page_size=st.sampled_from([1, 4]),
        cap=st.sampled_from([-1, 1, 2]),
        num_pages=st.sampled_from([12, 30, 200]),
        num_slots=st.sampled_from([1, 3, 6, 30]),
        needs_state=st.sampled_from([True, True, True, False]),
        keeps_dead=st.booleans(),
        budget=st.sampled_from([None, None, (24, 1, 4), (60, 2, 3), (200, 1, 7)]),
    )
    def build(self, **sizes) -> None:
        self.twins = TwinCaches(**sizes)
        self.requests = TwinRequests(self.twins)
        self.prompts: list[tuple[int, ...]] = [()]

    @rule(data=st.data(), more=TOKENS, namespace=st.sampled_from(["", "", "x"]))
    def begin(self, data, more, namespace) -> None:
        base = data.draw(st.sampled_from(self.prompts))
        kept = data.draw(st.integers(0, len(base)))
        prompt = (base[:kept] + more)[:24]
        self.prompts.append(prompt)
        waiting = self.requests.arrive(namespace, prompt)
        if not data.draw(st.booleans()):
            self.requests.admit(waiting)

    @precondition(lambda self: self.requests.waiting)
    @rule(data=st.data(), verb=st.sampled_from(["look", "touch", "admit", "admit", "forget"]))
    def wait(self, data, verb) -> None:
        getattr(self.requests, verb)(data.draw(st.sampled_from(self.requests.waiting)))

    def user(self, data) -> User:
        return data.draw(st.sampled_from(self.requests.users))

    @precondition(lambda self: self.requests.users)
    @rule(
        data=st.data(),
        more=st.lists(st.integers(0, 2), max_size=5).map(tuple),
        places=st.sets(st.integers(1, 20), max_size=3),
        may_evict=st.booleans(),
        first_to_go=st.sampled_from([False, False, True]),
        kind=st.sampled_from(PlaceKind),
        generation=st.integers(0, 4),
    )
    def extend(self, data, more, places, **fields) -> None:
        user = self.user(data)
        self.requests.extend(user, more, places, **fields)
        self.prompts.append(user.tokens)

    @precondition(lambda self: self.requests.users)
    @rule(data=st.data(), verb=st.sampled_from(["copy_match", "roll", "claim", "end", "end"]))
    def use(self, data, verb) -> None:
        getattr(self.requests, verb)(self.user(data))

    @rule(num_rows=st.integers(1, 40))
    def take_rows(self, num_rows) -> None:
        rows = self.twins.take_rows(num_rows)
        if rows is not None:
            self.twins.spare_rows.append(rows)

    @rule(may_evict=st.booleans())
    def take_slot(self, may_evict) -> None:
        slots = self.twins.take_slot(may_evict=may_evict)
        if slots is not None:
            self.twins.spare_slots.append(slots)

    @precondition(lambda self: self.twins.spare_rows)
    @rule()
    def give_rows(self) -> None:
        self.twins.give_rows(self.twins.spare_rows.pop())

    @precondition(lambda self: self.twins.spare_slots)
    @rule()
    def give_slot(self) -> None:
        self.twins.give_slot(self.twins.spare_slots.pop())

    @rule()
    def flush(self) -> None:
        self.twins.flush()

    @invariant()
    def same(self) -> None:
        if hasattr(self, "twins"):
            self.requests.check()

    def teardown(self) -> None:
        if hasattr(self, "twins"):
            self.requests.close()


TestTwins = TwinMachine.TestCase
TestTwins.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


CASES = list(itertools.product(POLICIES, [1, 4], [-1, 1, 2], [True, False]))
# Pages, states, and how many of either one memory holds.
BUDGETS = [(20, 1, 4), (60, 2, 3), (90, 1, 11)]


@pytest.mark.parametrize(("policy", "page_size", "cap", "needs_state"), CASES)
def test_long_random_walks_end_with_the_same_books(policy, page_size, cap, needs_state):
    rnd = random.Random(f"{policy} {page_size} {cap} {needs_state}")
    for _ in range(3 if needs_state else 1):
        twins = TwinCaches(
            policy=policy,
            page_size=page_size,
            cap=cap,
            num_pages=rnd.choice([25, 60, 150]),
            num_slots=rnd.choice([2, 5, 9, 20]),
            needs_state=needs_state,
        )
        walk(twins, rnd, 250)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
def test_rows_and_slots_of_one_budget_keep_its_books(policy, page_size, budget):
    rnd = random.Random(f"{policy} {page_size} {budget}")
    twins = TwinCaches(
        policy=policy,
        page_size=page_size,
        cap=rnd.choice([-1, 2]),
        num_pages=budget[0] // budget[1],
        num_slots=budget[0] // budget[2],
        needs_state=True,
        budget=budget,
    )
    walk(twins, rnd, 250)


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("cap", [-1, 2])
def test_tombstones_wait_for_their_own_turn_in_both(page_size, cap):
    rnd = random.Random(f"{page_size} {cap}")
    for _ in range(2):
        twins = TwinCaches(
            policy="lru",
            page_size=page_size,
            cap=cap,
            num_pages=rnd.choice([25, 60]),
            num_slots=rnd.choice([3, 9]),
            needs_state=True,
            keeps_dead=True,
        )
        walk(twins, rnd, 250)


# Pages and slots, or what both are drawn from.
SERVED = [(60, 6, None), (150, 12, None), (200, 30, None), (100, 30, (190, 1, 11))]


@pytest.mark.parametrize(("num_pages", "num_slots", "budget"), SERVED)
@pytest.mark.parametrize("seed", range(3))
def test_by_value_the_unit_that_goes_is_worth_least(num_pages, num_slots, budget, seed):
    twins = TwinCaches(
        policy="value",
        page_size=1,
        cap=-1,
        num_pages=num_pages,
        num_slots=num_slots,
        needs_state=True,
        budget=budget,
    )
    serve(twins, random.Random(seed), 120)
    assert twins.real.evictor.evicted_slots["slots"] > 10
    assert twins.real.evictor.thrashed_tokens > 0
