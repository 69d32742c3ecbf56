"""The naive twin on cases small enough to check by eye; it is the oracle of the other one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import twinpool.memory.naive
from twinpool.errors import ConfigError, InvariantError, OutOfRows, OutOfSlots
from twinpool.memory.naive import NaivePrefixCache

ROOT = ("", ())


def store(cache: NaivePrefixCache, tokens, places=None) -> None:
    depths = [len(tokens)] if places is None else places
    cache.take_rows(len(tokens))
    slots = [(depth, cache.take_slot()) for depth in depths]
    result = cache.insert(ROOT, tokens, slots)
    cache.give_rows(result.duplicate_end - result.duplicate_start)
    for slot in result.surplus_slots:
        cache.books.give_slot(slot)
    cache.unlock(result.prefix)


def make(**fields) -> NaivePrefixCache:
    return NaivePrefixCache(**({"num_rows": 10, "num_slots": 3, "policy": "lru"} | fields))


def test_it_shares_no_code_with_what_it_checks():
    own = sorted(Path(twinpool.memory.naive.__file__).parent.glob("naive*.py"))
    assert len(own) > 3
    parts = {f"twinpool.memory.{path.stem}" for path in own}
    trees = [ast.parse(path.read_text()) for path in own]
    imported = [n.module for t in trees for n in ast.walk(t) if isinstance(n, ast.ImportFrom)]
    plain = {"__future__", "collections.abc", "dataclasses", "fractions", "typing"}
    assert set(imported) <= plain | parts | {"twinpool.errors"}


def test_a_match_needs_a_checkpoint_and_leaves_one_token():
    cache = make()
    store(cache, [1, 2, 3, 4], [2, 4])
    for prompt, depths in {
        (1, 2, 3, 4): (2, 3),
        (1, 2, 3, 4, 5): (4, 4),
        (1, 9): (0, 1),
        (9,): (0, 0),
    }.items():
        match = cache.match("", prompt)
        assert (match.depth, match.kv_depth) == depths
    assert cache.match("x", (1, 2, 3)).kv_depth == 0


def test_the_least_recent_leaf_goes_first_and_what_is_dead_goes_along():
    cache = make()
    store(cache, [1, 2, 3, 4], [4])
    store(cache, [1, 2, 5], [3])
    cache.take_rows(6)
    assert cache.drain_evictions() == [("rows", 4, 2, 1)]
    cache.take_rows(2)
    assert cache.drain_evictions() == [("rows", 3, 1, 1), ("dead", 2, 2, 0)]


def test_of_equally_recent_checkpoints_the_deepest_goes():
    cache = make()
    store(cache, [1, 2, 3, 4], [1, 2, 4])
    cache.take_slot()
    assert cache.drain_evictions() == [("slots", 4, 2, 1)]
    cache.take_slot()
    assert cache.drain_evictions() == [("slots", 2, 1, 1)]


def test_rows_and_slots_that_cannot_be_had_are_refused():
    cache = make()
    with pytest.raises(OutOfRows):
        cache.take_rows(11)
    for _ in range(3):
        cache.take_slot()
    with pytest.raises(OutOfSlots):
        cache.take_slot()
    cache.books.give_slot(1)
    with pytest.raises(InvariantError):
        cache.books.give_slot(1)


def test_unknown_policies_are_refused():
    with pytest.raises(ConfigError):
        make(policy="fifo")
