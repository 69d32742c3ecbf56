"""The parameters of generated workloads, with their defaults and ranges.

Knows no generator. Lengths and pauses are log-normal: half of them lie below the median, and the
spread is the standard deviation of their logarithm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

from twinpool.errors import ConfigError
from twinpool.traces.lines import MAX_BLOCK_TOKENS, MAX_PROMPT_TOKENS

# More requests than any trace of the readers; keeps a typo from filling the disk.
MAX_COUNT = 10_000_000


def parameter(default: float, about: str, *, low: float = 0, high: float = 1e9) -> Any:
    """Declare a parameter of a shape.

    Args:
        default: Its default; an int makes it a whole number.
        about: One line of help.
        low: Smallest value allowed.
        high: Largest value allowed.
    """
    return field(default=default, metadata={"about": about, "low": low, "high": high})


def count(default: int, about: str) -> Any:
    """Declare a number of things, 1 or more."""
    return parameter(default, about, low=1, high=MAX_COUNT)


def tokens(default: int, about: str, *, low: int = 1) -> Any:
    """Declare a number of tokens, at most what a prompt may have."""
    return parameter(default, about, low=low, high=MAX_PROMPT_TOKENS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What all shapes have.

    Raises:
        ConfigError: If a parameter is out of its range.
    """

    block_tokens: int = parameter(64, "Tokens of a block.", low=1, high=MAX_BLOCK_TOKENS)
    token_s: float = parameter(
        0.02, "Seconds that a token of an answer is taken to last, between turns.", high=1e6
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            low, high = each.metadata["low"], each.metadata["high"]
            if not (math.isfinite(value) and low <= value <= high):
                raise ConfigError(
                    f"--{each.name.replace('_', '-')} is {value}",
                    hint=f"it must be from {low} to {high}",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsShape(Shape):
    """Long sessions of agents: a growing context, tool results, pauses, rewritten contexts."""

    sessions: int = count(48, "Sessions.")
    rate: float = parameter(0.05, "Sessions that start per second.", low=1e-9)
    turns: int = count(44, "Turns of a session, median.")
    turns_spread: float = parameter(0.9, "Spread of the turns.", high=4)
    max_turns: int = count(500, "Turns of a session at most.")
    system_tokens: int = tokens(
        16_000, "Tokens of tools and system prompt, the same everywhere.", low=0
    )
    task_tokens: int = tokens(2_000, "Tokens of the first message, median.")
    result_tokens: int = tokens(1_200, "Tokens of a tool's result, median.")
    answer_tokens: int = tokens(220, "Tokens of an answer, median.")
    length_spread: float = parameter(1.1, "Spread of messages, results and answers.", high=4)
    think_s: float = parameter(10.0, "Seconds between answer and next turn, median.", low=1e-6)
    think_spread: float = parameter(1.8, "Spread of the pauses.", high=4)
    rewrite_chance: float = parameter(
        0.018, "Chance that a turn has its context rewritten to a summary.", high=1
    )
    summary_tokens: int = tokens(6_000, "Tokens of the summary, median.")
    max_context: int = tokens(
        200_000, "Tokens of prompt and answer at most; a context that would pass it is rewritten."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatShape(Shape):
    """Chats of people: short turns, human pauses."""

    sessions: int = count(200, "Chats.")
    rate: float = parameter(0.5, "Chats that start per second.", low=1e-9)
    turns: int = count(4, "Turns of a chat, median.")
    turns_spread: float = parameter(0.7, "Spread of the turns.", high=4)
    max_turns: int = count(50, "Turns of a chat at most.")
    system_tokens: int = tokens(400, "Tokens of the system prompt, the same everywhere.", low=0)
    message_tokens: int = tokens(60, "Tokens of a message, median.")
    answer_tokens: int = tokens(300, "Tokens of an answer, median.")
    length_spread: float = parameter(0.9, "Spread of messages and answers.", high=4)
    think_s: float = parameter(30.0, "Seconds between answer and next turn, median.", low=1e-6)
    think_spread: float = parameter(1.0, "Spread of the pauses.", high=4)
    max_context: int = tokens(32_000, "Tokens of prompt and answer at most; a chat ends before.")


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstShape(Shape):
    """Many short requests that share nothing, in bursts."""

    requests: int = count(2_000, "Requests.")
    burst: int = count(50, "Requests of a burst.")
    burst_s: float = parameter(1.0, "Seconds that a burst lasts.")
    every_s: float = parameter(20.0, "Seconds from burst to burst.")
    prompt_tokens: int = tokens(400, "Tokens of a prompt, median.")
    answer_tokens: int = tokens(100, "Tokens of an answer, median.")
    length_spread: float = parameter(0.8, "Spread of prompts and answers.", high=4)
    max_tokens: int = tokens(16_000, "Tokens of a prompt, and of an answer, at most.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPromptShape(Shape):
    """One-turn requests under a few system prompts, with varying tails."""

    requests: int = count(1_000, "Requests.")
    rate: float = parameter(5.0, "Requests per second.", low=1e-9)
    prompts: int = count(
        4,
        "System prompts; the second is asked for half as often as the first, "
        "the third a third as often.",
    )
    prompt_tokens: int = tokens(4_000, "Tokens of a system prompt.", low=0)
    tail_tokens: int = tokens(200, "Tokens after it, median.")
    answer_tokens: int = tokens(150, "Tokens of an answer, median.")
    length_spread: float = parameter(1.0, "Spread of tails and answers.", high=4)
    max_tokens: int = tokens(16_000, "Tokens of a tail, and of an answer, at most.")
