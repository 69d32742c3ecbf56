"""The work clock: how much a scheduler has had computed, as a time that needs no watch.

It moves with the steps that are committed, by what they cost in the model's own operations. A live
run and its replay see the same one, so whatever ages by it decides the same in both.
"""

from __future__ import annotations

from twinpool.memory.work import PrefillWork

# A decoded token costs as much as so many tokens of a prompt: decode is bound by memory traffic.
# Source: 48 decodes in 36 ms beside prompts at 30,000 tokens/s, as on a GPU of 4.8 TB/s.
DECODE_WEIGHT = 24
# What decoding in a step costs whatever decodes, for reading the weights, as so many tokens of a
# prompt. Source: half of 12 ms, likewise, as steps that compute prompts read them anyway; on ten
# minutes of Mooncake's overload the half serves 493 tokens/s, the whole 442.
STEP_WEIGHT = 180


class WorkClock:
    """Counts operations.

    Args:
        work: What prefixes of the model cost.
        decode_weight: Tokens of a prompt that a decoded one costs as much as.

    Attributes:
        now: Operations since start.
    """

    def __init__(self, work: PrefillWork, *, decode_weight: int = DECODE_WEIGHT) -> None:
        self.work = work
        self._decode_weight = decode_weight
        self.now = 0

    def pass_prefill(self, start: int, end: int) -> None:
        """Count a span of a prompt.

        Changes:
            `now`.
        """
        self.now += self.work.saved(start, end)

    def pass_decode(self, num_tokens: int) -> None:
        """Count decoded tokens.

        Changes:
            `now`.
        """
        self.now += num_tokens * self._decode_weight * self.work.flops_per_row
