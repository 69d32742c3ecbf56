"""What comes with the strategies of other engines: their queue, admission, locks and places."""

from __future__ import annotations

import pytest

from simulation import Rig, make_rig
from twinpool.errors import CapacityError
from twinpool.memory.one_budget import OneBudget
from twinpool.scheduling.known_match import MAX_MATCHED_QUEUE
from twinpool.scheduling.order import REFRESH_PASSES
from twinpool.scheduling.sampling import SamplingParams

A, B, C = ([letter] * 128 for letter in (1, 2, 3))


def places(rig: Rig) -> list[int]:
    return sorted(n.depth for n in rig.scheduler.cache.tree.nodes() if n.has_checkpoint)


def full_queue(order: str) -> Rig:
    """Cache three prompts, then let all three wait again behind one that runs for long."""
    rig = make_rig(
        strategy="extra_buffer", order=order, max_running=1, as_reference=True, num_rows=2048
    )
    for prompt in (A, B, C):
        rig.one([*prompt, 9], max_tokens=1)
    return rig


def ordered(rig: Rig) -> list[int]:
    """Look at the whole queue; returns ids in its order."""
    waiting, order = rig.scheduler._roster.waiting, rig.scheduler._queue_pass._order
    queue = order.first(waiting, rig.scheduler.cache, len(waiting))
    return [request.request_id for request in queue]


def recency(rig: Rig) -> list[int]:
    """Name the cached prompts from the least to the most recent KV."""
    leaves = [node for node in rig.scheduler.cache.tree.nodes() if not node.children]
    return [int(leaf.tokens[0]) for leaf in sorted(leaves, key=lambda leaf: leaf.row_used)]


def test_fcfs_keeps_the_queue_recent_with_its_head_on_top():
    rig = full_queue("fcfs")
    assert recency(rig) == [1, 2, 3]
    waiting = [rig.add([*prompt, 8]) for prompt in (A, B)]
    for _ in range(REFRESH_PASSES):
        # A pass counts when the tree has changed.
        rig.scheduler.cache.tree.namespaces.version += 1
        ordered(rig)
    assert recency(rig) == [3, 2, 1]
    assert ordered(rig) == waiting


def test_lpm_makes_all_that_it_matches_recent_in_every_pass():
    rig = full_queue("lpm")
    for prompt in (B, A):
        rig.add([*prompt, 8])
    ordered(rig)
    assert recency(rig) == [3, 2, 1]


def test_lpm_puts_off_what_another_waiting_request_will_bring():
    rig = make_rig(strategy="extra_buffer", order="lpm", as_reference=True, num_rows=4096)
    first = rig.add([5] * 200)
    same = rig.add([*[5] * 180, 6])
    other = rig.add([7] * 40)
    assert ordered(rig) == [first, other, same]


def test_lpm_of_a_long_queue_is_fcfs_and_touches_nothing():
    rig = full_queue("lpm")
    prompts = [[10 + number] * 40 for number in range(MAX_MATCHED_QUEUE)] + [[*A, 8]]
    waiting = [rig.add(prompt) for prompt in prompts]
    assert ordered(rig) == waiting
    assert recency(rig) == [1, 2, 3]


@pytest.mark.parametrize("strategy", ["extra_buffer", "extra_buffer_lazy"])
def test_a_running_request_keeps_the_checkpoint_that_it_left_last(strategy):
    rig = make_rig(strategy=strategy, num_rows=2048)
    rig.one([*A, 9], max_tokens=1)
    rig.add([*A, *B, 9], max_tokens=8)
    rig.step()
    locked = [node.depth for node in rig.scheduler.cache.tree.nodes() if node.slot_locks]
    assert locked == [256]
    rig.run()
    assert not any(node.slot_locks for node in rig.scheduler.cache.tree.nodes())


@pytest.mark.parametrize(
    ("ignore_eos", "max_tokens", "is_admitted"),
    [(True, 60, False), (True, 10, True), (False, 40, True)],
)
def test_answers_that_cannot_end_early_count_whole(ignore_eos, max_tokens, is_admitted):
    rig = make_rig(strategy="no_buffer", num_rows=128)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=ignore_eos)
    rig.add([1] * 16, sampling=sampling)
    rig.step()
    newcomer = rig.add([2] * 60, max_tokens=1)
    plan = rig.step()
    assert (newcomer in [lane.request_id for lane in plan.lanes]) == is_admitted
    rig.run()


def test_align_leaves_the_last_block_border_of_a_prompt_and_nothing_behind_it():
    rig = make_rig(strategy="align", page_size=16, chunk_tokens=512)
    rig.one(range(100), max_tokens=40, boundaries=(30,))
    assert places(rig) == [96]
    rig.one(range(96), max_tokens=1)
    # The last token is computed for its logits, so the border before is what a repeat needs.
    assert places(rig) == [80, 96]


def test_align_leaves_one_where_a_shared_prefix_was_seen_to_end():
    rig = make_rig(strategy="align", page_size=16, chunk_tokens=512)
    rig.one(range(100), max_tokens=1)
    second = rig.one([*range(70), *range(200, 230)], max_tokens=1)
    third = rig.one([*range(70), *range(300, 330)], max_tokens=1)
    assert (rig.cached[second], rig.cached[third]) == (0, 64)


def test_marconi_leaves_branch_points_and_the_last_decoded_token():
    rig = make_rig(strategy="marconi", policy="marconi")
    rig.one(range(100), max_tokens=10, boundaries=(30,))
    assert places(rig) == [109]
    rig.one([*range(60), *range(200, 240)], max_tokens=10)
    assert places(rig) == [60, 109, 109]
    third = rig.one([*range(60), *range(300, 340)], max_tokens=1)
    assert rig.cached[third] == 60


@pytest.mark.parametrize("policy", ["lru", "joint-lru", "block-lru", "marconi"])
@pytest.mark.parametrize("strategy", ["direct", "align", "marconi"])
def test_requests_on_one_budget_wait_for_each_other_and_all_end(strategy, policy):
    # A state takes as much as 6 pages: rows and states crowd each other out.
    budget = OneBudget(total=64, page_cost=1, slot_cost=6)
    rig = make_rig(
        strategy=strategy,
        policy=policy,
        page_size=4,
        num_rows=4 * budget.max_pages,
        num_slots=budget.slots(63),
        max_running=64,
        budget=budget,
    )
    for number in range(24):
        rig.add([number % 5] * (9 + 5 * (number % 7)), max_tokens=1 + number % 9)
    rig.run()
    assert len(rig.ended) == 24
    assert rig.scheduler.flush()


@pytest.mark.parametrize(
    ("strategy", "num_slots"),
    [("direct", 2), ("align", 2), ("marconi", 2), ("extra_buffer", 4), ("extra_buffer_lazy", 3)],
)
def test_the_largest_request_of_one_budget_runs_alone_and_a_larger_one_is_refused(
    strategy, num_slots
):
    budget = OneBudget(total=64, page_cost=1, slot_cost=6)
    # More row numbers than the budget has pages beside the slots of a request.
    rig = make_rig(
        strategy=strategy,
        page_size=4,
        num_rows=4 * budget.total,
        num_slots=budget.slots(63),
        budget=budget,
    )
    # The last token that is sampled takes no row.
    most = 4 * (budget.total - num_slots * budget.slot_cost) + 1
    for _ in range(2):
        rig.one(range(most - 9), max_tokens=9)
    assert len(rig.ended) == 2
    with pytest.raises(CapacityError, match=f"{most + 1} tokens"):
        rig.add(range(most - 9), max_tokens=10)


def test_the_largest_request_of_one_budget_finds_its_state_again():
    budget = OneBudget(total=64, page_cost=1, slot_cost=6)
    rig = make_rig(
        page_size=4,
        num_rows=4 * budget.max_pages,
        num_slots=budget.slots(63),
        budget=budget,
    )
    rig.one(range(200), max_tokens=9)
    rig.one(range(200), max_tokens=9)
    assert rig.cached[1] == 196
