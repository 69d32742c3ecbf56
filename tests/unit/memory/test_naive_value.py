"""The naive twin's units by value, on cases small enough to work out by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from twinpool.memory.naive import NaivePrefixCache
from twinpool.memory.naive_learner import NaiveLearner

ROOT = ("", ())
PATH = tuple(range(10))
KIND = ("prompt_end", 0, 1)


def cache_of(*places: int) -> NaivePrefixCache:
    """Return a cache that holds one path of ten tokens, with checkpoints."""
    cache = NaivePrefixCache(num_rows=40, num_slots=5, policy="value", work=(5, 1, 2, 30))
    cache.take_rows(len(PATH))
    slots = [(depth, cache.take_slot()) for depth in places]
    kinds = dict.fromkeys(places, "prompt_end")
    cache.unlock(cache.insert(ROOT, PATH, slots, kinds=kinds, generation=1).prefix)
    return cache


def chance_squared(cache: NaivePrefixCache, depth: int) -> Fraction:
    """Return what is left of a worth without its savings, which are wanted for certain."""
    place = ("", PATH[:depth])
    worth = cache.value.worth(place)
    mark = cache.books.mark(place)
    mark.num_wanting += 1
    certain = cache.value.worth(place)
    mark.num_wanting -= 1
    return worth / certain


def test_a_leaf_saves_from_the_checkpoint_above_and_frees_its_rows():
    cache = cache_of(4, 10)
    match = cache.match("", (*PATH, 99))
    mark = cache.want(match)
    # 6 rows of 5, and 5 + 6 + .. + 10 pairs: 75 operations for 30 + 6 x 2 bytes, squared 3.2.
    assert cache.value.worth(("", PATH)) == 2
    cache.unwant(mark)
    assert cache.value.worth(("", PATH)) < 2


def test_an_interior_checkpoint_frees_its_slot_alone():
    cache = cache_of(4, 10)
    cache.want(cache.match("", PATH[:5]))
    # 4 rows of 5, and 1 + .. + 4 pairs: 30 operations for 30 bytes.
    assert cache.value.worth(("", PATH[:4])) == 1


def test_nothing_known_of_a_class_is_a_small_chance_at_every_age():
    cache = cache_of(10)
    age = cache.books.now - cache.books.used(("", PATH))
    # Bins of age 0 to 31; a fiftieth of those at risk returns in each.
    assert age == 0
    assert chance_squared(cache, 10) == (1 - Fraction(49, 50) ** 32) ** 2


def test_a_return_counts_for_its_age_and_younger():
    learner = NaiveLearner()
    unknown = NaiveLearner().likelihood(KIND, 4)
    learner.note_return(KIND, 3)
    # Of 4 assumed and the one seen, 1.08 returned at ages of 2 to 3.
    later = Fraction(49, 50) ** 29
    assert learner.likelihood(KIND, 4) == unknown == 1 - later
    assert learner.likelihood(KIND, 3) == 1 - later * (1 - Fraction(27, 125))


def test_who_loses_a_checkpoint_falls_back_to_the_one_above():
    cache = cache_of(4, 10)
    match = cache.match("", (*PATH[:5], 99))
    cache.release_checkpoint(cache.lock(match))
    cache.unlock(match.prefix)
    above = ("", PATH[:4])
    assert cache.books.mark(above).hits == 1
    cache.lock(cache.match("", (*PATH, 99)))
    cache.release_checkpoint(("", PATH))
    cache.unlock(("", PATH))
    used = cache.books.used(("", PATH))
    cache.value.note_eviction(("", PATH))
    assert cache.books.mark(above).hits == 0
    assert cache.books.used(above) == used


def test_a_prompt_that_misses_what_went_counts_what_is_computed_again():
    cache = cache_of(4, 10)
    cache.take_rows(31)
    assert cache.drain_evictions() == [("rows", 10, 6, 1)]
    prompt = (*PATH, 99)
    cache.note_demand("", prompt, cache.match("", prompt))
    assert (cache.value.thrashed_tokens, cache.value.thrashed_work) == (6, 75)


@pytest.mark.parametrize("num_lost", [0, 200])
def test_only_the_latest_ghosts_are_kept(num_lost):
    learner = NaiveLearner()
    for number in range(64 + num_lost):
        learner.remember(("", (number, 7)), KIND, used=0, num_checkpoints=0)
    assert (learner.find(("", (0, 7, 9)), 0) is None) == (num_lost > 0)
    assert learner.likelihood(KIND, 0) < 0.05 or not num_lost
