"""What the HTTP front and the engine process say to each other: one struct per message.

Plain values in msgpack, never pickles. Knows no socket (see `channel`) and no scheduler; both
sides import it, so it imports neither torch nor a server.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from twinpool.scheduling.events import FinishReason, Snapshot
from twinpool.scheduling.plan import TokenLogprobs
from twinpool.scheduling.sampling import SamplingParams

# ---- front to engine


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's assembly resolves: the same flags and file that the front resolved.

    Attributes:
        flags: What the command line set, by setting name, without secrets.
        file: What the settings file set.
    """

    flags: dict[str, Any] = {}
    file: dict[str, Any] = {}


class Start(msgspec.Struct, frozen=True, tag="start"):
    """The first message of all: what to load.

    Attributes:
        settings: `EngineSettings` in msgpack; opaque here, so that a fake can have its own.
    """

    settings: bytes


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """One request.

    Attributes:
        request_id: Rising over the life of the front, also across restarts of the engine.
        prompt: Token ids as little-endian int32, at least one.
        sampling: How to choose tokens and when to stop.
        namespace: Prefixes are shared within a namespace only.
        boundaries: Depths in the prompt that later prompts are likely to repeat; see `Arrival`.
    """

    request_id: int
    prompt: bytes
    sampling: SamplingParams
    namespace: str = ""
    boundaries: tuple[int, ...] = ()


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Forget these requests and free what they hold; unknown ids are ignored."""

    request_ids: tuple[int, ...]


class Flush(msgspec.Struct, frozen=True, tag="flush"):
    """Drop the prefix cache; answered by `Flushed` with the same `ref`."""

    ref: int


class AskSnapshot(msgspec.Struct, frozen=True, tag="ask_snapshot"):
    """Ask for the pools and counters; answered by `SnapshotReply` with the same `ref`."""

    ref: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Exit now, with code 0."""


ToEngine: TypeAlias = Start | Submit | Abort | Flush | AskSnapshot | Shutdown


# ---- engine to front


class EffectiveValue(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as it is in force, and where it comes from.

    Attributes:
        name: The setting, as the flag spells it, with `_` for `-`.
        value: The value in force.
        source: For example `flag`, `model`, `derived`, `default`.
        why: The reasoning in one line, with its numbers; empty where there is nothing to say.
    """

    name: str
    value: int | float | str | bool | None
    source: str
    why: str = ""


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling values of the model's `generation_config.json`; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the front must know of a loaded engine.

    Attributes:
        model: The model folder, or the name that it was asked for by.
        architecture: The model's architecture, as its config names it.
        context_tokens: Prompt and output tokens together at most, by the model or by a flag.
        max_request_tokens: The same by what the pools can hold for one request.
        max_running_requests: The cap in force.
        vocab_size: Token ids are below it.
        eos_token_ids: The model's end tokens.
        tokenizer_dir: Folder with the tokenizer and chat template; None without one.
        generation: Sampling defaults of the model.
        settings: Effective values with their provenance.
        model_facts: Layers, widths, dtypes, parameter and byte counts, for `/model_info`.
    """

    model: str
    architecture: str
    context_tokens: int
    max_request_tokens: int
    max_running_requests: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()
    tokenizer_dir: str | None = None
    generation: GenerationDefaults = GenerationDefaults()
    settings: tuple[EffectiveValue, ...] = ()
    model_facts: dict[str, int | float | str | bool] = {}


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """How far the engine is with coming up.

    Attributes:
        stage: What is being done, for people: `loading weights`, `compiling kernels`.
        done: Units done.
        total: Units in all; 0 when it is not known.
        unit: `bytes`, `kernels` or whatever is counted.
    """

    stage: str
    done: int = 0
    total: int = 0
    unit: str = ""


class Log(msgspec.Struct, frozen=True, tag="log"):
    """One line of the engine's log, without a newline."""

    text: str
    level: str = "info"


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The engine takes requests."""

    info: EngineFacts


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    """The scheduler took the request into its queue."""

    request_id: int


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The scheduler refused a request; it leaves nothing behind.

    Attributes:
        request_id: Which request.
        kind: `capacity` (can never fit), `config` (a bad value) or `internal`.
        message: What happened, with the numbers.
        hint: What to change.
    """

    request_id: int
    kind: str
    message: str
    hint: str = ""


class TokenEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request's share of a step; the wire form of `Progress`.

    Attributes:
        request_id: Which request.
        token: The new token; None when the event brings none.
        finish_reason: Set on the last event of a request.
        cached_tokens: Prompt tokens that came from the prefix cache at first admission.
        queue_s: Seconds from arrival to first step, on the first event of a request; else None.
        stop_string: The stop string that ended it, if one did.
        stop_token: The stop or end token that ended it, if one did.
        error: Why it ended, for `FinishReason.ERROR`.
        logprobs: Of `token`, when asked for.
        prompt_logprobs: Of the prompt's tokens from the second on, with the first token.
    """

    request_id: int
    token: int | None = None
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    queue_s: float | None = None
    stop_string: str | None = None
    stop_token: int | None = None
    error: str = ""
    logprobs: TokenLogprobs | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None


class StepDone(msgspec.Struct, frozen=True, tag="step"):
    """Everything that one step brought, for all requests at once."""

    events: tuple[TokenEvent, ...]


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    """The answer to `Flush`.

    Attributes:
        ref: The question's number.
        is_clean: False when running requests still hold a part of the cache.
    """

    ref: int
    is_clean: bool


class SnapshotReply(msgspec.Struct, frozen=True, tag="snapshot"):
    """The answer to `AskSnapshot`."""

    ref: int
    snapshot: Snapshot


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The engine is about to exit; what is in flight is lost.

    Attributes:
        kind: `config`, `unsupported_model`, `capacity` or `internal`.
        message: What happened, with the numbers.
        hint: What to change.
    """

    kind: str
    message: str
    hint: str = ""


FromEngine: TypeAlias = (
    Loading | Log | Ready | Accepted | Rejected | StepDone | Flushed | SnapshotReply | Fatal
)

_encoder = msgspec.msgpack.Encoder()
_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """Return the msgpack form of a message."""
    return _encoder.encode(message)


def decode_to_engine(payload: bytes) -> ToEngine:
    """Read a message of the front.

    Raises:
        msgspec.ValidationError: If it is not one.
    """
    return _to_engine.decode(payload)


def decode_from_engine(payload: bytes) -> FromEngine:
    """Read a message of the engine.

    Raises:
        msgspec.ValidationError: If it is not one.
    """
    return _from_engine.decode(payload)
