"""From sampling fields to sampling parameters."""

from __future__ import annotations

from typing import Any

import pytest

from fake_engine import VOCAB, FakeSettings, fake_info
from twinpool.scheduling.sampling import SamplingParams
from twinpool.server.errors import ApiError
from twinpool.server.limits import Limits
from twinpool.server.sampling import choice_sampling, sampling_of
from twinpool.server.schema import SamplingBody

INFO = fake_info(FakeSettings())


def _sampling(has_tokenizer: bool = True, **fields: Any) -> SamplingParams:
    return sampling_of(
        SamplingBody(**fields),
        INFO,
        Limits(),
        max_tokens=5,
        logprobs=None,
        has_tokenizer=has_tokenizer,
        draw_seed=lambda: 99,
    )


def _refusal(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        _sampling(**fields)
    assert caught.value.status == 400
    return caught.value


def test_what_is_not_sent_comes_from_the_model_and_then_from_the_api() -> None:
    sampling = _sampling()
    assert (sampling.temperature, sampling.top_k) == (0.5, 7)  # the model's
    assert (sampling.top_p, sampling.min_p, sampling.repetition_penalty) == (1.0, 0.0, 1.0)
    assert sampling.seed == 99


def test_what_is_sent_beats_the_model() -> None:
    sampling = _sampling(temperature=0.0, top_k=0, seed=3)
    assert (sampling.temperature, sampling.top_k, sampling.seed) == (0.0, 0, 3)


def test_minus_one_is_how_others_spell_every_token() -> None:
    assert _sampling(top_k=-1).top_k == 0


def test_every_field_arrives() -> None:
    sampling = _sampling(
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        min_tokens=2,
        ignore_eos=True,
        logit_bias={"5": 1.5, "6": -100},
        stop=["a", "b"],
        stop_token_ids=[1, 2],
    )
    assert sampling == SamplingParams(
        max_tokens=5,
        temperature=0.5,
        top_k=7,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        min_tokens=2,
        ignore_eos=True,
        logit_bias={5: 1.5, 6: -100.0},
        stop_strings=("a", "b"),
        stop_token_ids=(1, 2),
        seed=99,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 2**70),
        ("min_p", 2.0),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("min_tokens", 6),
        ("min_tokens", -1),
        ("seed", 2**64),
        ("seed", -(2**70)),
        ("logit_bias", {"5": 101.0}),
        ("logit_bias", {str(VOCAB): 1.0}),
        ("logit_bias", {"-1": 1.0}),
        ("logit_bias", {"x": 1.0}),
        ("logit_bias", {"9" * 5000: 1.0}),
        ("logit_bias", {"²": 1.0}),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", ["x"] * 17),
        ("stop", "x" * 1025),
        ("stop_token_ids", [VOCAB]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", [1] * 1025),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    error = _refusal(**{field: value})
    assert error.body.param == field
    assert len(error.body.message) < 300


def test_stop_strings_need_a_tokenizer() -> None:
    assert "without a tokenizer" in _refusal(has_tokenizer=False, stop="a").body.message
    assert _sampling(has_tokenizer=False, stop_token_ids=[3]).stop_token_ids == (3,)


def test_choices_differ_by_their_seed_alone() -> None:
    first = _sampling(seed=2**64 - 2)
    assert [choice_sampling(first, n).seed for n in range(4)] == [2**64 - 2, 2**64 - 1, 0, 1]
    assert choice_sampling(first, 0) is first
    assert choice_sampling(first, 1).temperature == first.temperature


def test_a_seed_that_is_not_sent_is_drawn_anew() -> None:
    drawn = {
        sampling_of(SamplingBody(), INFO, Limits(), max_tokens=1, logprobs=None).seed
        for _ in range(4)
    }
    assert len(drawn) == 4
