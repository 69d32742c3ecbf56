"""Stop strings are found when they are complete, wherever tokens and pieces are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sampling_lanes import lane
from text_models import small_tokenizer
from twinpool.engine.stopping import MatchedText, StopDetector, StopMatcher, StopWatch
from twinpool.engine.tokenizer import Tokenizer
from twinpool.errors import ConfigError

STOPS = st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def _feed(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    """Return the text that is shown, and the stop string that ended it."""
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        found = matcher.push(piece)
        shown += found.text
        if found.stop_string is not None:
            return shown, found.stop_string
    return shown + matcher.finish(), None


def _plainly(stops: list[str], text: str) -> tuple[str, str | None]:
    """Return the same by looking at one character more each time."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end - len(stop)], stop
    return text, None


@settings(max_examples=300)
@given(STOPS, st.lists(st.text("ab.", max_size=4), max_size=8))
def test_the_cut_depends_on_the_text_and_not_on_its_pieces(
    stops: list[str], pieces: list[str]
) -> None:
    assert _feed(stops, pieces) == _plainly(stops, "".join(pieces))


@settings(max_examples=200)
@given(STOPS, st.lists(st.text("ab.", max_size=4), max_size=8))
def test_only_what_may_begin_a_stop_string_is_held(stops: list[str], pieces: list[str]) -> None:
    matcher, text, shown = StopMatcher(stops), "", ""
    for piece in pieces:
        text += piece
        found = matcher.push(piece, armed=False)
        shown += found.text
        held = text[len(shown) :]
        assert text == shown + held
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        (["END"], ["go E", "N", "D now"], ("go ", "END")),
        (["b", "abc"], ["xabc"], ("xa", "b")),
        (["c", "bc", "abc"], ["xabc"], ("x", "abc")),
        (["aab"], ["a", "a", "a", "b"], ("a", "aab")),
        (["END"], ["go E", "N"], ("go EN", None)),
        (["\n\n"], ["one\n", "two\n", "\nthree"], ("one\ntwo", "\n\n")),
        ([], ["any", "thing"], ("anything", None)),
    ],
)
def test_examples(stops: list[str], pieces: list[str], expected: tuple[str, str | None]) -> None:
    assert _feed(stops, pieces) == expected


def test_a_stop_string_that_is_passed_over_does_not_come_back() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.push("xab", armed=False) == MatchedText("xab")
    assert matcher.push("c") == MatchedText("c")


def test_a_stop_string_that_begins_early_and_is_complete_later_counts() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.push("xa", armed=False) == MatchedText("x")
    assert matcher.push("b") == MatchedText("", "ab")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        StopMatcher(["a", ""])


def test_a_detector_finds_a_string_across_tokens_and_inside_one(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" the dog walked")
    assert len(ids) == 3
    for stop, place in ((" dog", 1), ("e d", 1), ("alk", 2), ("og walk", 2), ("the", 0)):
        detector = StopDetector(tokenizer.detokenizer(), [stop])
        found = [detector.push(token) for token in ids]
        assert found.index(stop) == place


def test_a_detector_waits_for_a_character_to_be_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🎉")
    detector = StopDetector(tokenizer.detokenizer(), ["🎉"])
    assert [detector.push(token) for token in ids] == [None, None, None, "🎉"]


def _watch(watch: StopWatch, ids: list[int], **params: object) -> list[str | None]:
    return [
        watch.check(lane(output=ids[:index], **params), token) for index, token in enumerate(ids)
    ]


def test_a_watch_follows_each_request_by_itself(tokenizer: Tokenizer) -> None:
    watch = StopWatch(tokenizer)
    first, second = tokenizer.encode(" the dog"), tokenizer.encode(" a dog")
    assert watch.check(lane(1, stop_strings=("the dog",)), first[0]) is None
    assert watch.check(lane(2, stop_strings=("the dog",)), second[0]) is None
    assert watch.check(lane(2, output=second[:1], stop_strings=("the dog",)), second[1]) is None
    found = watch.check(lane(1, output=first[:1], stop_strings=("the dog",)), first[1])
    assert found == "the dog"


def test_a_watch_respects_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" dog dog dog dog")
    found = _watch(StopWatch(tokenizer), ids, stop_strings=(" dog",), min_tokens=2)
    assert found[:3] == [None, None, " dog"]


def test_a_watch_that_lost_a_request_takes_it_up_again(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(" the dog walked home")
    params = {"stop_strings": ("dog walked",)}
    watch = StopWatch(tokenizer)
    assert _watch(watch, ids[:2], **params) == [None, None]
    watch.forget(0)
    assert watch.check(lane(output=ids[:2], **params), ids[2]) == "dog walked"
    # The same step again, because its result was not taken in.
    assert watch.check(lane(output=ids[:2], **params), ids[2]) == "dog walked"


def test_a_watch_without_tokenizer_refuses_stop_strings_only() -> None:
    watch = StopWatch(None)
    assert watch.check(lane(), 5) is None
    with pytest.raises(ConfigError, match="tokenizer"):
        watch.check(lane(stop_strings=("a",)), 5)


def test_the_sampler_reports_the_stop_string_and_not_that_of_an_end_token(
    tokenizer: Tokenizer,
) -> None:
    import torch

    from twinpool.engine.sampler import Sampler

    (dog,) = tokenizer.encode(" dog")
    logits = np.zeros((1, tokenizer.vocab_size), np.float32)
    logits[0, dog] = 9.0
    for stops, expected in (((), " dog"), ((dog,), None)):
        sampler = Sampler(eos_token_ids=(2,), stop_watch=StopWatch(tokenizer))
        row = lane(temperature=0.0, stop_strings=(" dog",), stop_token_ids=stops)
        (result,) = sampler.sample(torch.from_numpy(logits), [row])
        assert result.token == dog
        assert result.stop_string == expected
