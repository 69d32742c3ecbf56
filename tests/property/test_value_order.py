"""Eviction by value against brute force: the unit that goes is the one worth least of all.

The worth of every unit is worked out here from its definition, over all nodes of the tree, before
each eviction of random walks on two pools, one budget and an arena.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from twinpool.errors import OutOfRows
from twinpool.memory.arena import Arena
from twinpool.memory.audit import Holdings, audit
from twinpool.memory.eviction import eviction_policy
from twinpool.memory.foresight import CERTAINTY
from twinpool.memory.node import Node
from twinpool.memory.one_budget import OneBudget
from twinpool.memory.place import PlaceKind
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.value import Value
from twinpool.memory.work import PrefillWork

WORK = PrefillWork(flops_per_row=5, flops_per_pair=1, row_bytes=2, slot_bytes=30)


def worth(policy: Value, node: Node) -> tuple[float, int, int, int]:
    """Seconds saved x likelihood x returns per byte, from the definition."""
    above = [step for step in list(node.path())[1:] if step.has_checkpoint]
    start = above[0].depth if above else 0
    saved = sum(5 + depth for depth in range(start + 1, node.depth + 1))
    is_leaf = not node.children and not node.row_locks
    freed = 30 * node.has_checkpoint + (2 * (node.depth - start) if is_leaf else 0)
    level = math.floor(2 * math.log2(saved / freed))
    used = node.slot_used if node.has_checkpoint else node.row_used
    kind = (int(node.kind) * 3 + min(node.hits, 2)) * 4 + min(node.generation, 3)
    chance = 1.0 if node.num_wanting else policy.returns.likelihood(kind, policy.now - used)
    returns = chance * 2.0 ** (level / 2) * (1.0 + further_returns(policy, kind))
    return (returns, used, -node.depth, node.number)


def further_returns(policy: Value, kind: int) -> float:
    """Returns expected beyond the next one: those of the classes that a unit goes on to."""
    counted = policy.returns.ages
    firsts = [counted(number) for number in range(72) if number // 4 % 3 == 0]
    horizon = sum(total for _, total in firsts) / max(sum(count for count, _ in firsts), 1.0)
    last = kind + (2 - kind // 4 % 3) * 4
    count, total = counted(last)
    further = 0.0
    if count:
        go_on = policy.returns.seen(last, 0)
        within = horizon / max(total / count, 1.0)
        further = min(go_on / (1.0 - go_on), within)
    for step in range(last, kind, -4):
        further = policy.returns.seen(step, 0) * (1.0 + further)
    return further


def watched(cache: PrefixCache) -> list[Node]:
    """Compare every victim with the least of all units; returns the victims so far."""
    evictor, policy = cache.evictor, cache.policy
    assert isinstance(policy, Value)
    seen: list[Node] = []

    def units(*, of_rows: bool, of_slots: bool) -> list[Node]:
        return [
            node
            for node in cache.tree.nodes()
            if (of_rows and not node.children and not node.row_locks)
            or (of_slots and node.has_checkpoint and not node.slot_locks)
        ]

    def check(pop, **which):
        def checked():
            expected = min((worth(policy, node) for node in units(**which)), default=None)
            victim = pop()
            assert (victim is None) == (expected is None)
            if victim is not None:
                assert worth(policy, victim) == expected
                seen.append(victim)
            return victim

        return checked

    evictor.pop_first = check(evictor.pop_first, of_rows=True, of_slots=True)
    if cache.supply.budget is None:
        evictor.row_victims.pop = check(evictor.row_victims.pop, of_rows=True, of_slots=False)
        evictor.slot_victims.pop = check(evictor.slot_victims.pop, of_rows=False, of_slots=True)
    return seen


def worth_a_slot(
    cache: PrefixCache, node: Node, ids: np.ndarray, above: int, kind: PlaceKind, generation: int
) -> bool:
    """Compare what the cache says of a new checkpoint with its definition."""
    policy = cache.policy
    assert isinstance(policy, Value)
    saved = sum(5 + depth for depth in range(above + 1, len(ids) + 1))
    level = math.floor(2 * math.log2(saved / (30 + 2 * (len(ids) - above))))
    number = int(kind) * 12 + min(generation, 3)
    new = policy.returns.likelihood(number, 0) * 2.0 ** (level / 2)
    new *= 1.0 + further_returns(policy, number)
    shared = cache.supply.budget is not None
    others = [
        worth(policy, unit)[0]
        for unit in cache.tree.nodes()
        if (unit.has_checkpoint and not unit.slot_locks)
        or (shared and not unit.children and not unit.row_locks)
    ]
    least = min(others, default=math.inf)
    expected = cache.supply.free_slots > 0 or least <= CERTAINTY * new
    holder = node if node.has_checkpoint else next(iter(node_holders(node)), None)
    found = cache.foresight.admit_checkpoint("", node, ids, above, kind, generation)
    assert found == expected
    if not found and holder is not None:
        # The session falls back to it: it is no longer one that has been continued.
        assert holder.hits != 1
    return found


def node_holders(node: Node) -> list[Node]:
    return [step for step in list(node.path())[1:] if step.has_checkpoint]


def walk(cache: PrefixCache, rnd: random.Random, num_operations: int) -> int:
    """Run sessions that grow, fork and end, with an audit after each request.

    Returns:
        How many checkpoints were not worth a slot.
    """
    num_omitted = 0
    history: list[list[int]] = []
    wanted: list[Node] = []
    for _ in range(num_operations):
        tokens = list(rnd.choice(history)) if history and rnd.random() < 0.7 else []
        tokens = tokens[: rnd.randint(0, len(tokens))] if rnd.random() < 0.3 else tokens
        tokens = (tokens + [rnd.randint(0, 2) for _ in range(rnd.randint(1, 12))])[:40]
        ids = np.array(tokens, dtype=np.int32)
        found = cache.match("", ids)
        cache.note_demand("", ids, found)
        if found.depth and rnd.random() < 0.2:
            # Somebody else waits for it.
            cache.demand.want(found.node)
            wanted.append(found.node)
        while len(wanted) > rnd.randint(0, 3):
            cache.demand.unwant(wanted.pop(rnd.randrange(len(wanted))))
        node = cache.lock(found)
        try:
            rows = cache.room.take_rows(len(ids) - found.depth)
        except OutOfRows:
            cache.release_checkpoint(node)
            cache.unlock(node)
            continue
        depths = sorted({rnd.randint(found.depth + 1, len(ids)), len(ids)})
        kinds = {depth: rnd.choice(list(PlaceKind)) for depth in depths}
        generation = rnd.randint(0, 4)
        writes = []
        above = found.depth
        for depth in depths:
            is_worth = worth_a_slot(cache, node, ids[:depth], above, kinds[depth], generation)
            writes.append((depth, cache.room.try_take_slot(may_evict=True) if is_worth else None))
            num_omitted += not is_worth
            above = depth if writes[-1][1] is not None else above
        placed = [(depth, slot) for depth, slot in writes if slot is not None]
        if found.depth:
            cache.release_checkpoint(node)
        whole = np.concatenate([node.path_rows(), rows[: len(ids) - found.depth]])
        end = placed[-1][0] if placed else found.depth
        if placed:
            done = cache.insert(
                "", node, ids[:end], whole[:end], placed, kinds=kinds, generation=generation
            )
            cache.rows.free(whole[done.duplicate_start : done.duplicate_end].copy())
            for slot in done.surplus_slots:
                cache.slots.free(slot)
            cache.unlock(node)
            node = done.node
        cache.rows.free(whole[end:].copy())
        cache.rows.free(rows[len(ids) - found.depth :].copy())
        cache.unlock(node)
        cache.room.drain_moves()
        audit(cache, Holdings(wanted=wanted))
        history.append(tokens)
    return num_omitted


@pytest.mark.parametrize("memory", ["pools", "budget", "arena"])
@pytest.mark.parametrize("seed", range(12))
def test_the_unit_that_goes_is_worth_least_of_all(memory: str, seed: int) -> None:
    policy = eviction_policy("value", work=WORK)
    cache = PrefixCache(
        num_rows=120,
        num_slots=7,
        policy=policy,
        budget=OneBudget(total=2 * 100 + 30 * 3, page_cost=2, slot_cost=30)
        if memory == "budget"
        else None,
        arena=Arena(8, 15) if memory == "arena" else None,
    )
    seen = watched(cache)
    num_omitted = walk(cache, random.Random(seed), 120)
    assert len(seen) > 20
    assert cache.evictor.thrashed_tokens > 0
    assert num_omitted > 0
