"""What a hit costs: when its KV and its checkpoint take memory, and what is held anyway."""

from __future__ import annotations

from served import served
from twinpool.replay.bound_gaps import NO_PARENT, find_gaps
from twinpool.replay.bound_tree import segment_paths


def lengths(paths):
    return [[len(segment.keys) for segment in path] for path in paths]


def test_segments_end_where_paths_part_and_where_answers_begin():
    first = served([1, 2, 3, 4, 5], (0, 1, 2), prompt=4)
    second = served([1, 2, 9], (3, 4, 5))
    paths = segment_paths([first, second])
    assert lengths(paths) == [[2, 2, 1], [2, 1]]
    assert paths[0][0] is paths[1][0]


def test_segments_are_shared_within_a_namespace_only():
    paths = segment_paths([served([1, 2], (0, 1, 2)), served([1, 2], (3, 4, 5), namespace="other")])
    assert paths[0][0] is not paths[1][0]


def test_segments_cover_each_path_once_whatever_the_order_of_insertion():
    requests = [
        served(path, (0, 1, 2), prompt=prompt)
        for path, prompt in (([1, 2, 3, 4], 4), ([1], 1), ([1, 2, 3, 4, 5, 6], 3), ([1, 2, 7], 2))
    ]
    for order in (requests, requests[::-1]):
        for request, path in zip(order, segment_paths(order), strict=True):
            keys = [key for segment in path for key in segment.keys.tolist()]
            assert keys == request.path.tolist()


def test_an_idle_prefix_takes_units_from_the_end_of_its_last_user_and_a_slot_from_its_prefill():
    first = served([1, 2, 3], (0, 1, 5))
    again = served([1, 2, 4], (10, 12, 13))
    gaps = find_gaps([first, again])
    (hit,) = gaps.hits
    assert (hit.tokens, hit.units, hit.parent) == (2, 2.0, NO_PARENT)
    # Held by the first until 5, idle until 10, locked until the second holds its prompt at 12.
    assert hit.kv_spans == ((5, 12),)
    assert hit.slot_span == (1, 10)
    assert sorted(gaps.kv_holds) == [(1, 5, 1), (1, 5, 2), (12, 13, 1), (12, 13, 2)]
    assert sorted(gaps.slot_holds) == [(0, 5), (10, 13)]


def test_an_answer_can_be_reused_from_its_first_token_on_and_may_come_as_late_as_its_end():
    first = served([1, 2, 3, 4], (0, 1, 5), prompt=2)
    during = served([1, 2, 3, 4, 5], (3, 12, 13))
    prompt, answer = find_gaps([first, during]).hits
    # The first request holds its prompt until 5, its answer nobody knows how much of; what the
    # other reuses is locked until it holds its own prompt at 12.
    assert (prompt.tokens, prompt.kv_spans) == (2, ((5, 12),))
    assert (answer.tokens, answer.kv_spans, answer.parent) == (2, ((3, 12),), 0)
    # The answer may have come a moment before 3: no slot is counted for its checkpoint.
    assert prompt.slot_span == answer.slot_span == (3, 3)
    before = served([1, 2, 3, 4, 5], (1, 2, 3))
    assert sum(hit.tokens for hit in find_gaps([first, before]).hits) <= 2


def test_requests_admitted_at_one_moment_reuse_one_copy_and_nothing_of_each_other():
    first = served([1, 2], (0, 1, 2))
    both = [served([1, 2, 0], (5, 6, 7)), served([1, 2, 1], (5, 9, 10))]
    (hit,) = find_gaps([first, *both]).hits
    assert (hit.tokens, hit.units) == (4, 2.0)
    # Locked for both until one holds it; what the other locks beyond is in a policy's favour.
    assert hit.kv_spans == ((2, 6),)
    gaps = find_gaps(both)
    assert not gaps.hits
    assert gaps.free_tokens == 0


def test_a_retracted_request_holds_nothing_and_may_produce_until_its_end():
    first = served([1, 2], (0, 1, 5), retractions=1)
    again = served([1, 2], (8, 9, 10))
    gaps = find_gaps([first, again])
    (hit,) = gaps.hits
    assert (hit.kv_spans, hit.slot_span) == (((5, 9),), (5, 8))
    assert gaps.slot_holds == [(8, 10)]
    assert gaps.kv_holds == [(9, 10, 2)]


def test_what_is_reused_while_others_hold_it_is_free():
    first = served([1, 2], (0, 1, 20))
    again = served([1, 2], (1, 3, 4))
    gaps = find_gaps([first, again])
    assert not gaps.hits
    assert gaps.free_tokens == 2


def test_a_prefix_used_by_others_meanwhile_is_a_hit_of_its_own_above_the_older_part():
    trace = [
        served([1, 1, 2, 2], (0, 1, 2)),
        served([1, 1, 3, 3], (10, 11, 12)),
        served([1, 1, 2, 2], (20, 21, 22)),
    ]
    shared, upper, lower = find_gaps(trace).hits
    assert shared.kv_spans == ((2, 11),)
    assert (upper.kv_spans, upper.slot_span, upper.parent) == (((12, 21),), (11, 20), NO_PARENT)
    # A slot for the deeper checkpoint is counted up to where the one above is due.
    assert (lower.kv_spans, lower.slot_span, lower.parent) == (((2, 21),), (1, 11), 1)


def test_reuse_counts_no_more_than_the_input_tokens():
    first = served([1, 2, 3], (0, 1, 2), unit_tokens=64, input_tokens=150)
    again = served([1, 2, 3], (5, 6, 7), unit_tokens=64, input_tokens=150)
    hits = find_gaps([first, again]).hits
    assert sum(hit.tokens for hit in hits) == 150
    assert sum(hit.units for hit in hits) == 150 / 64
