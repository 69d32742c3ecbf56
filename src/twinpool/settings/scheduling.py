"""Scheduling settings: queue order, how many requests run, chunks, checkpoint interval.

Knows the names of the queue orders, and no scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twinpool.errors import ConfigError
from twinpool.scheduling.order import ORDER_NAMES
from twinpool.settings.fields import about, choice, integer, optional, switch, validate

WHOLE_PROMPTS = -1


def _chunk(value: object) -> int:
    size: int = integer(WHOLE_PROMPTS)(value)
    if size == 0:
        raise ConfigError("0 is out of range", hint="use 1 or more, or -1 for whole prompts")
    return size


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """What runs when; each field is described by its help line."""

    schedule_policy: str = field(
        default="least-work",
        metadata=about(
            choice(ORDER_NAMES),
            "--schedule-policy",
            "least-work: least left to compute first, waiting counts; fcfs: by arrival; lpm: "
            "longest cached prefix first.",
        ),
    )
    max_running_requests: int | None = field(
        default=None,
        metadata=about(
            optional(integer(1)),
            "--max-running-requests",
            "Requests that may run at once, if both pools hold them.",
        ),
    )
    chunked_prefill_size: int = field(
        # About a fifth of a second of prefill on two cores: what a decode waits at most.
        default=512,
        metadata=about(
            _chunk,
            "--chunked-prefill-size",
            "Prompt tokens that one step computes at most; -1: whole prompts.",
            is_assumed=True,
        ),
    )
    max_prefill_tokens: int = field(
        default=16384,
        metadata=about(
            integer(1),
            "--max-prefill-tokens",
            "Once a step has so many prompt tokens, no further request is admitted to it.",
        ),
    )
    mamba_track_interval: int = field(
        default=256,
        metadata=about(
            integer(1), "--mamba-track-interval", "Tokens between the checkpoints of a long decode."
        ),
    )
    disable_overlap_schedule: bool = field(
        default=False,
        metadata=about(
            switch,
            "--disable-overlap-schedule",
            "Plan a step only when the one before it has been handled.",
        ),
    )
    tp: int = field(
        default=1,
        metadata=about(
            integer(1, 1024), "--tp", "Tensor parallel ranks over which heads are split."
        ),
    )
    pp: int = field(
        default=1,
        metadata=about(integer(1, 1024), "--pp", "Pipeline stages over which layers are split."),
    )
    speculative_num_draft_tokens: int = field(
        default=0,
        metadata=about(
            integer(0, 1024),
            "--speculative-num-draft-tokens",
            "Draft tokens per request and step, each with a state of its own; 0: no speculation.",
        ),
    )

    def __post_init__(self) -> None:
        validate(self)
