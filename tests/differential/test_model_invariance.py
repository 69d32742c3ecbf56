"""The bits of a request depend on its own tokens alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_runs import Bench
from tiny_models import build, qwen3_5_config, qwen3_next_config, random_tokens, save
from twinpool.models.decoder import Decoder
from twinpool.models.load import load_model

_MODELS = {
    "moe-float32": (lambda: qwen3_next_config(mlp_only_layers=[0]), torch.float32),
    "dense-float32": (lambda: qwen3_5_config(), torch.float32),
    "moe-bfloat16": (lambda: qwen3_next_config(), torch.bfloat16),
}


@pytest.fixture(scope="module", params=sorted(_MODELS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    config, dtype = _MODELS[request.param]
    folder: Path = tmp_path_factory.mktemp(request.param)
    return load_model(save(build(config(), seed=21, dtype=dtype), folder))


@pytest.mark.parametrize("chunks", [[1] * 130, [64, 64], [63, 1, 66], [129], [3, 100, 7]])
def test_any_split_into_chunks_gives_the_same_bits(model: Decoder, chunks: list[int]) -> None:
    tokens = random_tokens(131, seed=22)
    assert torch.equal(Bench(model).alone(tokens, *chunks), Bench(model).alone(tokens))


def test_a_ragged_batch_gives_the_bits_of_one_at_a_time(model: Decoder) -> None:
    lengths = [1, 2, 63, 64, 65, 17]
    prompts = [random_tokens(length + 3, seed=length) for length in lengths]
    bench = Bench(model)
    runs = [bench.start(prompt) for prompt in prompts]
    parts = [bench.step(*zip(runs, lengths, strict=True))]
    parts += [bench.step(*[(run, 1) for run in runs]) for _ in range(3)]
    for index, prompt in enumerate(prompts):
        together = torch.cat([part[index] for part in parts])
        assert torch.equal(together, Bench(model).alone(prompt))


def test_prefill_beside_decode_changes_no_bit(model: Decoder) -> None:
    rng = np.random.default_rng(23)
    prompts = [random_tokens(40, seed=seed) for seed in range(5)]
    bench = Bench(model)
    runs = [bench.start(prompt) for prompt in prompts]
    parts: list[list[torch.Tensor]] = [[] for _ in runs]
    while any(run.done < 40 for run in runs):
        picked = [i for i, run in enumerate(runs) if run.done < 40 and rng.random() < 0.7]
        counts = [int(rng.integers(1, min(20, 40 - runs[i].done) + 1)) for i in picked]
        if picked:
            spans = [(runs[i], count) for i, count in zip(picked, counts, strict=True)]
            for i, logits in zip(picked, bench.step(*spans), strict=True):
                parts[i].append(logits)
    for prompt, part in zip(prompts, parts, strict=True):
        assert torch.equal(torch.cat(part), Bench(model).alone(prompt))


def test_physical_rows_and_slots_change_no_bit(model: Decoder) -> None:
    tokens = random_tokens(77, seed=24)
    in_order = Bench(model, seed=None).alone(tokens, 30, 40)
    for seed in (1, 2):
        assert torch.equal(Bench(model, seed=seed).alone(tokens, 30, 40), in_order)


def test_logits_of_some_positions_have_the_bits_of_all(model: Decoder) -> None:
    tokens = random_tokens(33, seed=25)
    bench = Bench(model)
    some = bench.step_wanting((bench.start(tokens), 33), wanted=[32, 0, 7])
    assert torch.equal(some, Bench(model).alone(tokens)[[32, 0, 7]])


def test_a_request_resumed_from_a_checkpoint_has_the_bits_of_a_straight_run(
    model: Decoder,
) -> None:
    tokens = random_tokens(90, seed=26)
    straight = Bench(model).alone(tokens)
    bench = Bench(model)
    donor = bench.start(tokens, depths=[1, 37, 64, 80])
    bench.step((donor, 64))
    bench.step((donor, 16))
    for write in donor.checkpoints:
        run = bench.resume(donor, write, tokens)
        rest = bench.step((run, 90 - write.depth))[0]
        assert torch.equal(rest, straight[write.depth :]), write


def test_taking_checkpoints_changes_no_bit_of_the_lane_that_gives_them(model: Decoder) -> None:
    tokens = random_tokens(50, seed=27)
    bench = Bench(model)
    run = bench.start(tokens, depths=[1, 2, 25, 49, 50])
    logits = torch.cat([bench.step((run, 26))[0], bench.step((run, 24))[0]])
    assert torch.equal(logits, Bench(model).alone(tokens))
    # The copy at the very end is the working state itself.
    assert np.array_equal(
        bench.pools.slot_bytes_of(run.checkpoints[-1].slot), bench.pools.slot_bytes_of(run.slot)
    )


def test_a_fork_from_a_checkpoint_does_not_disturb_the_others(model: Decoder) -> None:
    shared, tail, other = (random_tokens(n, seed=30 + n) for n in (40, 12, 15))
    first, second = np.concatenate([shared, tail]), np.concatenate([shared, other])
    bench = Bench(model)
    donor = bench.start(first, depths=[40])
    bench.step((donor, 45))
    fork = bench.resume(donor, donor.checkpoints[0], second)
    donor_rest, fork_rest = bench.step((donor, 7), (fork, 15))
    assert torch.equal(donor_rest, Bench(model).alone(first)[45:])
    assert torch.equal(fork_rest, Bench(model).alone(second)[40:])
