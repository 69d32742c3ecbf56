"""The prefix cache: what is kept, what is given up and in which order, what is told about it."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.errors import ConfigError, InvariantError, OutOfRows, OutOfSlots
from twinpool.memory.audit import Holdings, audit
from twinpool.memory.eviction import Eviction, eviction_policy
from twinpool.memory.node import Node
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree_records import Removed, nothing_matched


def make_cache(*, num_rows: int = 96, num_slots: int = 4, policy: str = "joint-lru", **fields):
    return PrefixCache(
        num_rows=num_rows, num_slots=num_slots, policy=eviction_policy(policy), **fields
    )


def store(cache: PrefixCache, tokens, places=None, *, keep: bool = False, **fields) -> Node:
    """Insert a prefix with checkpoints (at its end, if none are named) and let go of it."""
    ids = np.array(list(tokens), dtype=np.int32)
    depths = [len(ids)] if places is None else places
    rows = cache.room.take_rows(len(ids))
    checkpoints = [(depth, cache.room.take_slot()) for depth in depths]
    root = nothing_matched().node
    result = cache.insert("", root, ids, rows, checkpoints, **fields)
    cache.rows.free(rows[: result.duplicate_end].copy())
    cache.rows.free(rows[len(ids) :].copy())
    for slot in result.surplus_slots:
        cache.slots.free(slot)
    if not keep:
        cache.unlock(result.node)
    return result.node


def depth_of(cache: PrefixCache, tokens) -> tuple[int, int]:
    match = cache.match("", np.array([*tokens, 0], dtype=np.int32))
    return match.depth, match.kv_depth


def walk(cache: PrefixCache, tokens) -> None:
    """Use a prefix as a request that ends at once does."""
    node = cache.lock(cache.match("", np.array([*tokens, 0], dtype=np.int32)))
    cache.release_checkpoint(node)
    cache.unlock(node)


A, B, C = [1] * 16, [2] * 16, [3] * 16


def test_rows_are_taken_from_the_least_recent_leaf_and_no_more_than_needed():
    cache = make_cache(num_rows=48)
    for tokens in (A, B, C):
        store(cache, tokens)
    walk(cache, A)
    cache.room.take_rows(16)
    assert [depth_of(cache, tokens)[0] for tokens in (A, B, C)] == [16, 0, 16]
    assert cache.evictor.drain() == [Eviction("rows", 16, 16, 1)]
    assert cache.evictor.drain() == []
    assert (cache.evictor.evicted_rows["rows"], cache.evictor.evicted_slots["rows"]) == (16, 1)


def test_kv_above_an_evicted_leaf_without_a_checkpoint_goes_with_it():
    cache = make_cache(num_rows=64)
    stem = list(range(16))
    store(cache, stem + A)
    store(cache, stem + B[:8])
    assert (cache.tree.num_rows, cache.rows.num_free) == (40, 24)
    cache.room.take_rows(25)
    # One leaf goes; the stem stays, since the other session still needs it.
    assert depth_of(cache, stem + B[:8]) == (24, 24)
    cache.room.take_rows(cache.rows.num_free + 1)
    assert cache.evictor.drain() == [
        Eviction("rows", 32, 16, 1),
        Eviction("rows", 24, 8, 1),
        Eviction("dead", 16, 16, 0),
    ]
    assert cache.tree.num_rows == 0


def test_an_interior_checkpoint_is_evicted_alone():
    cache = make_cache(num_slots=2, policy="lru")
    store(cache, A + B, [16, 32])
    walk(cache, A + B)
    cache.room.take_slot()
    assert depth_of(cache, A + B) == (32, 32)
    assert depth_of(cache, A) == (0, 16)
    assert cache.evictor.drain() == [Eviction("slots", 16, 0, 1)]


def test_a_leaf_loses_its_kv_with_its_checkpoint():
    cache = make_cache(num_slots=1)
    store(cache, A)
    cache.room.take_slot()
    assert cache.evictor.drain() == [Eviction("slots", 16, 16, 1)]
    assert cache.rows.num_free == 96


def test_a_running_leaf_loses_its_checkpoint_alone_and_its_kv_when_it_ends():
    cache = make_cache(num_slots=1)
    node = store(cache, A, keep=True)
    cache.room.take_slot()
    assert cache.evictor.drain() == [Eviction("slots", 16, 0, 1)]
    cache.unlock(node)
    assert cache.evictor.drain() == [Eviction("dead", 16, 16, 0)]


def test_locked_rows_and_matched_checkpoints_are_not_evicted():
    cache = make_cache(num_rows=32, num_slots=1)
    store(cache, A)
    node = cache.lock(cache.match("", np.array([*A, 0], dtype=np.int32)))
    with pytest.raises(OutOfSlots):
        cache.room.take_slot()
    with pytest.raises(OutOfRows) as error:
        cache.room.take_rows(17)
    assert (error.value.needed, error.value.free, error.value.evictable) == (17, 16, 0)
    cache.release_checkpoint(node)
    assert cache.room.take_slot() == 1


def test_nothing_is_evicted_for_what_cannot_be_had_anyway():
    cache = make_cache(num_rows=32)
    store(cache, A)
    with pytest.raises(OutOfRows):
        cache.room.take_rows(33)
    assert depth_of(cache, A) == (16, 16)


def test_optional_slots_evict_only_when_they_may():
    cache = make_cache(num_slots=1)
    store(cache, A)
    assert cache.room.try_take_slot(may_evict=False) is None
    assert depth_of(cache, A) == (16, 16)
    assert cache.room.try_take_slot(may_evict=True) == 1
    assert cache.room.try_take_slot(may_evict=True) is None


@pytest.mark.parametrize("policy", ["lru", "joint-lru"])
def test_what_is_first_to_go_goes_before_anything_older(policy):
    cache = make_cache(num_slots=3, policy=policy)
    store(cache, A)
    node = store(cache, B, keep=True, first_to_go=True)
    later = store(cache, C, keep=True, first_to_go=True)
    for tokens in (B, C):
        cache.room.take_slot()
        assert depth_of(cache, tokens) == (0, 16)
    assert depth_of(cache, A) == (16, 16)
    cache.unlock(node)
    cache.unlock(later)


def test_a_place_that_is_asked_for_again_is_as_recent_as_a_new_one():
    cache = make_cache(num_slots=4, policy="lru")
    store(cache, A)
    store(cache, B)
    # Another request computed A too and found its checkpoint in place.
    store(cache, A)
    cache.room.take_slot()
    cache.room.take_slot()
    cache.room.take_slot()
    assert depth_of(cache, A) == (16, 16)
    assert depth_of(cache, B) == (0, 0)


def test_the_end_of_a_path_is_queued_under_its_new_key_when_something_grows_on_it():
    cache = make_cache(num_rows=160, num_slots=3)
    store(cache, A)
    store(cache, B)
    # A is walked again and its checkpoint is not asked for: only its KV is recent now.
    store(cache, A, [16], first_to_go=True)
    # The queue passes over A under its old key; B goes.
    held = [cache.room.take_slot(), cache.room.take_slot()]
    assert depth_of(cache, B) == (0, 0)
    for slot in held:
        cache.slots.free(slot)
    # A becomes interior: its checkpoint stands for itself again, under the old key.
    store(cache, A + C, [24, 32])
    audit(cache)


def test_the_path_cap_drops_interior_checkpoints_at_insert():
    cache = make_cache(max_states_per_path=1)
    store(cache, A + B, [16, 32])
    assert depth_of(cache, A + B) == (32, 32)
    assert depth_of(cache, A) == (0, 16)
    assert cache.evictor.drain() == [Eviction("path_cap", 16, 0, 1)]


def test_a_periodic_checkpoint_is_replaced_by_the_next_one_unless_another_request_used_it():
    cache = make_cache(num_slots=8)
    first = store(cache, A, keep=True, first_to_go=True)
    store(cache, A + B)
    assert cache.drop_interior(first)
    assert not cache.drop_interior(first)
    second = store(cache, C, keep=True, first_to_go=True)
    store(cache, C + B)
    walk(cache, C)
    assert not cache.drop_interior(second)
    assert depth_of(cache, C) == (16, 16)


def test_a_periodic_checkpoint_at_the_end_of_its_path_stays():
    cache = make_cache()
    assert not cache.drop_interior(store(cache, A, keep=True, first_to_go=True))


def test_a_claimed_checkpoint_belongs_to_the_caller():
    cache = make_cache(num_slots=1)
    store(cache, A)
    node = cache.lock(cache.match("", np.array([*A, 0], dtype=np.int32)))
    with pytest.raises(InvariantError):
        cache.claim_checkpoint(node)
    cache.release_checkpoint(node)
    slot = cache.claim_checkpoint(node)
    audit(cache, Holdings(slots=[slot], locked=[node]))
    cache.slots.free(slot)
    cache.unlock(node)
    assert cache.tree.num_rows == 0


def test_flush_keeps_what_is_in_use():
    cache = make_cache()
    node = store(cache, A, keep=True)
    store(cache, B)
    assert not cache.flush()
    assert depth_of(cache, A)[1] == 16
    assert depth_of(cache, B) == (0, 0)
    assert {unit.reason for unit in cache.evictor.drain()} == {"flush"}
    cache.unlock(node)
    assert cache.flush()
    assert cache.rows.num_free == 96


def test_a_namespace_that_only_asked_leaves_nothing_behind():
    cache = make_cache()
    for number in range(100):
        node = cache.lock(cache.match(f"salt {number}", np.array(A, dtype=np.int32)))
        cache.unlock(node)
    assert cache.tree.roots == {}


def test_available_is_free_and_evictable():
    cache = make_cache()
    node = store(cache, A, keep=True)
    store(cache, B)
    assert (cache.room.evictable_rows, cache.room.available_rows) == (16, 80)
    # The checkpoint of a running request can be evicted, its KV cannot.
    assert (cache.room.evictable_slots, cache.room.available_slots) == (2, 4)
    cache.unlock(node)
    assert (cache.room.evictable_rows, cache.room.available_rows) == (32, 96)


def test_every_change_of_what_a_prompt_matches_changes_the_version():
    cache = make_cache(num_rows=32, num_slots=2)
    seen = {cache.version}

    def is_new() -> bool:
        known = cache.version in seen
        seen.add(cache.version)
        return not known

    store(cache, A)
    assert is_new()
    walk(cache, A)
    assert not is_new()
    cache.room.take_rows(32)
    assert is_new()


def test_a_change_of_one_namespace_is_none_of_another():
    tree = make_cache(num_rows=32, num_slots=2).tree
    assert tree.namespaces.changed_at("a") == tree.namespaces.changed_at("b") == -1
    ids = np.arange(8, dtype=np.int32)
    node = tree.insert(tree.root("a"), ids, ids, [(8, 1)]).node
    placed = tree.namespaces.changed_at("a")
    tree.remove_checkpoint(node)
    assert (first := tree.namespaces.changed_at("a")) not in (-1, placed)
    assert tree.namespaces.changed_at("b") == -1
    tree.insert(tree.root("b"), ids, ids + 8, [])
    assert tree.namespaces.changed_at("a") == first != tree.namespaces.changed_at("b")
    tree.split_at(node, 3)
    assert (split := tree.namespaces.changed_at("a")) != first
    tree.remove_leaf(node, Removed())
    assert tree.namespaces.changed_at("a") not in (-1, first, split)
    for leaf in [leaf for leaf in tree.nodes() if not leaf.children]:
        tree.prune_dead(leaf, Removed())
    assert tree.namespaces.changed_at("a") == tree.namespaces.changed_at("b") == -1
    assert len(tree.namespaces) == 0
    tree.insert(tree.root("a"), ids, ids, [])
    assert tree.namespaces.changed_at("a") not in (-1, first, split)


def test_switched_off_nothing_matches_and_nothing_is_kept():
    cache = make_cache(is_enabled=False)
    match = cache.match("", np.array(A, dtype=np.int32))
    assert (match.depth, match.kv_depth) == (0, 0)
    cache.unlock(cache.lock(match))
    assert cache.tree.roots == {}


@pytest.mark.parametrize("cap", [0, -2])
def test_caps_that_mean_nothing_are_refused(cap):
    with pytest.raises(ConfigError, match="per path"):
        make_cache(max_states_per_path=cap)
