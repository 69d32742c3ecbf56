"""A real server process, the default model, the openai client: reuse exact to the token."""

from __future__ import annotations

import concurrent.futures
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from server_process import ServerProcess, wait_until

from twinpool.engine import default_model

SYSTEM = "You are a patient guide through a small museum of clocks, and you answer in one line."
# The first start may have to compile every kernel.
START_S = 240.0
REPEAT = "<|im_start|>user\nRepeat {}<|im_end|>\n<|im_start|>assistant\n"
WORDS = ("lighthouse", "frobnicate_42", "counter", "walk_tree", "qzx17")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess.real("--pool-memory", "128MiB", "--api-key", "key") as server:
        yield server.wait_ready(START_S)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1",
        api_key="key",
        max_retries=0,
        http_client=httpx.Client(verify=False),
    ) as client:
        yield client


@pytest.fixture
def headers() -> dict[str, str]:
    return {"Authorization": "Bearer key"}


def chat(client: openai.OpenAI, messages: list[dict[str, str]], **fields: Any) -> Any:
    extra = {"return_token_ids": True, **fields.pop("extra_body", {})}
    return client.chat.completions.create(
        model=default_model.NAME,
        messages=messages,
        extra_body=extra,
        **{"max_tokens": 24, **fields},
    )


def prompt_ids(server: ServerProcess, headers: dict[str, str], messages: Any) -> list[int]:
    reply = server.post("/v1/tokenize", json={"messages": messages}, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()["tokens"]


def shared_length(a: list[int], b: list[int]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


def test_every_token_that_the_next_turn_sends_again_is_cached(
    server: ServerProcess, client: openai.OpenAI, headers: dict[str, str]
) -> None:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Which clock is the oldest?"},
    ]
    known: list[int] = []
    for turn in range(4):
        prompt = prompt_ids(server, headers, messages)
        reply = chat(client, messages, temperature=0)
        details = reply.usage.prompt_tokens_details
        if known:
            # All of the last prompt and answer but its last token, which was never computed.
            sent_again = shared_length(prompt, known)
            assert sent_again >= len(known) - 1
            assert details.cached_tokens == min(sent_again, len(known) - 1)
        answer = reply.choices[0].message.content
        token_ids = reply.choices[0].model_extra["token_ids"]
        assert reply.usage.prompt_tokens == len(prompt)
        assert reply.usage.completion_tokens == len(token_ids)
        known = prompt + token_ids
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"And what came after that, number {turn}?"},
        ]


def test_exact_repeat_computes_one_token(
    server: ServerProcess, client: openai.OpenAI, headers: dict[str, str]
) -> None:
    messages = [{"role": "user", "content": "Say it once more, the very same way, please."}]
    first = chat(client, messages, temperature=0)
    computed = server.get("/server_info", headers=headers).json()["snapshot"]["computed_tokens"]
    again = chat(client, messages, temperature=0)
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
    assert again.choices[0].message.content == first.choices[0].message.content
    after = server.get("/server_info", headers=headers).json()["snapshot"]["computed_tokens"]
    # One prompt token, and every output token but the last one.
    assert after - computed == again.usage.completion_tokens


def test_shared_system_prompt_is_reused_from_its_second_use_on(
    server: ServerProcess, client: openai.OpenAI, headers: dict[str, str]
) -> None:
    system = "You count ships in the harbour and report them by colour, never by name."
    questions = ["How many are red?", "Where do they go?", "Are any of them late?"]
    seen: list[list[int]] = []
    for question in questions:
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
        ]
        prompt = prompt_ids(server, headers, messages)
        # A salt of its own: other chats share the first token of every prompt.
        reply = chat(client, messages, max_tokens=4, extra_body={"cache_salt": "ships"})
        shared = max((shared_length(prompt, old) for old in seen), default=0)
        assert reply.usage.prompt_tokens_details.cached_tokens == shared
        assert not seen or shared > 15
        seen.append(prompt)


def test_cache_salt_keeps_prefixes_apart(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Who else reads what I have written down here today?"}]
    chat(client, messages, extra_body={"cache_salt": "a"})
    other = chat(client, messages, extra_body={"cache_salt": "b"})
    same = chat(client, messages, extra_body={"cache_salt": "a"})
    assert other.usage.prompt_tokens_details.cached_tokens == 0
    assert same.usage.prompt_tokens_details.cached_tokens == same.usage.prompt_tokens - 1


@pytest.mark.parametrize(
    "question", ["Hello!", "What is a generator?", "Who are you?", "What does math.floor do?"]
)
def test_an_answer_is_sentences_that_end_by_themselves(
    client: openai.OpenAI, question: str
) -> None:
    choice = chat(client, [{"role": "user", "content": question}], max_tokens=150).choices[0]
    assert choice.finish_reason == "stop"
    words = choice.message.content.split()
    assert len(words) >= 4
    assert words[0][0].isupper()
    assert words[-1][-1] in ".!?"
    assert sum(word.strip(".,;:!?'()`").isalpha() for word in words) > 0.6 * len(words)


def test_an_identifier_is_read_from_the_checkpoint_as_from_the_prompt(
    server: ServerProcess, headers: dict[str, str]
) -> None:
    """The first tokens of a copy depend on the word, so that a lost or wrong state would show."""
    answers = {}
    for word in WORDS:
        body = {"prompt": REPEAT.format(word), "max_tokens": 12, "temperature": 0, "logprobs": 1}
        body["cache_salt"] = word
        cold, hit = (
            server.post("/v1/completions", json=body, headers=headers).json() for _ in range(2)
        )
        assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        cached = hit["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == hit["usage"]["prompt_tokens"] - 1
        assert hit["choices"][0] == cold["choices"][0]
        answers[word] = cold["choices"][0]["text"]
    assert len(set(answers.values())) == len(WORDS)


def test_a_word_is_likelier_where_it_was_asked_for(
    server: ServerProcess, headers: dict[str, str]
) -> None:
    def score(asked: str, answer: str) -> float:
        """Return the log probability of an answer."""
        body: dict[str, Any] = {"prompt": REPEAT.format(asked)}
        reply = server.post("/v1/completions", json={**body, "max_tokens": 1}, headers=headers)
        num_prompt = reply.json()["usage"]["prompt_tokens"]
        body = {"prompt": f"{body['prompt']}{answer}<|im_end|>", "max_tokens": 1}
        body |= {"echo": True, "logprobs": 1}
        reply = server.post("/v1/completions", json=body, headers=headers)
        return sum(reply.json()["choices"][0]["logprobs"]["token_logprobs"][num_prompt:-1])

    for answer in WORDS:
        scores = {asked: score(asked, answer) for asked in WORDS}
        assert max(scores, key=scores.__getitem__) == answer, scores


def test_stream_and_whole_answer_are_the_same(client: openai.OpenAI) -> None:
    fields = {
        "model": default_model.NAME,
        "messages": [{"role": "user", "content": "Tell me about the tall one."}],
        "seed": 11,
        "max_tokens": 30,
    }
    whole = client.chat.completions.create(**fields)
    chunks = list(
        client.chat.completions.create(
            **fields, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0


def test_choices_share_the_prompt(server: ServerProcess, client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Three different ways to say this, one after another."}]
    reply = chat(client, messages, n=3, seed=5, temperature=1.0)
    assert len({choice.message.content for choice in reply.choices}) > 1


def test_stop_string_ends_the_answer_before_it(client: openai.OpenAI) -> None:
    fields = {
        "model": default_model.NAME,
        "messages": [{"role": "user", "content": "Go on until I stop you."}],
        "seed": 3,
        "max_tokens": 30,
        "extra_body": {"ignore_eos": True},
    }
    whole = client.chat.completions.create(**fields).choices[0].message.content
    word = whole.split()[4]
    stopped = client.chat.completions.create(**fields, stop=[word]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == whole[: whole.index(word)]


def test_clients_that_leave_free_everything_at_once(
    server: ServerProcess, headers: dict[str, str]
) -> None:
    def leave(number: int) -> None:
        body = {"prompt": [5 + number] * 200, "max_tokens": 4000, "stream": True}
        body["ignore_eos"] = True
        with (
            server.http(headers=headers) as http,
            http.stream("POST", "/v1/completions", json=body) as reply,
        ):
            next(reply.iter_lines())

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(leave, range(48)))

    def is_idle() -> bool:
        snapshot = server.get("/server_info", headers=headers).json()["snapshot"]
        return (
            snapshot["num_running"] == snapshot["num_waiting"] == 0
            and snapshot["kv"]["working"] == snapshot["state"]["working"] == 0
        )

    wait_until(is_idle, 20.0)
    assert server.post("/flush_cache", headers=headers).status_code == 200
    snapshot = server.get("/server_info", headers=headers).json()["snapshot"]
    for pool in ("kv", "state"):
        assert snapshot[pool]["free"] == snapshot[pool]["capacity"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b'{"messages": 5}', 400),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400),
        (b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1e400}', 400),
        (b'{"messages": [{"role": "user", "content": "a"}], "temperature": "hot"}', 400),
        (b'{"messages": [{"role": "user", "content": "a"}], "n": 100000000000000000000}', 400),
        (b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1000000}', 400),
    ],
)
def test_bad_input_is_a_400_and_the_server_goes_on(
    server: ServerProcess, headers: dict[str, str], content: bytes, status: int
) -> None:
    headers = {**headers, "content-type": "application/json"}
    reply = server.post("/v1/chat/completions", content=content, headers=headers)
    assert reply.status_code == status, reply.text
    assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
    assert server.get("/health").status_code == 200


def test_prompt_that_can_never_fit_is_refused_with_numbers(
    server: ServerProcess, headers: dict[str, str]
) -> None:
    body = {"prompt": [7] * 40_000, "max_tokens": 4}
    reply = server.post("/v1/completions", json=body, headers=headers)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert "40000" in reply.json()["error"]["message"]


def test_wrong_key_is_refused_everywhere_but_health(server: ServerProcess) -> None:
    for path in ("/v1/models", "/metrics", "/server_info", "/model_info"):
        assert server.get(path, headers={"Authorization": "Bearer no"}).status_code == 401
    assert server.get("/health").status_code == 200


def test_metrics_count_what_was_cached(server: ServerProcess, headers: dict[str, str]) -> None:
    reply = server.get("/metrics", headers={**headers, "accept": "application/openmetrics-text"})
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = {}
    for line in reply.text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[name] = float(value)
    cached = [value for name, value in values.items() if "cached" in name and "tokens" in name]
    assert max(cached) > 0


def test_sigterm_drains_and_exits_with_0() -> None:
    with ServerProcess.real("--pool-memory", "64MiB") as server:
        server.wait_ready(START_S)
        server.signal(signal.SIGTERM)
        assert server.wait(30.0) == 0
