"""`/v1/completions` over the whole front: every form of prompt and answer."""

from __future__ import annotations

from typing import Any

import pytest

from fake_engine import EOS, VOCAB, Trouble
from server_bench import Bench, run


def _choices(response: Any) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    return choices


def test_a_text_prompt_gives_text_and_counts() -> None:
    async def test(b: Bench) -> None:
        response = await b.completion(prompt="héllo", max_tokens=6)
        body = response.json()
        assert body["object"] == "text_completion"
        assert body["id"].startswith("cmpl-")
        assert response.headers["x-request-id"] == body["id"]
        assert body["model"] == "tiny-hybrid"
        assert body["choices"] == [
            {
                "index": 0,
                "text": "héllo",
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ]
        assert body["usage"] == {
            "prompt_tokens": 6,
            "completion_tokens": 6,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    run(test)


def test_without_max_tokens_sixteen_come_or_what_the_context_leaves() -> None:
    async def test(b: Bench) -> None:
        (choice,) = _choices(await b.completion(prompt="x"))
        assert choice["text"] == "x" * 16
        (choice,) = _choices(await b.completion(prompt="x" * 29))
        assert choice["text"] == "x" * 3

    run(test, engine={"context_tokens": 32})


def test_lists_of_texts_and_of_token_ids_give_choices_in_order() -> None:
    async def test(b: Bench) -> None:
        texts = _choices(await b.completion(prompt=["a", "b"], n=2, max_tokens=2))
        assert [(c["index"], c["text"]) for c in texts] == [
            (0, "aa"),
            (1, "aa"),
            (2, "bb"),
            (3, "bb"),
        ]
        ids = _choices(await b.completion(prompt=[[97], [98, 99]], max_tokens=2))
        assert [c["text"] for c in ids] == ["aa", "bc"]
        (one,) = _choices(await b.completion(prompt=[98, 99], max_tokens=2))
        assert one["text"] == "bc"

    run(test)


def test_token_ids_come_back_when_asked_for_with_the_end_token_that_the_text_leaves_out() -> None:
    async def test(b: Bench) -> None:
        (choice,) = _choices(
            await b.completion(prompt=[97, EOS], max_tokens=9, return_token_ids=True)
        )
        assert choice["token_ids"] == [97, EOS]
        assert choice["prompt_token_ids"] == [97, EOS]
        assert (choice["text"], choice["finish_reason"]) == ("a", "stop")
        assert choice["stop_reason"] is None

    run(test)


def test_ignore_eos_goes_past_the_end_token() -> None:
    async def test(b: Bench) -> None:
        (choice,) = _choices(
            await b.completion(
                prompt=[97, EOS], max_tokens=4, ignore_eos=True, skip_special_tokens=False
            )
        )
        assert (choice["text"], choice["finish_reason"]) == ("a<eos>a<eos>", "length")

    run(test)


def test_stop_tokens_and_stop_strings_end_the_text_and_say_which_one() -> None:
    async def test(b: Bench) -> None:
        (by_token,) = _choices(await b.completion(prompt="abc", stop_token_ids=[98]))
        assert (by_token["text"], by_token["stop_reason"]) == ("a", 98)
        (by_text,) = _choices(await b.completion(prompt="abc", stop=["zz", "bc"]))
        assert (by_text["text"], by_text["stop_reason"]) == ("a", "bc")
        assert by_text["finish_reason"] == "stop"

    run(test)


def test_echo_puts_the_prompt_first() -> None:
    async def test(b: Bench) -> None:
        (text,) = _choices(await b.completion(prompt="ab", echo=True, max_tokens=2))
        assert text["text"] == "abab"
        (ids,) = _choices(await b.completion(prompt=[97, 98], echo=True, max_tokens=1))
        assert ids["text"] == "aba"

    run(test)


def test_logprobs_cover_the_output_and_with_echo_the_prompt() -> None:
    async def test(b: Bench) -> None:
        (choice,) = _choices(await b.completion(prompt="ab", max_tokens=2, logprobs=2))
        assert choice["logprobs"] == {
            "tokens": ["a", "b"],
            "token_logprobs": [-0.25, -0.25],
            "top_logprobs": [{"a": -0.25, "b": -2.0}, {"b": -0.25, "c": -2.0}],
            "text_offset": [0, 1],
        }
        (choice,) = _choices(await b.completion(prompt="ab", max_tokens=1, logprobs=0, echo=True))
        assert choice["logprobs"]["tokens"] == ["a", "b", "a"]
        assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.25]
        assert choice["logprobs"]["text_offset"] == [0, 1, 2]

    run(test)


def test_a_prompt_is_scored_without_output() -> None:
    async def test(b: Bench) -> None:
        response = await b.completion(prompt="abc", max_tokens=0, echo=True, logprobs=1)
        (choice,) = _choices(response)
        assert choice["text"] == "abc"
        assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
        assert choice["finish_reason"] == "length"
        assert response.json()["usage"]["completion_tokens"] == 0

    run(test)


def test_cached_tokens_are_those_of_each_prompts_first_choice() -> None:
    async def test(b: Bench) -> None:
        async def cached(**body: Any) -> int:
            usage = (await b.completion(max_tokens=1, **body)).json()["usage"]
            count: int = usage["prompt_tokens_details"]["cached_tokens"]
            return count

        assert await cached(prompt="a shared prefix") == 0
        assert await cached(prompt="a shared prefix") == 14
        assert await cached(prompt="a shared prefix", n=3) == 14
        assert await cached(prompt=["a shared prefix", "a shared toy"]) == 14 + 9
        assert await cached(prompt="a shared prefix", cache_salt="mine") == 0
        assert await cached(prompt="a shared prefix", cache_salt="mine") == 14
        assert (await b.http.post("/flush_cache")).json() == {"success": True, "is_empty": True}
        assert await cached(prompt="a shared prefix") == 0

    run(test)


def test_later_choices_find_the_prompt_of_the_first_one_in_the_cache() -> None:
    async def test(b: Bench) -> None:
        response = await b.completion(prompt=["a prompt", "the other 1"], n=3, max_tokens=2)
        assert [choice["text"] for choice in response.json()["choices"]] == ["a "] * 3 + ["th"] * 3
        snapshot = await b.service.client.snapshot()
        assert snapshot.prompt_tokens == 3 * (8 + 11)
        assert snapshot.cached_tokens == 2 * (7 + 10)
        assert b.service.client.num_in_flight == 0

    run(test)


def test_a_stream_brings_the_same_text_with_usage_last() -> None:
    async def test(b: Bench) -> None:
        events = await b.events(
            "/v1/completions",
            prompt=["héy", "zz"],
            max_tokens=4,
            stream_options={"include_usage": True},
        )
        assert events.pop() == "[DONE]"
        last = events.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 8
        assert all(event["usage"] is None for event in events)
        for index, text in ((0, "héy"), (1, "zzzz")):
            parts = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
            assert "".join(part["text"] for part in parts) == text
            assert [part["finish_reason"] for part in parts][-1] == "length"
            assert {part["finish_reason"] for part in parts[:-1]} == {None}

    run(test)


def test_a_stream_without_usage_does_not_mention_it() -> None:
    async def test(b: Bench) -> None:
        events = await b.events("/v1/completions", prompt="ab", max_tokens=2)
        assert events[-1] == "[DONE]"
        assert all("usage" not in event for event in events[:-1])

    run(test)


def test_a_stream_with_echo_ids_and_logprobs_adds_up_to_the_whole_answer() -> None:
    async def test(b: Bench) -> None:
        asked = {
            "prompt": "ab",
            "max_tokens": 3,
            "echo": True,
            "logprobs": 1,
            "return_token_ids": True,
        }
        (whole,) = _choices(await b.completion(**asked))
        events = await b.events("/v1/completions", **asked)
        parts = [event["choices"][0] for event in events[:-1]]
        assert "".join(part["text"] for part in parts) == whole["text"]
        assert [token for part in parts for token in part["token_ids"]] == whole["token_ids"]
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [entry for part in parts for entry in part["logprobs"][key]]
            assert joined == whole["logprobs"][key]

    run(test)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [VOCAB]}, "prompt"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 2**70}, "max_tokens"),
        ({"prompt": "a", "n": 0}, "n"),
        ({"prompt": "a", "n": 17}, "n"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "logprobs": -1}, "logprobs"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": "a", "response_format": {"type": "json_object"}}, "response_format"),
        ({"prompt": "a", "stream_options": {}}, "stream_options"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt"),
        ({"prompt": "a", "temperature": 9e9}, "temperature"),
    ],
)
def test_what_cannot_be_done_is_a_400_that_names_the_field(
    body: dict[str, Any], param: str
) -> None:
    async def test(b: Bench) -> None:
        response = await b.completion(**body)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert b.service.client.num_in_flight == 0

    run(test)


@pytest.mark.parametrize("max_tokens", [None, 1, 200])
def test_a_prompt_that_is_too_long_is_refused_with_the_numbers(max_tokens: int | None) -> None:
    async def test(b: Bench) -> None:
        response = await b.completion(prompt="x" * 300, max_tokens=max_tokens)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "256 tokens" in error["message"]
        assert "300 in the prompt" in error["message"]

    run(test)


def test_what_the_pools_can_never_hold_is_a_400_with_a_hint() -> None:
    async def test(b: Bench) -> None:
        for stream in (False, True):
            response = await b.completion(prompt=[Trouble.CAPACITY], stream=stream)
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["code"] == "capacity_exceeded"
            assert "raise --pool-memory" in error["message"]

    run(test)


def test_a_request_that_fails_alone_is_a_500_and_its_neighbours_go_on() -> None:
    async def test(b: Bench) -> None:
        response = await b.completion(prompt=[Trouble.LANE_ERROR], max_tokens=9)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "generation_failed"
        (choice,) = _choices(await b.completion(prompt="ab", max_tokens=2))
        assert choice["text"] == "ab"

    run(test)


def test_a_stream_that_fails_ends_with_an_error_event_and_no_done() -> None:
    async def test(b: Bench) -> None:
        events = await b.events("/v1/completions", prompt=[Trouble.LANE_ERROR], max_tokens=9)
        assert events[-1]["error"]["code"] == "generation_failed"

    run(test)


def test_without_a_tokenizer_token_ids_go_in_and_out() -> None:
    async def test(b: Bench) -> None:
        (choice,) = _choices(await b.completion(prompt=[5, 6], max_tokens=3, logprobs=1))
        assert choice["token_ids"] == [5, 6, 5]
        assert choice["text"] == ""
        assert choice["logprobs"]["tokens"] == ["token_id:5", "token_id:6", "token_id:5"]
        for body in ({"prompt": "a"}, {"prompt": ["a"]}, {"prompt": [5], "stop": "a"}):
            response = await b.completion(**body)
            assert response.status_code == 400
            assert "without a tokenizer" in response.json()["error"]["message"]

    run(test, has_text=False)
