"""The openai client against the server: sync, async, streams, errors as their classes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import openai
import pytest
from server_process import ServerProcess

from fake_engine import Trouble

MESSAGES = [{"role": "user", "content": "héllo"}]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess.fake(flags={"api_keys": ["key"], "max_queue": 6}) as server:
        yield server.wait_ready()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    http = httpx.Client(verify=False)
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="key", max_retries=0, http_client=http
    ) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny-hybrid"]
    assert client.models.retrieve("tiny-hybrid").owned_by == "twinpool"


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny-hybrid", messages=MESSAGES, n=2, logprobs=True, top_logprobs=2, seed=1
    )
    assert [choice.message.content for choice in reply.choices] == ["user\nhéllo"] * 2
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 0
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[1].top_logprobs[1].token == "v"


def test_chat_stream(client: openai.OpenAI) -> None:
    text, reasons, usage = "", [], None
    for chunk in client.chat.completions.create(
        model="tiny-hybrid",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert text == "user\nhéllo"
    assert reasons[-1] == "stop"
    assert usage is not None
    assert usage.completion_tokens == 13


def test_completions_and_extra_fields(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model="tiny-hybrid",
        prompt=[[97, 98]],
        max_tokens=3,
        logprobs=1,
        echo=True,
        extra_body={"return_token_ids": True, "top_k": 3, "min_p": 0.1},
    )
    (choice,) = reply.choices
    assert choice.text == "ababa"
    assert choice.model_extra is not None
    assert choice.model_extra["token_ids"] == [97, 98, 97]
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "a", "b", "a"]


def test_many_async_streams_at_once(server: ServerProcess) -> None:
    async def one(client: openai.AsyncOpenAI, n: int) -> str:
        stream = await client.completions.create(
            model="tiny-hybrid", prompt=f"request {n} ", max_tokens=40, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="key", max_retries=8
        ) as client:
            # More than fit at once: the client comes back after Retry-After.
            return await asyncio.gather(*(one(client, n) for n in range(16)))

    texts = asyncio.run(all_of_them())
    assert texts == [(f"request {n} " * 5)[:40] for n in range(16)]


def test_a_stream_that_is_closed_early_is_aborted(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="tiny-hybrid",
        prompt=[Trouble.SLOW],
        max_tokens=200,
        stream=True,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    next(iter(stream))
    stream.close()
    reply = client.completions.create(model="tiny-hybrid", prompt="a", max_tokens=1)
    assert reply.choices[0].text == "a"


def test_errors_become_the_clients_classes(server: ServerProcess, client: openai.OpenAI) -> None:
    def ask(**body: object) -> None:
        client.chat.completions.create(
            **{"model": "tiny-hybrid", "messages": MESSAGES, **body}  # type: ignore[call-overload]
        )

    with pytest.raises(openai.BadRequestError) as bad:
        ask(temperature=-1)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        ask(messages=[{"role": "user", "content": "x" * 500}])
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="gpt-x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.InternalServerError) as failed:
        client.completions.create(model="tiny-hybrid", prompt=[Trouble.LANE_ERROR])
    assert failed.value.code == "generation_failed"


def test_an_error_inside_a_stream_is_raised_by_the_client(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="tiny-hybrid", prompt=[Trouble.LANE_ERROR], stream=True, max_tokens=9
    )
    with pytest.raises(openai.APIError, match="logits are nan"):
        list(stream)
