"""The radix tree: what a match finds, what a split keeps, what an insert gives back."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.errors import InvariantError
from twinpool.memory.tree import RadixTree
from twinpool.memory.tree_records import Removed


def array(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def put(tree: RadixTree, tokens, checkpoints=(), first_row: int = 100, start=None):
    """Insert tokens whose rows are numbered from `first_row` on."""
    ids = array(*tokens)
    rows = np.arange(first_row, first_row + len(ids), dtype=np.int32)
    return tree.insert(start or tree.root(""), ids, rows, list(checkpoints))


def test_match_reuses_the_deepest_checkpoint_and_reports_how_deep_kv_goes():
    tree = RadixTree()
    put(tree, [1, 2, 3, 4, 5], [(3, 7), (5, 8)])
    match = tree.match("", array(1, 2, 3, 4, 9, 9))
    assert (match.depth, match.kv_depth) == (3, 4)
    assert match.node.checkpoint == 7


def test_the_last_token_of_a_prompt_is_never_matched():
    tree = RadixTree()
    put(tree, [1, 2, 3], [(2, 7), (3, 8)])
    assert tree.match("", array(1, 2, 3)).depth == 2
    assert tree.match("", array(1, 2, 3, 4)).depth == 3
    assert tree.match("", array(1)).kv_depth == 0


def test_match_changes_nothing():
    tree = RadixTree()
    put(tree, [1, 2, 3, 4], [(4, 7)])
    before = [(node.number, node.depth) for node in tree.nodes()]
    tree.match("", array(1, 2, 9, 9))
    tree.match("unknown", array(1, 2, 3, 4))
    assert [(node.number, node.depth) for node in tree.nodes()] == before
    assert list(tree.roots) == [""]


def test_namespaces_share_nothing():
    tree = RadixTree()
    put(tree, [1, 2, 3], [(3, 7)])
    assert tree.match("other", array(1, 2, 3, 4)).kv_depth == 0


def test_without_linear_layers_any_depth_is_usable():
    tree = RadixTree(needs_state=False)
    put(tree, [1, 2, 3, 4, 5])
    match = tree.match("", array(1, 2, 3, 9))
    assert (match.depth, match.kv_depth) == (3, 3)
    node = tree.split_at(match.node, match.depth)
    assert node.depth == 3
    assert node.path_rows().tolist() == [100, 101, 102]


@pytest.mark.parametrize("length", [1, 1023, 1024, 1025, 3000])
def test_segments_of_any_length_match_to_the_token(length):
    tree = RadixTree()
    tokens = np.arange(length, dtype=np.int32)
    put(tree, tokens.tolist(), [(length, 3)])
    longer = np.append(tokens, 5).astype(np.int32)
    assert tree.match("", longer).depth == length
    for place in (0, length // 2, length - 1):
        other = longer.copy()
        other[place] += 1
        assert tree.match("", other).kv_depth == place


def test_pages_match_whole_or_not_at_all():
    tree = RadixTree(page_size=4)
    put(tree, range(8), [(8, 3)])
    assert tree.match("", array(0, 1, 2, 3, 4, 5, 6, 9, 9)).kv_depth == 4
    assert tree.match("", array(0, 1, 2, 9, 9)).kv_depth == 0
    # Eight tokens known, but the last one must be computed, so one page is left.
    assert tree.match("", array(*range(8))).kv_depth == 4
    assert tree.match("", array(*range(9))).depth == 8


def test_pages_that_begin_alike_are_different_children():
    tree = RadixTree(page_size=2)
    put(tree, [1, 2], [(2, 3)])
    put(tree, [1, 3], [(2, 4)], first_row=200)
    assert tree.match("", array(1, 3, 0)).node.checkpoint == 4
    assert len(tree.root("").children) == 2


def test_insert_returns_the_span_that_was_there_already():
    tree = RadixTree()
    put(tree, [1, 2, 3, 4], [(4, 7)])
    result = put(tree, [1, 2, 3, 9, 9], [(5, 8)], first_row=200)
    assert (result.duplicate_start, result.duplicate_end) == (0, 3)
    assert result.node.path_rows().tolist() == [100, 101, 102, 203, 204]
    assert tree.num_rows == 6


def test_insert_of_a_known_prefix_brings_no_rows():
    tree = RadixTree()
    put(tree, [1, 2, 3, 4], [(4, 7)])
    result = put(tree, [1, 2], [(2, 8)], first_row=200)
    assert (result.duplicate_start, result.duplicate_end) == (0, 2)
    assert [node.depth for node in result.placed] == [2]
    assert tree.num_rows == 4


def test_a_second_checkpoint_at_one_place_is_given_back():
    tree = RadixTree()
    put(tree, [1, 2, 3], [(3, 7)])
    result = put(tree, [1, 2, 3], [(2, 8), (3, 9)], first_row=200)
    assert result.surplus_slots == [9]
    assert [node.depth for node in result.found] == [3]
    assert [node.depth for node in result.placed] == [2]
    assert tree.num_checkpoints == 2


def test_insert_copies_what_it_is_given():
    tree = RadixTree()
    tokens, rows = array(1, 2, 3), array(10, 11, 12)
    tree.insert(tree.root(""), tokens, rows, [(3, 1)])
    tokens[:] = rows[:] = 0
    match = tree.match("", array(1, 2, 3, 4))
    assert match.depth == 3
    assert match.node.path_rows().tolist() == [10, 11, 12]


def test_insert_behind_a_start_reads_only_what_is_new():
    tree = RadixTree()
    first = put(tree, [1, 2, 3], [(3, 7)]).node
    result = put(tree, [1, 2, 3, 4, 5], [(5, 8)], first_row=200, start=first)
    assert (result.duplicate_start, result.duplicate_end) == (3, 3)
    assert result.node.path_rows().tolist() == [100, 101, 102, 203, 204]
    assert result.grown is first


def test_a_split_keeps_locks_checkpoint_and_identity_below():
    tree = RadixTree()
    leaf = put(tree, [1, 2, 3, 4], [(4, 7)]).node
    tree.locks.lock_rows(leaf)
    tree.locks.lock_checkpoint(leaf)
    put(tree, [1, 2, 9], [(3, 8)], first_row=200)
    upper = leaf.parent
    assert upper is not None
    assert (upper.depth, upper.row_locks, upper.slot_locks, upper.has_checkpoint) == (
        2,
        1,
        0,
        False,
    )
    assert (leaf.depth, leaf.row_locks, leaf.slot_locks, leaf.checkpoint) == (4, 1, 1, 7)
    assert tree.locks.num_rows == 4
    assert tree.locks.num_checkpoints == 1
    tree.locks.unlock_rows(leaf)
    assert tree.locks.num_rows == 0


def test_a_split_part_does_not_keep_the_memory_of_the_whole():
    tree = RadixTree()
    put(tree, range(1000), [(1000, 7)])
    put(tree, [0, 1, 2, 5000], [(4, 8)], first_row=5000)
    upper = tree.match("", array(0, 1, 2, 9)).node
    shallow = next(node for node in tree.nodes() if node.depth == 3)
    assert upper.parent is None
    assert shallow.rows.base is None
    assert len(shallow.ids) == 12


def test_locks_count_and_must_balance():
    tree = RadixTree()
    leaf = put(tree, [1, 2, 3], [(3, 7)]).node
    tree.locks.lock_rows(leaf)
    tree.locks.lock_rows(leaf)
    tree.locks.unlock_rows(leaf)
    assert tree.locks.num_rows == 3
    tree.locks.unlock_rows(leaf)
    assert tree.locks.num_rows == 0
    with pytest.raises(InvariantError):
        tree.locks.unlock_rows(leaf)
    with pytest.raises(InvariantError):
        tree.locks.unlock_checkpoint(leaf)


def test_what_is_locked_or_has_children_is_not_removed():
    tree = RadixTree()
    leaf = put(tree, [1, 2, 3], [(2, 6), (3, 7)]).node
    interior = leaf.parent
    assert interior is not None
    tree.locks.lock_rows(leaf)
    tree.locks.lock_checkpoint(leaf)
    for node in (leaf, interior, tree.root("")):
        with pytest.raises(InvariantError):
            tree.remove_leaf(node, Removed())
    with pytest.raises(InvariantError):
        tree.remove_checkpoint(leaf)
    with pytest.raises(InvariantError):
        tree.remove_checkpoint(tree.root(""))


def test_removing_a_leaf_hands_over_its_rows_and_slot():
    tree = RadixTree()
    leaf = put(tree, [1, 2, 3], [(2, 6), (3, 7)]).node
    removed = Removed()
    parent = tree.remove_leaf(leaf, removed)
    assert parent.depth == 2
    assert removed.slots == [7]
    assert np.concatenate(removed.rows).tolist() == [102]
    assert (tree.num_rows, tree.num_checkpoints) == (2, 1)


def test_pruning_stops_at_a_checkpoint_a_lock_or_a_fork():
    tree = RadixTree()
    leaf = put(tree, [1, 2, 3, 4, 5, 6], [(2, 5), (4, 6), (6, 7)]).node
    tree.remove_checkpoint(leaf)
    middle = leaf.parent
    assert middle is not None
    tree.remove_checkpoint(middle)
    removed = Removed()
    kept = tree.prune_dead(leaf, removed)
    assert (kept.depth, removed.num_rows) == (2, 4)
    tree.locks.lock_rows(kept)
    tree.remove_checkpoint(kept)
    assert tree.prune_dead(kept, removed) is kept


def test_nothing_is_dead_without_linear_layers():
    tree = RadixTree(needs_state=False)
    leaf = put(tree, [1, 2, 3]).node
    assert tree.prune_dead(leaf, Removed()) is leaf


def test_an_empty_namespace_is_forgotten():
    tree = RadixTree()
    leaf = put(tree, [1, 2], [(2, 5)]).node
    tree.remove_leaf(leaf, Removed())
    assert tree.roots == {}


@pytest.mark.parametrize("place", [0, -1, 4])
def test_a_checkpoint_outside_its_path_is_a_bug(place):
    tree = RadixTree()
    with pytest.raises(InvariantError, match="outside its path"):
        put(tree, [1, 2, 3], [(place, 5)])
