"""Keys, cross-site requests and the queue's limit, before any route does work."""

from __future__ import annotations

import asyncio

import pytest

from fake_engine import Trouble
from server_bench import Bench, run
from twinpool.server.limits import Limits

GUARDED = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/metrics"),
    ("POST", "/v1/tokenize"),
    ("POST", "/v1/detokenize"),
    ("GET", "/server_info"),
    ("GET", "/model_info"),
    ("POST", "/flush_cache"),
    ("GET", "/no/such/path"),
]


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_every_route_but_health_wants_a_key(method: str, path: str) -> None:
    async def test(b: Bench) -> None:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "right"}):
            response = await b.http.request(method, path, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        let_in = await b.http.request(method, path, headers={"Authorization": "Bearer right"})
        assert let_in.status_code != 401

    run(test, keys=("other", "right"))


def test_health_and_ready_want_no_key() -> None:
    async def test(b: Bench) -> None:
        assert (await b.http.get("/health")).status_code == 200
        assert (await b.http.get("/ready")).status_code == 200

    run(test, keys=("right",))


def test_keys_do_not_meet_each_others_prefixes() -> None:
    async def test(b: Bench) -> None:
        async def cached(key: str) -> int:
            b.http.headers["Authorization"] = f"Bearer {key}"
            usage = (await b.completion(prompt="a shared prefix", max_tokens=1)).json()["usage"]
            count: int = usage["prompt_tokens_details"]["cached_tokens"]
            return count

        assert [await cached(key) for key in ("one", "two", "one", "two")] == [0, 0, 14, 14]

    run(test, keys=("one", "two"))


def test_no_answer_opens_the_server_to_other_sites() -> None:
    async def test(b: Bench) -> None:
        origin = {"Origin": "http://evil.example"}
        asked = {"Access-Control-Request-Method": "POST", **origin}
        for response in (
            await b.http.get("/v1/models", headers=origin),
            await b.http.options("/v1/completions", headers=asked),
            await b.http.post("/v1/completions", json={"prompt": "a"}, headers=origin),
        ):
            assert not [name for name in response.headers if name.startswith("access-control")]

    run(test)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_page_of_another_site_cannot_post_without_a_preflight(kind: str) -> None:
    async def test(b: Bench) -> None:
        headers = {"Origin": "http://evil.example", "Content-Type": kind}
        for path in ("/v1/completions", "/flush_cache"):
            response = await b.http.post(path, content=b'{"prompt": "a"}', headers=headers)
            assert response.status_code == 415
        plain = await b.http.post(
            "/v1/completions", content=b'{"prompt": "a"}', headers={"Content-Type": kind}
        )
        assert plain.status_code == 200

    run(test)


def test_what_the_queue_has_no_room_for_is_a_503_that_says_when_to_come_back() -> None:
    async def test(b: Bench) -> None:
        # 1 may run and 2 may wait.
        slow = {"prompt": [Trouble.SLOW], "max_tokens": 200, "ignore_eos": True}
        tasks = [asyncio.create_task(b.completion(**slow)) for _ in range(3)]
        while b.service.client.num_in_flight < 3:
            await asyncio.sleep(0.005)
        response = await b.completion(prompt="a")
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        error = response.json()["error"]
        assert error["code"] == "queue_full"
        assert "3 requests are in flight" in error["message"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A request alone that is larger than the queue can never fit.
        assert (await b.completion(prompt="a", n=4)).status_code == 400
        assert (await b.completion(prompt="a", n=3, max_tokens=1)).status_code == 200

    run(
        test,
        limits=Limits(max_queue=2),
        engine={"max_running_requests": 1, "slow_step_s": 0.01},
    )


def test_a_request_that_is_cancelled_leaves_nothing_behind() -> None:
    async def test(b: Bench) -> None:
        slow = {"prompt": [Trouble.SLOW], "max_tokens": 200, "ignore_eos": True, "n": 2}
        task = asyncio.create_task(b.completion(**slow))
        while b.service.client.num_in_flight < 2:
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert b.service.client.num_in_flight == 0
        assert b.service.num_active == 0
        snapshot = await b.service.client.snapshot()
        assert snapshot.num_running == 0
        assert snapshot.finished["abort"] == 2
        assert snapshot.finished.keys() == {"abort"}

    run(test)
