"""The routes around generation."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from server_bench import Bench, run
from twinpool.engine.protocol import EffectiveValue


def test_health_and_ready_follow_the_engine() -> None:
    async def down(b: Bench) -> None:
        # Nothing was started: as at the first moment of a boot.
        assert (await b.http.get("/health")).json() == {"status": "starting"}
        ready = await b.http.get("/ready")
        assert ready.status_code == 503
        assert ready.headers["retry-after"] == "1"
        response = await b.completion(prompt="a")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "engine_unavailable"
        assert response.headers["retry-after"] == "1"
        for path in ("/v1/models", "/server_info", "/model_info"):
            assert (await b.http.get(path)).status_code == 503

    async def up(b: Bench) -> None:
        assert (await b.http.get("/health")).status_code == 200
        assert (await b.http.get("/ready")).json() == {"status": "ready"}

    run(down, is_up=False)
    run(up)


def test_not_ready_before_the_tokenizer_is_loaded() -> None:
    async def test(b: Bench) -> None:
        b.service.text = None
        assert (await b.http.get("/ready")).status_code == 503
        assert (await b.completion(prompt=[1])).status_code == 503

    run(test)


def test_draining_refuses_new_requests_and_stays_healthy() -> None:
    async def test(b: Bench) -> None:
        b.service.is_draining = True
        assert (await b.http.get("/health")).status_code == 200
        assert (await b.http.get("/ready")).status_code == 503
        response = await b.chat("a")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "draining"
        assert "retry-after" in response.headers

    run(test)


def test_models_are_listed_and_shown_by_name() -> None:
    async def test(b: Bench) -> None:
        (card,) = (await b.http.get("/v1/models")).json()["data"]
        assert (card["id"], card["object"]) == ("mine", "model")
        assert card["max_model_len"] == 256
        assert (await b.http.get("/v1/models/mine")).json() == card
        assert (await b.http.get("/v1/models//models/tiny-hybrid")).json() == card
        assert (await b.http.get("/v1/models/other")).status_code == 404

    run(test, served_name="mine")


def test_server_info_shows_each_value_with_its_source_and_reason() -> None:
    async def test(b: Bench) -> None:
        b.service.settings = (EffectiveValue(name="port", value=8000, source="default"),)
        body = (await b.http.get("/server_info")).json()
        assert body["settings"]["max_running_requests"] == {
            "value": 4,
            "source": "derived",
            "why": "64 state slots / 1 slot per request, 4096 rows / 2",
        }
        assert body["settings"]["port"]["source"] == "default"
        assert body["snapshot"]["state"]["capacity"] == 64
        assert "the-key" not in str(body)

    async def with_key(b: Bench) -> None:
        b.http.headers["Authorization"] = "Bearer the-key"
        await test(b)

    run(with_key, keys=("the-key",))


def test_model_info_says_layers_and_sampling_defaults() -> None:
    async def test(b: Bench) -> None:
        body = (await b.http.get("/model_info")).json()
        assert body["num_layers"] == 4
        assert body["generation_defaults"]["temperature"] == 0.5

    run(test)


@pytest.mark.parametrize(
    "accept",
    [
        "*/*",
        "application/openmetrics-text; version=1.0.0",
        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
        "text/plain; version=1.0.0; escaping=allow-utf-8",
    ],
)
def test_metrics_are_the_old_text_format_whatever_is_accepted(accept: str) -> None:
    async def test(b: Bench) -> None:
        await b.completion(prompt="abcd", max_tokens=3)
        response = await b.http.get("/metrics", headers={"Accept": accept})
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        samples = {
            sample.name: sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
            if "le" not in sample.labels
        }
        assert samples["twinpool:prompt_tokens_total"] == 4
        assert samples["twinpool:generation_tokens_total"] == 3
        assert samples["twinpool:time_to_first_token_seconds_count"] == 1
        assert samples["twinpool:time_per_output_token_seconds_count"] == 1
        assert samples["twinpool:queue_time_seconds_count"] == 1
        assert samples["twinpool:engine_up"] == 1

    run(test)


def test_metrics_work_without_an_engine() -> None:
    async def test(b: Bench) -> None:
        response = await b.http.get("/metrics")
        assert response.status_code == 200
        assert "twinpool:engine_up 0.0" in response.text

    run(test, is_up=False)


def test_responses_are_counted_by_known_route_only() -> None:
    async def test(b: Bench) -> None:
        await b.http.get("/made/up/path")
        await b.http.get("/health")
        text = (await b.http.get("/metrics")).text
        assert 'twinpool:http_responses_total{route="other",status="404"} 1.0' in text
        assert 'twinpool:http_responses_total{route="/health",status="200"} 1.0' in text
        assert "made" not in text

    run(test)


def test_tokenize_and_detokenize_are_inverse() -> None:
    async def test(b: Bench) -> None:
        tokens = (await b.http.post("/v1/tokenize", json={"prompt": "aé"})).json()
        assert tokens == {
            "count": 3,
            "max_model_len": 256,
            "tokens": [97, 195, 169],
            "token_strs": None,
        }
        text = await b.http.post("/v1/detokenize", json={"tokens": tokens["tokens"]})
        assert text.json() == {"prompt": "aé"}

    run(test)


def test_tokenize_renders_a_chat_as_the_chat_route_does() -> None:
    async def test(b: Bench) -> None:
        messages = [{"role": "user", "content": "hello"}]
        reply = await b.http.post("/v1/tokenize", json={"messages": messages})
        usage = (await b.chat(messages=messages)).json()["usage"]
        assert reply.json()["count"] == usage["prompt_tokens"]
        bare = {"messages": messages, "add_generation_prompt": False}
        shorter = await b.http.post("/v1/tokenize", json=bare)
        assert shorter.json()["count"] < reply.json()["count"]

    run(test)


def test_tokenize_wants_one_of_prompt_and_messages_and_tokens_in_range() -> None:
    async def test(b: Bench) -> None:
        both = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
        for path, body in (
            ("/v1/tokenize", {}),
            ("/v1/tokenize", both),
            ("/v1/tokenize", {"messages": [{"role": "tool", "content": "a"}]}),
            ("/v1/detokenize", {"tokens": [320]}),
            ("/v1/detokenize", {"tokens": [-1]}),
            ("/v1/detokenize", {}),
        ):
            response = await b.http.post(path, json=body)
            assert response.status_code == 400, (path, body)

    run(test)


def test_flush_answers_503_without_an_engine() -> None:
    async def test(b: Bench) -> None:
        assert (await b.http.post("/flush_cache")).status_code == 503

    run(test, is_up=False)
