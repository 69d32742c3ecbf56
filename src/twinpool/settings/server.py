"""Server settings: where it listens, who may ask, and how much one request may ask for.

Knows no HTTP.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from twinpool.settings.fields import (
    about,
    choice,
    integer,
    number,
    optional,
    size,
    switch,
    text,
    texts,
    validate,
)
from twinpool.units import MIB


class LogLevel(enum.StrEnum):
    """How much is logged on stderr."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The HTTP front; each field is described by its help line."""

    host: str = field(default="127.0.0.1", metadata=about(text, "--host", "Address to listen on."))
    port: int = field(
        default=8000,
        metadata=about(integer(0, 65535), "--port", "Port to listen on; 0: any free one."),
    )
    api_keys: tuple[str, ...] = field(
        default=(),
        repr=False,
        metadata=about(
            texts,
            "--api-key",
            "Key that clients must send; may be given more than once.",
            is_secret=True,
        ),
    )
    served_model_name: str | None = field(
        default=None,
        metadata=about(
            optional(text),
            "--served-model-name",
            "Name that /v1/models shows; default: the name of the model's folder.",
        ),
    )
    max_queue: int = field(
        default=1024,
        metadata=about(
            integer(1), "--max-queue", "Requests that may wait; more are answered with 503."
        ),
    )
    max_body_bytes: int = field(
        default=16 * MIB,
        metadata=about(size, "--max-body-bytes", "Longest request body, for example 16MiB."),
    )
    max_choices: int = field(
        default=16, metadata=about(integer(1, 1024), "--max-choices", "Largest `n` of a request.")
    )
    max_prompts: int = field(
        default=256,
        metadata=about(
            integer(1, 65536), "--max-prompts", "Most prompts of one completions request."
        ),
    )
    max_stop_strings: int = field(
        default=16,
        metadata=about(integer(1, 1024), "--max-stop-strings", "Most stop strings of a request."),
    )
    drain_timeout_s: float = field(
        default=30.0,
        metadata=about(
            number(0.0, 86400.0),
            "--drain-timeout",
            "Seconds that running requests get to finish after SIGTERM.",
        ),
    )
    record: str | None = field(
        default=None,
        metadata=about(
            optional(text),
            "--record",
            "Write a trace of all requests, to be replayed: prefix numbers and times, no text.",
        ),
    )
    log_level: LogLevel = field(
        default=LogLevel.INFO,
        metadata=about(choice(LogLevel), "--log-level", "How much is logged on stderr."),
    )
    enable_cache_report: bool = field(
        default=True,
        metadata=about(
            switch, "--enable-cache-report", "Accepted; cached tokens are always reported."
        ),
    )
    enable_metrics: bool = field(
        default=True,
        metadata=about(switch, "--enable-metrics", "Accepted; /metrics is always there."),
    )

    def __post_init__(self) -> None:
        validate(self)
