"""The packed index arrays agree with the lanes, token by token."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinpool.engine.inputs import build_inputs
from twinpool.scheduling.plan import CheckpointWrite, Lane
from twinpool.scheduling.sampling import SamplingParams

SAMPLING = SamplingParams(max_tokens=4)


def lane(
    start: int,
    end: int,
    *,
    num_prompt: int | None = None,
    checkpoints: tuple[CheckpointWrite, ...] = (),
    samples: bool = True,
    prompt_logprobs: int | None = None,
    seed: int = 0,
) -> Lane:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 1000, end + 3, dtype=np.int32)
    return Lane(
        request_id=seed,
        start=start,
        end=end,
        tokens=tokens,
        num_prompt=end if num_prompt is None else num_prompt,
        rows=rng.permutation(5000).astype(np.int32)[:end],
        slot=seed + 1,
        checkpoints=checkpoints,
        sampling=SAMPLING if samples else None,
        output_index=0,
        prompt_logprobs=prompt_logprobs,
    )


SPANS = st.tuples(st.integers(0, 40), st.integers(1, 30))


@given(st.lists(SPANS, min_size=1, max_size=8), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_every_packed_token_has_its_lanes_token_position_and_row(spans, random) -> None:  # type: ignore[no-untyped-def]
    lanes = []
    for seed, (start, count) in enumerate(spans):
        depths = sorted(random.sample(range(start + 1, start + count + 1), min(2, count)))
        writes = tuple(CheckpointWrite(depth, 100 * seed + depth) for depth in depths)
        lanes.append(lane(start, start + count, checkpoints=writes, seed=seed))
    inputs = build_inputs(lanes)
    batch = inputs.batch
    at = 0
    for index, one in enumerate(lanes):
        assert batch.cu_tokens[index] == at
        assert batch.starts[index] == one.start
        assert batch.slots[index] == one.slot
        rows = batch.rows[batch.cu_rows[index] : batch.cu_rows[index + 1]]
        assert np.array_equal(rows, one.rows)
        for position in range(one.start, one.end):
            assert inputs.token_ids[at] == one.tokens[position]
            assert batch.positions[at] == position
            assert batch.new_rows[at] == one.rows[position]
            at += 1
        events = range(batch.cu_events[index], batch.cu_events[index + 1])
        found = [(int(batch.event_tokens[e]), int(batch.event_slots[e])) for e in events]
        first = int(batch.cu_tokens[index])
        # The copy is taken after the token that brings the depth.
        assert found == [
            (first + write.depth - 1 - one.start, write.slot) for write in one.checkpoints
        ]
        assert inputs.wanted[index] == at - 1
    assert batch.num_tokens == at == len(inputs.token_ids)
    assert batch.num_lanes == len(lanes)
    for name in batch.__slots__:
        array = getattr(batch, name)
        assert array.dtype == np.int32
        assert array.flags.c_contiguous


def test_prompt_spans_cover_each_prompt_token_after_the_first_once_over_all_chunks() -> None:
    found: list[int] = []
    tokens = lane(0, 20).tokens
    for start, end in ((0, 7), (7, 8), (8, 20), (20, 21)):
        whole = lane(0, 20)
        one = Lane(
            request_id=0,
            start=start,
            end=end,
            tokens=tokens,
            num_prompt=20,
            rows=np.arange(end, dtype=np.int32),
            slot=1,
            checkpoints=(),
            sampling=None,
            output_index=0,
            prompt_logprobs=2,
        )
        inputs = build_inputs([whole, one])
        for span in inputs.prompts:
            assert span.lane == 1
            packed = inputs.wanted[span.first : span.first + len(span.targets)]
            # The token before a target predicts it.
            before = inputs.batch.positions[packed]
            assert np.array_equal(tokens[before + 1], span.targets)
            found += span.targets.tolist()
    assert found == tokens[1:20].tolist()


def test_lanes_that_do_not_ask_for_prompt_logprobs_have_no_span() -> None:
    inputs = build_inputs([lane(0, 9), lane(3, 12, samples=False, seed=1)])
    assert inputs.prompts == ()
    assert inputs.wanted.tolist() == [8, 17]


def test_nothing_of_the_lanes_is_kept() -> None:
    one = lane(0, 5)
    inputs = build_inputs([one])
    before = inputs.batch.rows.copy(), inputs.token_ids.copy()
    one.rows[:] = -1
    one.tokens[:] = -1
    assert np.array_equal(inputs.batch.rows, before[0])
    assert np.array_equal(inputs.token_ids, before[1])
