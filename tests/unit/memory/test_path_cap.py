"""The per-path cap: shallowest interior checkpoints go; forks, tail and locked ones stay."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.memory.path_cap import over_cap
from twinpool.memory.tree import RadixTree


def path(places: list[int]) -> tuple[RadixTree, object]:
    tree = RadixTree()
    tokens = np.arange(100, dtype=np.int32)
    result = tree.insert(
        tree.root(""), tokens, tokens + 1, [(place, n + 1) for n, place in enumerate(places)]
    )
    return tree, result.node


def depths(nodes) -> list[int]:
    return [node.depth for node in nodes]


@pytest.mark.parametrize(
    ("cap", "dropped"), [(1, [20, 40, 60]), (2, [20, 40]), (3, [20]), (4, []), (9, [])]
)
def test_shallowest_go_first_and_only_as_many_as_are_too_many(cap, dropped):
    _, tail = path([20, 40, 60, 100])
    assert depths(over_cap(tail, cap)) == dropped


def test_forks_and_locked_ones_stay_even_when_too_many():
    tree, tail = path([20, 40, 60, 100])
    other = np.append(np.arange(20), [777]).astype(np.int32)
    tree.insert(tree.root(""), other, other + 1, [(21, 9)])
    locked = next(node for node in tree.nodes() if node.depth == 60)
    tree.locks.lock_checkpoint(locked)
    assert depths(over_cap(tail, 1)) == [40]


def test_tombstones_are_not_counted():
    tree, tail = path([20, 40, 60, 100])
    middle = next(node for node in tree.nodes() if node.depth == 40)
    tree.remove_checkpoint(middle)
    assert depths(over_cap(tail, 2)) == [20]


def test_the_tail_stays_without_a_fork_below_or_children():
    _, tail = path([100])
    assert over_cap(tail, 1) == []


def test_the_tail_stays_even_when_the_path_goes_on_below_it():
    tree, _ = path([20, 40, 60, 100])
    nodes = {node.depth: node for node in tree.nodes()}
    tree.locks.lock_checkpoint(nodes[40])
    # An insert that ends at 60, inside a longer path: two too many, and one of them alone may go.
    assert depths(over_cap(nodes[60], 1)) == [20]
