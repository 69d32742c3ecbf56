"""What is learned of cached units as prompts come and units go."""

from __future__ import annotations

import numpy as np
import pytest

from twinpool.memory.eviction import eviction_policy
from twinpool.memory.place import PlaceKind
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree_records import nothing_matched
from twinpool.memory.value import Value, class_number


def store_periodic(cache: PrefixCache, ids: np.ndarray) -> None:
    """Leave a checkpoint that is the first to go, as a long prefill does."""
    rows = cache.room.take_rows(len(ids))
    result = cache.insert(
        "",
        nothing_matched().node,
        ids,
        rows,
        [(len(ids), cache.room.take_slot())],
        first_to_go=True,
        kinds={len(ids): PlaceKind.PERIODIC},
    )
    cache.unlock(result.node)


@pytest.mark.parametrize("is_evicted", [False, True])
def test_what_was_to_go_first_is_as_old_as_its_placing_when_it_is_wanted(is_evicted: bool) -> None:
    policy = eviction_policy("value")
    assert isinstance(policy, Value)
    cache = PrefixCache(num_rows=96, num_slots=4, policy=policy)
    ids = np.arange(16, dtype=np.int32)
    store_periodic(cache, ids)
    for _ in range(5):
        cache.note_demand("", np.array([99, 98], dtype=np.int32), nothing_matched())
    if is_evicted:
        assert cache.evictor.evict_for_slot("slots")
    prompt = np.arange(20, dtype=np.int32)
    found = cache.match("", prompt)
    assert found.depth == (0 if is_evicted else 16)
    cache.note_demand("", prompt, found)
    count, total = policy.returns.ages(class_number(PlaceKind.PERIODIC, 0, 0))
    # Six prompts came since it was placed: an age of 4 to 7.
    assert (count, total) == (1, 6)
