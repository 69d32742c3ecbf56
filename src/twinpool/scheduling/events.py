"""What enters the scheduler and what comes out of it: arrivals, progress, snapshots.

Plain frozen records; nothing here decides anything or knows who reads it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from twinpool.scheduling.plan import TokenArray, TokenLogprobs
from twinpool.scheduling.sampling import SamplingParams


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request as it arrives.

    Attributes:
        request_id: The caller's number, unique among live requests, rising.
        prompt: Token ids, int32, at least one; the scheduler copies them.
        sampling: How to choose tokens and when to stop.
        namespace: Prefixes are shared within a namespace only.
        boundaries: Depths in the prompt (tokens) that later prompts are likely to send again
            unchanged: end of the system prompt, end of the chat history. Each may be left a
            checkpoint. Rising, between 1 and `len(prompt) - 1`.
        num_whole: Depth up to which another prompt can match this one; None: all of it. Where keys
            stand for blocks of tokens, the last block of a prompt may not be full, and no other
            prompt has it.
        eos_token_ids: The model's end tokens; they end the request unless `ignore_eos`.
    """

    request_id: int
    prompt: TokenArray
    sampling: SamplingParams
    namespace: str = ""
    boundaries: tuple[int, ...] = ()
    num_whole: int | None = None
    eos_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What `commit` tells of one request: a new token, an end, or both.

    Attributes:
        request_id: Which request.
        token: The new token; None when the event brings none (an abort, an error).
        logprobs: Of `token`, when asked for.
        prompt_logprobs: Of the prompt's tokens from the second on, whole, with the first token.
        finish_reason: Set on the last event of a request.
        stop_string: The stop string that ended it, if one did.
        stop_token: The stop or end token that ended it, if one did.
        cached_tokens: Prompt tokens that came from the prefix cache at first admission.
        missed_tokens: Prompt tokens whose KV was there then and could not be used, because no
            checkpoint stood deep enough.
        error: Why it ended, for `FinishReason.ERROR`.
    """

    request_id: int
    token: int | None = None
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    stop_token: int | None = None
    cached_tokens: int = 0
    missed_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """One pool, in its own unit (rows or slots): free + working + cached = capacity.

    Where both share one memory, each kind has all of it as capacity, and what the other kind takes
    is missing in the sum.

    Attributes:
        capacity: Units in the pool, padding left out.
        free: Units that nobody owns.
        working: Units that running requests own.
        cached: Units that the tree owns (for slots: checkpoints).
        evictable: The part of `cached` that eviction could free now.
        evictions: Units evicted since start, by reason: `rows`, `slots`, `path_cap`, `dead`,
            `flush`, `rolling`.
    """

    capacity: int
    free: int
    working: int
    cached: int
    evictable: int
    evictions: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The scheduler and its pools at one moment; counters count since start.

    Attributes:
        kv: The KV pool, in rows.
        state: The state pool, in slots.
        num_running: Requests that hold a working state.
        num_waiting: Requests in the queue.
        max_running_requests: The cap in force.
        num_steps: Steps planned.
        prompt_tokens: Prompt tokens of admitted requests, first admission only.
        cached_tokens: The part of them that came from the prefix cache.
        computed_tokens: Tokens that went through the model, prompts, outputs and repeats.
        output_tokens: Tokens sampled.
        state_missed_tokens: Tokens whose KV was there but could not be used because no checkpoint
            stood deep enough (hits lost to a missing state).
        retractions: Requests sent back to the queue.
        skipped_checkpoints: Checkpoints that found no slot, or none worth evicting for.
        thrashed_tokens: Prompt tokens computed again because they had been evicted a short time
            before, as far as the eviction policy learns.
        moved_rows: KV rows moved to make room for states.
        longest_wait_s: Longest time that a request has waited for its first admission, those that
            still wait included.
        finished: Ended requests by finish reason.
    """

    kv: PoolSnapshot
    state: PoolSnapshot
    num_running: int
    num_waiting: int
    max_running_requests: int
    num_steps: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    state_missed_tokens: int
    retractions: int
    skipped_checkpoints: int
    thrashed_tokens: int
    moved_rows: int
    longest_wait_s: float
    finished: dict[str, int]
