"""Every message survives the wire, and a bad value does not pass it."""

from __future__ import annotations

import typing

import msgspec
import pytest

from twinpool.engine import protocol
from twinpool.errors import ConfigError
from twinpool.scheduling.events import FinishReason, PoolSnapshot, Snapshot
from twinpool.scheduling.plan import TokenLogprobs
from twinpool.scheduling.sampling import SamplingParams

POOL = PoolSnapshot(capacity=9, free=3, working=2, cached=4, evictable=1, evictions={"rows": 5})
SNAPSHOT = Snapshot(
    kv=POOL,
    state=POOL,
    num_running=1,
    num_waiting=2,
    max_running_requests=3,
    num_steps=4,
    prompt_tokens=5,
    cached_tokens=6,
    computed_tokens=7,
    output_tokens=8,
    state_missed_tokens=9,
    retractions=10,
    skipped_checkpoints=11,
    thrashed_tokens=7,
    moved_rows=6,
    longest_wait_s=2.5,
    finished={"stop": 12},
)
INFO = protocol.EngineFacts(
    model="m",
    architecture="a",
    context_tokens=8,
    max_request_tokens=8,
    max_running_requests=2,
    vocab_size=9,
    settings=(protocol.EffectiveValue(name="page_size", value=1, source="default"),),
    model_facts={"num_layers": 4, "dtype": "float32"},
)
TO_ENGINE: list[protocol.ToEngine] = [
    protocol.Start(b"\x00\xff"),
    protocol.Submit(
        3,
        b"\x01\x00\x00\x00",
        SamplingParams(
            max_tokens=5, logit_bias={7: -1.5}, seed=2**64 - 1, stop_strings=("é",), logprobs=0
        ),
        "space",
        (4, 9),
    ),
    protocol.Abort((1, 2)),
    protocol.Flush(8),
    protocol.AskSnapshot(9),
    protocol.Shutdown(),
]
FROM_ENGINE: list[protocol.FromEngine] = [
    protocol.Loading("loading weights", 1, 2, "bytes"),
    protocol.Log("a line", "warning"),
    protocol.Ready(INFO),
    protocol.Accepted(3),
    protocol.Rejected(3, "capacity", "too large", "less"),
    protocol.StepDone(
        (
            protocol.TokenEvent(1, 5),
            protocol.TokenEvent(
                2,
                6,
                FinishReason.STOP,
                cached_tokens=4,
                queue_s=0.25,
                stop_string="\n",
                stop_token=6,
                logprobs=TokenLogprobs(6, -0.5, ((6, -0.5), (7, -2.0))),
                prompt_logprobs=(TokenLogprobs(1, -1.0),),
            ),
            protocol.TokenEvent(3, finish_reason=FinishReason.ERROR, error="nan"),
        )
    ),
    protocol.Flushed(8, False),
    protocol.SnapshotReply(9, SNAPSHOT),
    protocol.Fatal("internal", "broke", ""),
]


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_message_to_the_engine_survives_the_wire(message: protocol.ToEngine) -> None:
    assert protocol.decode_to_engine(protocol.encode(message)) == message


@pytest.mark.parametrize("message", FROM_ENGINE, ids=lambda message: type(message).__name__)
def test_message_from_the_engine_survives_the_wire(message: protocol.FromEngine) -> None:
    assert protocol.decode_from_engine(protocol.encode(message)) == message


def test_every_message_type_is_covered_here() -> None:
    assert {type(m) for m in TO_ENGINE} == set(typing.get_args(protocol.ToEngine))
    assert {type(m) for m in FROM_ENGINE} == set(typing.get_args(protocol.FromEngine))


def test_a_bad_sampling_value_does_not_pass_the_wire() -> None:
    good = protocol.encode(protocol.Submit(1, b"", SamplingParams(max_tokens=3)))
    bad = good.replace(b"max_tokens\x03", b"max_tokens\x00")
    assert bad != good
    with pytest.raises((ConfigError, msgspec.ValidationError)):
        protocol.decode_to_engine(bad)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x81\xa4type\xa4nope", b"\x93\x01\x02\x03"])
def test_garbage_is_an_error_and_not_a_message(payload: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        protocol.decode_to_engine(payload)
    with pytest.raises(msgspec.MsgspecError):
        protocol.decode_from_engine(payload)
