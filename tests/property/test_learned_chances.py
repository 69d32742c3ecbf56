"""What is learned of classes, against the naive learner: counts, likelihoods, repeats, to the last.

Thousands of events on a few classes, so that old ones are halved and likelihoods are worked out
anew at every size.
"""

from __future__ import annotations

import random

import pytest

from twinpool.memory.naive_learner import NaiveLearner
from twinpool.memory.place import PlaceKind
from twinpool.memory.value import Value, class_number

NAMES = {PlaceKind.PROMPT_END: "prompt end", PlaceKind.FORK: "fork"}


@pytest.mark.parametrize("seed", range(4))
def test_likelihoods_and_repeats_are_those_of_their_definitions(seed: int) -> None:
    rnd = random.Random(seed)
    policy, naive = Value(), NaiveLearner()
    classes = [
        (place, hits, generation)
        for place in NAMES
        for hits in range(3)
        for generation in rnd.sample(range(4), 2)
    ]
    weights = [rnd.choice([0.02, 0.2, 1.0, 8.0]) for _ in classes]
    losing = {each: rnd.random() for each in classes}
    for event in range(6000):
        (place, hits, generation) = each = rnd.choices(classes, weights)[0]
        number, name = class_number(place, hits, generation), (NAMES[place], hits, generation)
        if rnd.random() < losing[each]:
            policy.returns.note_loss(number)
            naive.note_loss(name)
        else:
            age = rnd.choice([0, 1, 2, 5, 60, 900])
            policy.returns.note_return(number, age)
            naive.note_return(name, age)
        if event > 200 and event % 97:
            continue
        for place, hits, generation in classes:
            number, name = class_number(place, hits, generation), (NAMES[place], hits, generation)
            age = rnd.choice([0, 3, 100, 5000])
            found = policy.returns.likelihood(number, age)
            assert found == pytest.approx(float(naive.likelihood(name, age)), rel=1e-9)
            further = policy.repeats.after(number)
            assert further == pytest.approx(float(naive.further(name)), rel=1e-9)
