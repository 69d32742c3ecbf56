"""The four forms of a completions prompt, and what is none of them."""

from __future__ import annotations

import msgspec
import pytest

from fake_engine import FakeSettings, fake_info
from twinpool.server.errors import ApiError
from twinpool.server.limits import Limits
from twinpool.server.prompts import parse_prompts

LIMITS = Limits(max_prompts=3)
INFO = msgspec.structs.replace(fake_info(FakeSettings(context_tokens=64)), vocab_size=10)


@pytest.mark.parametrize(
    ("field", "prompts"),
    [
        ("abc", ["abc"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([9] * 50, [[9] * 50]),
    ],
)
def test_forms(field: object, prompts: object) -> None:
    assert parse_prompts(field, LIMITS, INFO) == prompts


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (None, "missing"),
        ([], "empty list"),
        ([[]], "empty list"),
        ([[1], []], "empty list"),
        (5, "int"),
        (True, "bool"),
        ({"a": 1}, "dict"),
        ([True], "neither"),
        ([1, True], "other things"),
        ([1, 2.0], "other things"),
        ([1, "a"], "other things"),
        (["a", 1], "other things"),
        ([[1, None]], "other things"),
        ([[1], "a"], "neither"),
        ([None], "neither"),
        ([[[1]]], "other things"),
        ([10], "below 10"),
        ([-1], "below 10"),
        ([2**70], "huge"),
        ([float("inf")], "neither"),
        ([5] * 64, "64 in the prompt"),
        (["a"] * 4, "4 prompts, at most 3"),
        ([[1]] * 4, "4 prompts, at most 3"),
    ],
)
def test_anything_else_is_refused(field: object, words: str) -> None:
    with pytest.raises(ApiError, match=words) as caught:
        parse_prompts(field, LIMITS, INFO)
    assert caught.value.status == 400
    assert caught.value.body.param == "prompt"
