"""Whatever bytes come in, the answer is a nested error and the server goes on."""

from __future__ import annotations

import json

import httpx
import pytest

from server_bench import Bench, run
from twinpool.server.limits import Limits
from twinpool.server.service import Service

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/tokenize", "/v1/detokenize")


def _deep(levels: int) -> bytes:
    return b'{"prompt": ' + b"[" * levels + b"]" * levels + b"}"


MALFORMED = {
    "nothing": b"",
    "no JSON": b"hello",
    "cut off": b'{"prompt": "a"',
    "two values": b'{"prompt": "a"} {}',
    "a list": b"[]",
    "a number": b"5",
    "null": b"null",
    "invalid UTF-8": b'{"prompt": "\xff\xfe"}',
    "encoded surrogate": b'{"prompt": "\xed\xa0\x80"}',
    "lone surrogate": b'{"prompt": "\\ud800"}',
    "lone surrogate in a key": b'{"\\udfff": 1, "prompt": [1.5]}',
    "infinity": b'{"prompt": "a", "temperature": -Infinity}',
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "endless digits": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "deep": _deep(100_000),
    "byte order mark": b'\xef\xbb\xbf{"prompt": "a"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "NUL bytes": b"\x00" * 100,
}
WRONG = {
    "1e400": b'{"prompt": "a", "temperature": 1e400}',
    "1e400 in a prompt": b'{"prompt": [1e400]}',
    "huge integer": b'{"prompt": "a", "max_tokens": 1180591620717411303424}',
    "a seed beyond any float": b'{"prompt": "a", "seed": ' + b"9" * 400 + b"}",
    "a negative top_k beyond any float": b'{"prompt": "a", "top_k": -' + b"9" * 400 + b"}",
    "min_tokens beyond any float": b'{"prompt": "a", "min_tokens": ' + b"9" * 400 + b"}",
    "n too long to print": b'{"prompt": "a", "n": ' + b"9" * 4300 + b"}",
    "max_tokens too long to print": b'{"prompt": "a", "max_tokens": ' + b"9" * 4300 + b"}",
    "huge token": b'{"prompt": [1180591620717411303424]}',
    "rather deep": _deep(150),
    "text for a number": b'{"prompt": "a", "temperature": "0.5"}',
    "a bool for a number": b'{"prompt": "a", "max_tokens": true}',
    "a float for an integer": b'{"prompt": "a", "n": 1.5}',
    "a number for a bool": b'{"prompt": "a", "stream": 1}',
    "a list for a text": b'{"prompt": "a", "model": ["x"]}',
    "wrong stop": b'{"prompt": "a", "stop": [1]}',
    "wrong biases": b'{"prompt": "a", "logit_bias": {"1": "x"}}',
    "wrong options": b'{"prompt": "a", "stream": true, "stream_options": 5}',
}


def _check_refused(response: httpx.Response) -> None:
    assert response.status_code == 400, response.text[:200]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) < 400


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_what_is_no_json_object_is_a_400_on_every_route(body: bytes) -> None:
    async def test(b: Bench) -> None:
        for path in PATHS:
            _check_refused(await b.http.post(path, content=body))
        assert (await b.completion(prompt="ab", max_tokens=2)).json()["choices"][0]["text"] == "ab"

    run(test)


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG.keys())
def test_wrong_types_and_huge_numbers_are_a_400(body: bytes) -> None:
    async def test(b: Bench) -> None:
        _check_refused(await b.http.post("/v1/completions", content=body))
        assert (await b.completion(prompt="ab", max_tokens=2)).json()["choices"][0]["text"] == "ab"

    run(test)


def test_unknown_fields_are_tolerated() -> None:
    async def test(b: Bench) -> None:
        extra = {"metadata": {"a": [1]}, "store": True, "x-y": None, "reasoning_effort": "low"}
        assert (await b.completion(prompt="a", **extra)).status_code == 200
        assert (await b.chat("a", **extra)).status_code == 200

    run(test)


def test_nulls_stand_for_what_is_not_sent() -> None:
    async def test(b: Bench) -> None:
        names = ("temperature", "top_p", "n", "max_tokens", "stop", "seed", "stream", "logit_bias")
        assert (await b.completion(prompt="a", **dict.fromkeys(names))).status_code == 200

    run(test)


def test_a_character_beyond_the_basic_plane_and_a_nul_pass() -> None:
    async def test(b: Bench) -> None:
        text = "😀\x00"
        response = await b.completion(prompt=text, max_tokens=5)
        assert response.json()["choices"][0]["text"] == text

    run(test)


def test_a_body_beyond_the_limit_is_refused_by_its_length_and_while_it_comes() -> None:
    async def test(b: Bench) -> None:
        body = json.dumps({"prompt": "x" * 200}).encode()

        async def slowly() -> object:
            for start in range(0, len(body), 50):
                yield body[start : start + 50]

        for content in (body, slowly()):
            response = await b.http.post("/v1/completions", content=content)  # type: ignore[arg-type]
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "body_too_large"
            assert "100 bytes" in response.json()["error"]["message"]
            assert response.headers["connection"] == "close"

    run(test, limits=Limits(max_body_bytes=100))


def test_a_compressed_body_is_refused() -> None:
    async def test(b: Bench) -> None:
        response = await b.http.post(
            "/v1/completions", content=b"{}", headers={"Content-Encoding": "gzip"}
        )
        assert response.status_code == 415

    run(test)


def test_unknown_paths_and_methods_have_nested_errors_too() -> None:
    async def test(b: Bench) -> None:
        for method, path, status in (
            ("GET", "/nothing", 404),
            ("GET", "/v1/completions/", 404),
            ("GET", "/v1/completions", 405),
            ("POST", "/health", 405),
            ("OPTIONS", "/v1/completions", 405),
            ("PATCH", "/v1/models", 405),
            ("GET", "/%ff%fe/../x", 404),
        ):
            response = await b.http.request(method, path)
            assert response.status_code == status, path
            assert response.json()["error"]["type"] == "invalid_request_error"

    run(test)


def test_another_model_is_a_404_and_each_name_of_this_one_is_known() -> None:
    async def test(b: Bench) -> None:
        for name in ("mine", "tiny-hybrid", "/models/tiny-hybrid", "default", None):
            response = await b.completion(prompt="a", model=name)
            assert response.status_code == 200
            assert response.json()["model"] == "mine"
        response = await b.completion(prompt="a", model="gpt-x")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"

    run(test, served_name="mine")


def test_a_fault_of_the_server_is_a_500_that_shows_nothing_of_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object) -> str:
        raise RuntimeError("secret inside")

    async def test(b: Bench) -> None:
        response = await b.completion(prompt="private prompt")
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "internal"
        assert "secret" not in response.text
        assert (await b.http.get("/health")).status_code == 200

    monkeypatch.setattr(Service, "check_model", broken)
    run(test)
    assert "secret inside" in caplog.text
    assert "private prompt" not in caplog.text
