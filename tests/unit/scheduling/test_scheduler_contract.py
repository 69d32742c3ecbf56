"""The scheduler's contract: what is refused, what must be answered, what is told and not told."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from simulation import CheckingExecutor, make_rig
from twinpool.errors import CapacityError, ConfigError, InvariantError, OutOfRows
from twinpool.scheduling.events import Arrival, FinishReason
from twinpool.scheduling.limits import Limits
from twinpool.scheduling.plan import LaneResult, StepResult, TokenLogprobs, ZeroState
from twinpool.scheduling.residency import Residency
from twinpool.scheduling.sampling import SamplingParams


def test_an_empty_prompt_is_refused():
    with pytest.raises(ConfigError, match="empty"):
        make_rig().add([])


def test_a_live_id_is_refused_and_a_finished_one_may_come_again():
    rig = make_rig()
    rig.add([1, 2, 3])
    sampling = SamplingParams(max_tokens=2, temperature=0.0)
    again = Arrival(request_id=0, prompt=np.array([1], dtype=np.int32), sampling=sampling)
    with pytest.raises(ConfigError, match="in use"):
        rig.scheduler.add(again)
    rig.step()
    with pytest.raises(ConfigError, match="in use"):
        rig.scheduler.add(again)
    rig.run()
    rig.scheduler.add(again)


@pytest.mark.parametrize(("prompt", "output", "fits"), [(60, 41, True), (60, 42, False)])
def test_what_can_never_fit_the_rows_is_refused_with_the_numbers(prompt, output, fits):
    # The last sampled token needs no row.
    rig = make_rig(num_rows=100)
    if fits:
        rig.one(range(prompt), max_tokens=output)
        assert rig.computed[0] == 100
        return
    with pytest.raises(CapacityError, match=r"102.*100"):
        rig.add(range(prompt), max_tokens=output)
    assert not rig.scheduler.has_work


def test_pages_count_whole_in_what_can_never_fit():
    rig = make_rig(num_rows=96, page_size=16, chunk_tokens=64)
    with pytest.raises(CapacityError):
        rig.add(range(90), max_tokens=8)
    rig.one(range(90), max_tokens=7)


def test_a_request_longer_than_the_context_is_refused():
    rig = make_rig(context_length=50)
    rig.one(range(40), max_tokens=10)
    with pytest.raises(CapacityError, match="context"):
        rig.add(range(40), max_tokens=11)


@pytest.mark.parametrize(
    ("strategy", "num_slots"), [("direct", 0), ("extra_buffer", 3), ("extra_buffer_lazy", 2)]
)
def test_a_state_pool_too_small_for_one_request_is_refused_at_once(strategy, num_slots):
    with pytest.raises(CapacityError, match="state slots"):
        make_rig(strategy=strategy, num_slots=num_slots)
    rig = make_rig(strategy=strategy, num_slots=num_slots + 1, max_running=1)
    rig.one(range(200))
    # Its own checkpoint is in the way and must not keep it from running again.
    rig.one(range(200))
    assert set(rig.ended) == {0, 1}


def test_chunks_are_whole_pages():
    with pytest.raises(ConfigError, match="pages"):
        make_rig(page_size=16, chunk_tokens=40)


@pytest.mark.parametrize("name", ["max_running_requests", "chunk_tokens", "context_length"])
def test_limits_below_one_are_refused(name):
    good = {"max_running_requests": 1, "chunk_tokens": 1, "context_length": 1}
    with pytest.raises(ConfigError, match=name):
        Limits(**(good | {name: 0}))


def test_every_plan_must_be_answered_before_anything_else():
    rig = make_rig()
    rig.add([1, 2, 3])
    scheduler = rig.scheduler
    plan = scheduler.schedule(0.0)
    for call in (
        lambda: scheduler.schedule(0.0),
        lambda: scheduler.abort(0),
        scheduler.flush,
        scheduler.audit,
    ):
        with pytest.raises(InvariantError, match="not been committed"):
            call()
    scheduler.commit(rig.executor.execute(plan), 0.0)
    scheduler.audit()


@pytest.mark.parametrize("fault", ["step", "lanes", "id", "token", "no token"])
def test_an_answer_to_another_plan_is_refused_and_changes_nothing(fault):
    rig = make_rig(chunk_tokens=8)
    rig.add([1, 2, 3], max_tokens=3)
    rig.add(range(100, 120), max_tokens=3)
    plan = rig.scheduler.schedule(0.0)
    good = rig.executor.execute(plan)
    done, unfinished = good.lanes
    assert unfinished.token is None
    wrong = {
        "step": dataclasses.replace(good, step=7),
        "lanes": dataclasses.replace(good, lanes=good.lanes[:1]),
        "id": dataclasses.replace(good, lanes=good.lanes[::-1]),
        "token": dataclasses.replace(good, lanes=(done, dataclasses.replace(unfinished, token=5))),
        "no token": dataclasses.replace(
            good, lanes=(dataclasses.replace(done, token=None), unfinished)
        ),
    }[fault]
    with pytest.raises(InvariantError, match="does not answer"):
        rig.scheduler.commit(wrong, 0.0)
    rig.scheduler.commit(good, 0.0)
    with pytest.raises(InvariantError, match="does not answer"):
        rig.scheduler.commit(good, 0.0)
    rig.run()


def test_nothing_to_do_is_no_plan():
    rig = make_rig()
    assert rig.scheduler.schedule(0.0) is None
    assert not rig.scheduler.abort(5)


def test_the_prompt_is_copied():
    rig = make_rig()
    prompt = np.arange(10, dtype=np.int32)
    sampling = SamplingParams(max_tokens=2, temperature=0.0)
    rig.scheduler.add(Arrival(request_id=0, prompt=prompt, sampling=sampling))
    prompt[:] = 0
    plan = rig.scheduler.schedule(0.0)
    assert plan.lanes[0].tokens.tolist() == list(range(10))


def test_decode_goes_on_while_a_long_prompt_is_computed():
    rig = make_rig(chunk_tokens=32)
    rig.add([1] * 10, max_tokens=60)
    rig.step()
    rig.add(range(500), max_tokens=2)
    for _ in range(15):
        plan = rig.step()
        assert [lane.request_id for lane in plan.lanes] == [0, 1]
        assert plan.lanes[0].end - plan.lanes[0].start == 1
        assert plan.lanes[1].end - plan.lanes[1].start == 32
    rig.run()


def test_chunks_end_on_pages_and_leftovers_of_a_chunk_are_not_split():
    rig = make_rig(chunk_tokens=48, page_size=16, num_rows=1024)
    rig.add(range(100), max_tokens=1)
    rig.add(range(500, 600), max_tokens=1)
    spans = []
    while rig.scheduler.has_work:
        spans.append([(lane.start, lane.end) for lane in rig.step().lanes])
    assert spans == [[(0, 48)], [(48, 96)], [(96, 100), (0, 32)], [(32, 80)], [(80, 100)]]


@pytest.mark.parametrize("strategy", ["direct", "extra_buffer", "extra_buffer_lazy", "no_buffer"])
def test_snapshots_add_up_at_every_moment_even_inside_a_step(strategy):
    rig = make_rig(strategy=strategy, num_slots=12, num_rows=600, chunk_grid=16, chunk_tokens=48)
    for number in range(6):
        rig.add([*range(60), number], max_tokens=20, boundaries=(30,))

    def check() -> None:
        snapshot = rig.scheduler.snapshot()
        for pool in (snapshot.kv, snapshot.state):
            assert pool.free + pool.working + pool.cached == pool.capacity
            assert 0 <= pool.evictable <= pool.cached
        assert snapshot.num_running + snapshot.num_waiting + len(rig.ended) == 6
        assert snapshot.num_running <= snapshot.max_running_requests

    while rig.scheduler.has_work:
        plan = rig.scheduler.schedule(0.0)
        check()
        result = rig.executor.execute(plan)
        for event in rig.scheduler.commit(result, 0.0):
            if event.finish_reason is not None:
                rig.ended[event.request_id] = event
        check()
    snapshot = rig.scheduler.snapshot()
    assert snapshot.prompt_tokens == 6 * 61
    assert snapshot.output_tokens == 120
    assert snapshot.finished == {"stop": 0, "length": 6, "abort": 0, "error": 0}


def test_a_lane_that_fails_ends_alone_and_holds_nothing():
    rig = make_rig()
    bad, good = rig.add(range(50), max_tokens=5), rig.add(range(100, 150), max_tokens=5)
    rig.executor.errors = lambda number: "nan" if number == bad else ""
    rig.run()
    assert (rig.ended[bad].finish_reason, rig.ended[bad].error) == (FinishReason.ERROR, "nan")
    assert rig.ended[good].finish_reason is FinishReason.LENGTH
    # What it computed may be wrong: nothing of it is kept.
    again = rig.add(range(50), max_tokens=1)
    rig.executor.errors = lambda number: ""
    rig.run()
    assert rig.cached[again] == 0


def test_an_abort_takes_effect_at_once_and_keeps_what_the_tree_owns():
    rig = make_rig(chunk_tokens=64)
    first = rig.add(range(300), max_tokens=5, boundaries=(100,))
    waiting = rig.add([7] * 10)
    for _ in range(3):
        rig.step()
    assert rig.scheduler.abort(first)
    assert rig.scheduler.abort(waiting)
    snapshot = rig.scheduler.snapshot()
    assert (snapshot.kv.working, snapshot.state.working) == (0, 0)
    assert snapshot.finished["abort"] == 2
    assert not rig.scheduler.has_work
    retry = rig.one(range(300), max_tokens=1)
    assert rig.cached[retry] >= 100


def test_requests_end_by_length_by_stop_token_and_by_the_models_end_token():
    rig = make_rig(choose=lambda tokens, number: len(tokens))
    plain = rig.add(range(10), max_tokens=3)
    stop = rig.add(
        range(20, 30),
        sampling=SamplingParams(max_tokens=9, temperature=0.0, stop_token_ids=(12,)),
    )
    end = rig.add(range(40, 50), max_tokens=9, eos_token_ids=(11,))
    ignored = rig.add(
        range(60, 70),
        sampling=SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True),
        eos_token_ids=(11,),
    )
    early = rig.add(
        range(80, 90),
        sampling=SamplingParams(max_tokens=6, min_tokens=3, temperature=0.0, stop_token_ids=(10,)),
    )
    rig.run()
    reasons = {number: rig.ended[number].finish_reason for number in rig.ended}
    assert reasons == {
        plain: FinishReason.LENGTH,
        stop: FinishReason.STOP,
        end: FinishReason.STOP,
        ignored: FinishReason.LENGTH,
        early: FinishReason.LENGTH,
    }
    assert rig.outputs[stop] == [10, 11, 12]
    assert (rig.ended[stop].stop_token, rig.ended[end].stop_token) == (12, 11)


class ScoringExecutor(CheckingExecutor):
    """Gives each prompt token a logprob that names it."""

    def _lane(self, lane) -> LaneResult:
        result = super()._lane(lane)
        if lane.prompt_logprobs is None:
            return result
        span = lane.tokens[lane.start + 1 : min(lane.end + 1, lane.num_prompt)].tolist()
        scores = tuple(TokenLogprobs(token, -float(token)) for token in span)
        return dataclasses.replace(result, prompt_logprobs=scores)


@pytest.mark.parametrize("retract_after", [0, 1, 2, 5])
def test_prompt_logprobs_are_whole_and_once_whatever_is_cached_or_sent_back(retract_after):
    rig = make_rig(chunk_tokens=16)
    rig.executor = ScoringExecutor(5000, 65)
    rig.one(range(50), max_tokens=2)
    sampling = SamplingParams(max_tokens=4, temperature=0.0, prompt_logprobs=0)
    request = rig.add(range(50), sampling=sampling)
    events = []
    scheduler = rig.scheduler
    for step in range(30):
        if step == retract_after and step:
            scheduler._packing.retract(scheduler._roster.running[request])
        plan = scheduler.schedule(0.0)
        if plan is None:
            break
        events += scheduler.commit(rig.executor.execute(plan), 0.0)
        scheduler.audit()
    told = [event.prompt_logprobs for event in events if event.prompt_logprobs is not None]
    assert len(told) == 1
    assert [score.token for score in told[0]] == list(range(1, 50))
    # The model saw every position of the prompt.
    assert events[0].cached_tokens == 0


def test_the_decision_log_holds_no_content_of_prompts_or_outputs():
    tokens = [1_234_567 + number for number in range(200)]
    rig = make_rig(choose=lambda history, number: 7_654_321)
    rig.one(tokens, max_tokens=5)
    rig.one([*tokens[:100], 3_456_789], max_tokens=5)
    text = b"".join(rig.lines).decode()
    assert not any(str(token) in text for token in [*tokens, 7_654_321, 3_456_789])


def test_the_decision_log_is_one_json_object_per_step_in_order():
    rig = make_rig(num_rows=160, max_running=4)
    for number in (1, 2, 3):
        rig.add([number] * 20, max_tokens=70)
    rig.run()
    lines = [json.loads(line) for line in rig.lines]
    assert [line["step"] for line in lines] == list(range(len(lines)))
    assert {len(line["lanes"]) for line in lines} == {1, 2}
    assert sum(len(line.get("retract", [])) for line in lines) == (
        rig.scheduler.snapshot().retractions
    )
    assert [entry[:2] for line in lines for entry in line.get("finish", [])] == [
        [0, "length"],
        [1, "length"],
        [2, "length"],
    ]
    assert all(line.endswith(b"}\n") for line in rig.lines)


def test_a_step_result_is_needed_even_for_a_step_without_tokens():
    rig = make_rig(chunk_tokens=8)
    rig.add(range(20), max_tokens=1)
    plan = rig.scheduler.schedule(0.0)
    assert rig.scheduler.commit(StepResult(plan.step, (LaneResult(0, None),), 0.0), 0.0) == []


def test_what_was_planned_of_a_step_that_came_to_nothing_is_done_before_the_next(monkeypatch):
    is_due = {0: True}
    rig = make_rig(is_due=lambda request_id: is_due.get(request_id, True))
    first = rig.add(range(20), max_tokens=8)
    rig.step()
    is_due[first] = False
    second = rig.add(range(100, 120))
    grow = Residency.grow

    def is_full(residency, request, end):
        if request.request_id == second:
            raise OutOfRows(needed=end, free=0, evictable=0)
        grow(residency, request, end)

    with monkeypatch.context() as patch:
        patch.setattr(Residency, "grow", is_full)
        assert rig.step() is None
    rig.scheduler.audit()
    plan = rig.step()
    assert plan is not None
    # Once for the admission that came to nothing, and once for the one that did not.
    assert [type(action) for action in plan.actions] == [ZeroState, ZeroState]
    is_due[first] = True
    rig.run()
    assert set(rig.ended) == {first, second}
