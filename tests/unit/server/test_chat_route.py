"""`/v1/chat/completions` over the whole front."""

from __future__ import annotations

from typing import Any

import pytest

from server_bench import Bench, run


def _user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_a_chat_answers_with_a_message_and_counts() -> None:
    async def test(b: Bench) -> None:
        response = await b.chat("hello")
        body = response.json()
        assert response.status_code == 200, response.text
        assert body["object"] == "chat.completion"
        assert body["id"].startswith("chatcmpl-")
        (choice,) = body["choices"]
        # The fake engine repeats the prompt up to the first end of a message.
        assert choice["message"] == {"role": "assistant", "content": "user\nhello", "refusal": None}
        assert choice["finish_reason"] == "stop"
        assert choice["logprobs"] is None
        assert body["usage"]["prompt_tokens"] == 24
        assert body["usage"]["completion_tokens"] == 12
        assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}

    run(test)


def test_without_max_tokens_a_chat_may_fill_the_context() -> None:
    async def test(b: Bench) -> None:
        response = await b.chat("hello", ignore_eos=True)
        assert response.json()["usage"]["total_tokens"] == 64
        assert response.json()["choices"][0]["finish_reason"] == "length"

    run(test, engine={"context_tokens": 64})


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_both_names_of_the_limit_are_known(field: str) -> None:
    async def test(b: Bench) -> None:
        response = await b.chat("hello", **{field: 3})
        assert response.json()["usage"]["completion_tokens"] == 3
        refused = await b.chat("hello", **{field: 300})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == field
        assert refused.json()["error"]["code"] == "context_length_exceeded"

    run(test)


def test_parts_of_text_are_joined_and_a_developer_is_a_system() -> None:
    async def test(b: Bench) -> None:
        messages = [{"role": "developer", "content": [{"type": "text", "text": t} for t in "ab"]}]
        response = await b.chat(messages=messages)
        assert response.json()["choices"][0]["message"]["content"] == "system\nab"

    run(test)


def test_an_assistant_that_called_a_tool_may_have_no_content() -> None:
    async def test(b: Bench) -> None:
        messages = [
            *_user("a"),
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "4", "tool_call_id": "1"},
        ]
        assert (await b.chat(messages=messages)).status_code == 200

    run(test)


def test_boundaries_of_the_template_reach_the_engine() -> None:
    async def test(b: Bench) -> None:
        seen = []
        submit = b.service.client.submit

        def spy(submissions: Any, mailbox: Any) -> None:
            seen.extend(submissions.values())
            submit(submissions, mailbox)

        b.service.client.submit = spy  # type: ignore[method-assign]
        messages = [{"role": "system", "content": "s"}, *_user("u")]
        await b.chat(messages=messages, n=2, seed=5)
        assert [s.boundaries for s in seen] == [(11, 20)] * 2
        assert [s.sampling.seed for s in seen] == [5, 6]

    run(test)


def test_template_variables_are_passed_on_but_not_the_reserved_ones() -> None:
    async def test(b: Bench) -> None:
        plain = (await b.chat("a")).json()["usage"]["prompt_tokens"]
        thinking = await b.chat("a", chat_template_kwargs={"enable_thinking": True})
        assert thinking.json()["usage"]["prompt_tokens"] == plain + len("<think>")
        for name in ("messages", "self"):
            refused = await b.chat("a", chat_template_kwargs={name: []})
            assert refused.status_code == 400, name

    run(test)


def test_logprobs_come_in_the_chat_form() -> None:
    async def test(b: Bench) -> None:
        response = await b.chat("a", max_tokens=2, logprobs=True, top_logprobs=2)
        content = response.json()["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == ["<|im_start|>", "u"]
        assert content[1]["bytes"] == [117]
        assert [top["token"] for top in content[1]["top_logprobs"]] == ["u", "v"]
        plain = await b.chat("a", max_tokens=2, logprobs=True)
        entries = plain.json()["choices"][0]["logprobs"]["content"]
        assert [entry["top_logprobs"] for entry in entries] == [[], []]

    run(test)


def test_a_stream_opens_with_the_role_and_ends_with_reason_usage_and_done() -> None:
    async def test(b: Bench) -> None:
        events = await b.events(
            "/v1/chat/completions",
            messages=_user("héy"),
            n=2,
            stream_options={"include_usage": True},
        )
        assert events.pop() == "[DONE]"
        usage = events.pop()
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 22)
        assert {event["object"] for event in events} == {"chat.completion.chunk"}
        assert len({event["id"] for event in events}) == 1
        for index in (0, 1):
            parts = [e["choices"][0] for e in events if e["choices"][0]["index"] == index]
            assert parts[0]["delta"] == {"role": "assistant", "content": ""}
            text = "".join(part["delta"].get("content", "") for part in parts)
            assert text == "user\nhéy"
            assert parts[-1]["delta"] == {}
            assert parts[-1]["finish_reason"] == "stop"

    run(test)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": _user(5)}, "messages.0.content"),
        ({"messages": _user([{"type": "image_url", "image_url": {}}])}, "messages.0.content.0"),
        ({"messages": _user([{"type": "text"}])}, "messages.0.content.0"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"n": 17}, "n"),
        ({"stop": [""]}, "stop"),
    ],
)
def test_what_cannot_be_done_is_a_400_that_names_the_field(
    body: dict[str, Any], param: str
) -> None:
    async def test(b: Bench) -> None:
        response = await b.chat(**body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param

    run(test)


def test_tools_pass_when_none_may_be_called() -> None:
    async def test(b: Bench) -> None:
        response = await b.chat("a", tools=[{"type": "function"}], tool_choice="none")
        assert response.status_code == 200

    run(test)


def test_what_the_template_refuses_is_a_400() -> None:
    async def test(b: Bench) -> None:
        response = await b.chat(messages=[{"role": "tool", "content": "a"}])
        assert response.status_code == 400
        assert "cannot begin with a tool" in response.json()["error"]["message"]

    run(test)


def test_without_a_tokenizer_chat_is_refused_with_a_hint() -> None:
    async def test(b: Bench) -> None:
        response = await b.chat("a")
        assert response.status_code == 400
        assert "send token ids" in response.json()["error"]["message"]

    run(test, has_text=False)


def test_a_long_chat_is_rendered_off_the_event_loop() -> None:
    async def test(b: Bench) -> None:
        response = await b.chat("x" * 10_000)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"

    run(test)
