"""The same tokens and logprobs, bit for bit, whatever the memory and the batch look like."""

from __future__ import annotations

import numpy as np
import pytest

import tiny_models
from engine_runs import generate, greedy, start

MAX_TOKENS = 24


def conversation_prompts() -> list[list[int]]:
    """Prompts that share prefixes in every way: repeats, extensions, forks, strangers."""
    rng = np.random.default_rng(3)
    shared = rng.integers(2, 97, 150).tolist()
    prompts = [shared, shared, shared + rng.integers(2, 97, 40).tolist()]
    prompts += [shared[:90] + rng.integers(2, 97, 30 + n).tolist() for n in range(3)]
    prompts += [rng.integers(2, 97, n).tolist() for n in (1, 2, 17, 64, 65, 300)]
    return prompts


@pytest.fixture(scope="module", params=["dense", "moe"])
def folder(request, tmp_path_factory):
    if request.param == "dense":
        config = tiny_models.qwen3_5_config()
    else:
        config = tiny_models.qwen3_next_config()
    model = tiny_models.build(config, seed=1)
    return tiny_models.save(model, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def expected(folder):
    """One at a time, the cache off, every prompt in one chunk."""
    engine = start(folder, disable_radix_cache=True)
    answers = generate(engine, conversation_prompts(), greedy(MAX_TOKENS), at_once=False)
    assert engine.scheduler.snapshot().cached_tokens == 0
    return [answer.bits for answer in answers]


def run(folder, *, at_once=True, rounds=1, **flags):
    engine = start(folder, **flags)
    prompts = conversation_prompts()
    for number in range(rounds):
        answers = generate(
            engine,
            prompts,
            greedy(MAX_TOKENS),
            at_once=at_once,
            first_id=number * len(prompts),
        )
    return [answer.bits for answer in answers], engine.scheduler.snapshot()


def test_batch_mates_change_nothing(folder, expected):
    bits, _ = run(folder, disable_radix_cache=True)
    assert bits == expected


def test_prefix_cache_changes_nothing(folder, expected):
    bits, snapshot = run(folder, rounds=2)
    assert bits == expected
    assert snapshot.cached_tokens > snapshot.prompt_tokens // 2


@pytest.mark.parametrize("chunk", [1, 7, 64, 129])
def test_chunk_size_changes_nothing(folder, expected, chunk):
    bits, _ = run(folder, chunked_prefill_size=chunk)
    assert bits == expected


@pytest.mark.parametrize("policy", ["lru", "joint-lru"])
def test_evictions_change_nothing(folder, expected, policy):
    bits, snapshot = run(
        folder,
        rounds=3,
        at_once=False,
        max_total_tokens=400,
        max_mamba_cache_size=6,
        radix_eviction_policy=policy,
    )
    assert bits == expected
    assert snapshot.kv.evictions["rows"] > 0
    assert snapshot.state.evictions["slots"] > 0


def test_retractions_change_nothing(folder, expected, monkeypatch):
    from twinpool.scheduling import admission

    # Admission that expects no output at all fills the pool until requests must be sent back.
    monkeypatch.setattr(admission, "INITIAL_SHARE", 0.0)
    monkeypatch.setattr(admission, "FLOOR_SHARE", 0.0)
    bits, snapshot = run(folder, max_total_tokens=336, max_mamba_cache_size=12)
    assert bits == expected
    assert snapshot.retractions > 0


@pytest.mark.parametrize("strategy", ["extra_buffer", "extra_buffer_lazy", "no_buffer"])
def test_slot_strategy_changes_nothing(folder, expected, strategy):
    bits, snapshot = run(folder, rounds=2, mamba_radix_cache_strategy=strategy)
    assert bits == expected
    assert snapshot.cached_tokens > 0


@pytest.mark.parametrize("page_size", [16, 64])
def test_page_size_changes_nothing(folder, expected, page_size):
    bits, snapshot = run(folder, rounds=2, page_size=page_size)
    assert bits == expected
    assert snapshot.cached_tokens > 0


def test_poisoned_memory_is_never_read(folder, expected):
    bits, _ = run(folder, rounds=2, debug_poison=True, max_total_tokens=600)
    assert bits == expected


def test_rows_that_move_under_running_requests_change_nothing(folder, expected):
    bits, snapshot = run(
        folder,
        rounds=2,
        debug_poison=True,
        pool_memory="300KiB",
        max_total_tokens=None,
        max_mamba_cache_size=None,
        max_running_requests=None,
    )
    assert snapshot.moved_rows > 0
    assert bits == expected


def test_prompt_logprobs_are_those_of_one_pass_whatever_the_chunks(folder):
    prompts = conversation_prompts()[:4]
    params = greedy(4, prompt_logprobs=2)
    whole = generate(start(folder, disable_radix_cache=True), prompts, params, at_once=False)
    split = generate(start(folder, chunked_prefill_size=13), prompts, params)
    assert [answer.bits for answer in whole] == [answer.bits for answer in split]
    for prompt, answer in zip(prompts, whole, strict=True):
        assert [entry[0] for entry in answer.prompt_logprobs] == prompt[1:]
        assert all(len(entry[2]) == 2 for entry in answer.prompt_logprobs)
