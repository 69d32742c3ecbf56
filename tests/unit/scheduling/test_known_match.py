"""What a waiting request remembers to match: as long as its namespace stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.errors import InvariantError
from twinpool.memory.eviction import eviction_policy
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree_records import nothing_matched
from twinpool.scheduling.events import Arrival
from twinpool.scheduling.known_match import audit_matches, forget_match, known_match
from twinpool.scheduling.request import Request
from twinpool.scheduling.sampling import SamplingParams

PROMPT = np.arange(9, dtype=np.int32)


def cache_of(namespace: str) -> PrefixCache:
    """Return a cache that holds the first 8 tokens of the prompt, with a checkpoint."""
    cache = PrefixCache(num_rows=64, num_slots=4, policy=eviction_policy("value"))
    rows = cache.room.take_rows(8)[:8]
    slot = cache.room.take_slot()
    root = nothing_matched().node
    cache.unlock(cache.insert(namespace, root, PROMPT[:8], rows, [(8, slot)]).node)
    return cache


def waiting(namespace: str) -> Request:
    """Return a request that has looked up nothing yet."""
    sampling = SamplingParams(max_tokens=4, temperature=0.0)
    arrival = Arrival(request_id=0, prompt=PROMPT, sampling=sampling, namespace=namespace)
    return Request(arrival, 0)


def test_a_change_elsewhere_leaves_it_and_one_at_home_does_not() -> None:
    cache, request = cache_of("a"), waiting("a")
    known = known_match(request, cache)
    assert known.depth == 8
    cache.tree.root("b")
    assert known_match(request, cache) is known
    cache.evictor.drop_checkpoint(known.node, "rolling")
    assert known_match(request, cache).depth == 0


def test_what_is_forgotten_with_its_namespace_is_not_remembered() -> None:
    cache, request = cache_of("a"), waiting("a")
    assert known_match(request, cache).depth == 8
    assert cache.flush()
    assert known_match(request, cache).depth == 0


def test_who_stops_waiting_wants_nothing_and_wants_it_again_when_back() -> None:
    cache, request = cache_of("a"), waiting("a")
    node = known_match(request, cache).node
    assert node.num_wanting == 1
    forget_match(request, cache)
    assert node.num_wanting == 0
    assert known_match(request, cache).node is node
    assert node.num_wanting == 1


def test_the_audit_sees_a_match_that_does_not_hold() -> None:
    cache, request = cache_of("a"), waiting("a")
    known_match(request, cache)
    audit_matches([request], cache)
    request.known_match = nothing_matched()
    with pytest.raises(InvariantError, match="does not hold"):
        audit_matches([request], cache)
