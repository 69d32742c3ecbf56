"""Marconi's eviction: recency weighed against the arithmetic that an entry saves per byte."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.errors import ConfigError
from twinpool.memory.audit import audit
from twinpool.memory.marconi import Marconi
from twinpool.memory.node import Node
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree_records import nothing_matched
from twinpool.memory.work import PrefillWork

# As for a hybrid model: a state weighs many rows, and long contexts cost more per row.
WORK = PrefillWork(flops_per_row=100, flops_per_pair=1, row_bytes=1, slot_bytes=200)


def cache(alpha: float, *, num_rows: int = 320, num_slots: int = 8) -> PrefixCache:
    return PrefixCache(
        num_rows=num_rows, num_slots=num_slots, policy=Marconi(WORK, alpha), measure_every=0
    )


def store(pool: PrefixCache, tokens: list[int], places: list[int]) -> Node:
    ids = np.array(tokens, dtype=np.int32)
    rows = pool.room.take_rows(len(ids))
    spare = rows[len(ids) :].copy()
    checkpoints = [(depth, pool.room.take_slot()) for depth in places]
    result = pool.insert("", nothing_matched().node, ids, rows[: len(ids)], checkpoints)
    pool.rows.free(rows[: result.duplicate_end].copy())
    pool.rows.free(spare)
    for slot in result.surplus_slots:
        pool.slots.free(slot)
    pool.unlock(result.node)
    return result.node


def is_kept(pool: PrefixCache, tokens: list[int]) -> bool:
    return pool.match("", np.array([*tokens, 0], dtype=np.int32)).depth == len(tokens)


LONG, SHORT, NEW = [1] * 160, [2] * 32, [3] * 32


@pytest.mark.parametrize(("alpha", "survivor"), [(0.0, SHORT), (2.0, LONG)])
def test_a_long_prefix_outlives_a_more_recent_short_one_when_alpha_says_so(alpha, survivor):
    pool = cache(alpha, num_slots=3)
    for tokens in (LONG, SHORT, NEW):
        store(pool, tokens, [len(tokens)])
    pool.room.take_slot()
    assert is_kept(pool, survivor)
    assert is_kept(pool, LONG) != is_kept(pool, SHORT)
    assert is_kept(pool, NEW)


def test_an_entry_saves_from_the_checkpoint_above_it_and_more_once_that_is_gone():
    pool = cache(1.0)
    policy = pool.policy
    assert isinstance(policy, Marconi)
    leaf = store(pool, LONG, [80, 160])
    upper = leaf.parent
    assert upper is not None
    assert policy.efficiency(leaf) == WORK.saved(80, 160) / (200 + 80)
    # Nothing but the state is freed above: the KV passes to the entry below.
    assert policy.efficiency(upper) == WORK.saved(0, 80) / 200
    assert pool.claim_checkpoint(upper) > 0
    assert policy.efficiency(leaf) == WORK.saved(0, 160) / (200 + 160)
    pool.slots.free(2 if leaf.checkpoint == 1 else 1)
    audit(pool)


def test_forks_go_last():
    pool = cache(0.0, num_slots=3)
    store(pool, [1] * 16 + [2] * 16, [16, 32])
    store(pool, [1] * 16 + [3] * 16, [32])
    pool.room.take_slot()
    # The fork is the least recent of the three.
    assert is_kept(pool, [1] * 16)
    assert not is_kept(pool, [1] * 16 + [2] * 16)


def test_saved_work_adds_up_over_the_parts_of_a_prefix():
    assert WORK.saved(0, 100) == WORK.saved(0, 37) + WORK.saved(37, 100)
    assert WORK.saved(0, 3) == 3 * 100 + (1 + 2 + 3)


@pytest.mark.parametrize("alpha", [-1.0, float("nan")])
def test_alpha_is_a_weight(alpha):
    with pytest.raises(ConfigError, match="--marconi-alpha"):
        Marconi(WORK, alpha)


def test_measuring_is_rare_and_leaves_every_entry_queued():
    pool = PrefixCache(num_rows=4096, num_slots=40, policy=Marconi(WORK, 1.0), measure_every=8)
    measured = []
    measure = pool.policy.measure
    pool.policy.measure = lambda nodes: (measured.append(len(nodes)), measure(nodes))[1]
    for number in range(300):
        store(pool, [number % 97] * (16 + number % 50), [16 + number % 50])
        audit(pool)
    evicted = sum(pool.evictor.evicted_slots.values())
    assert evicted > 100
    assert 1 <= len(measured) <= evicted / 30 + 2
