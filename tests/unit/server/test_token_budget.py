"""How many tokens a request may bring."""

from __future__ import annotations

import msgspec
import pytest

from fake_engine import FakeSettings, fake_info
from twinpool.server.errors import ApiError
from twinpool.server.limits import Limits, num_choices, output_budget

INFO = fake_info(FakeSettings(context_tokens=100))
SMALL_POOLS = msgspec.structs.replace(INFO, max_request_tokens=50)


@pytest.mark.parametrize(
    ("asked", "default", "num_prompt", "budget"),
    [
        (5, None, 10, 5),
        (90, None, 10, 90),
        (None, None, 10, 90),
        (None, 16, 10, 16),
        (None, 16, 95, 5),
        (1, 16, 99, 1),
    ],
)
def test_budget(asked: int | None, default: int | None, num_prompt: int, budget: int) -> None:
    found = output_budget(asked, default, INFO, num_prompt=num_prompt, param="max_tokens")
    assert found == budget


@pytest.mark.parametrize(
    ("asked", "num_prompt"), [(91, 10), (None, 100), (None, 5000), (1, 100), (2**70, 1)]
)
def test_what_does_not_fit_is_never_cut_but_refused(asked: int | None, num_prompt: int) -> None:
    with pytest.raises(ApiError) as caught:
        output_budget(asked, None, INFO, num_prompt=num_prompt, param="max_tokens")
    assert caught.value.body.code == "context_length_exceeded"
    assert "maximum context length is 100" in caught.value.body.message


def test_small_pools_bound_the_default_and_are_named_when_they_bind() -> None:
    assert output_budget(None, None, SMALL_POOLS, num_prompt=10, param="max_tokens") == 40
    with pytest.raises(ApiError, match="pools hold 50 tokens"):
        output_budget(60, None, SMALL_POOLS, num_prompt=10, param="max_tokens")


@pytest.mark.parametrize("n", [0, -1, 17, 2**70])
def test_n_has_bounds(n: int) -> None:
    with pytest.raises(ApiError) as caught:
        num_choices(n, Limits())
    assert caught.value.body.param == "n"


def test_n_is_1_when_it_is_not_sent() -> None:
    assert num_choices(None, Limits()) == 1
