"""Two replays are compared on the requests that both served, whatever else either did."""

from __future__ import annotations

import dataclasses

from served import served
from twinpool.replay.same_requests import SameRequests, on_same_requests, served_tokens


def request(session, turn, tokens, cached, index=0):
    record = served([1, 2], (0, 1, 2))
    return dataclasses.replace(
        record,
        index=index,
        session=session,
        turn=turn,
        input_tokens=tokens,
        cached_tokens=cached,
    )


def test_a_replay_that_serves_first_turns_alone_is_compared_on_them():
    # It has more of all that it served, .6 to .4, and less of what both did, .6 to .8.
    few = [request("a", 0, 100, 60)]
    many = [request("a", 0, 100, 80), request("a", 1, 400, 120)]
    assert on_same_requests(served_tokens(few), served_tokens(many)) == SameRequests(1, 0.6, 0.8)


def test_tokens_count_not_requests():
    first = [request("a", 0, 300, 300), request("b", 0, 100, 0)]
    second = [request("b", 0, 100, 100), request("a", 0, 300, 0)]
    same = on_same_requests(served_tokens(first), served_tokens(second))
    assert same == SameRequests(2, 0.75, 0.25)


def test_a_session_that_is_begun_anew_is_told_apart_by_its_order_of_arrival():
    # The second round ended first.
    first = [request("a", 0, 10, 9, index=7), request("a", 0, 10, 1, index=3)]
    second = [request("a", 0, 10, 2, index=0)]
    same = on_same_requests(served_tokens(first), served_tokens(second))
    assert same == SameRequests(1, 0.1, 0.2)


def test_nothing_in_common_is_no_hit_rate():
    same = on_same_requests(served_tokens([request("a", 0, 1, 1)]), served_tokens([]))
    assert same == SameRequests(0, 0.0, 0.0)
