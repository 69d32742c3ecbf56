"""What a trace is like: sizes, gaps, contexts, and how much of it a prefix cache could reuse.

Knows no model and no scheduler: a block is reusable as soon as its request has been sent, and a
cache keeps blocks and no states.

Definitions, the ones under which the published figures of AgentX and Mooncake come out:

* *hit rate of an infinite cache*: for each request in the order of arrival, the leading blocks that
  an earlier request of its namespace began with too, as tokens (never more than the prompt has: a
  partial last block counts as what it holds), over all prompt tokens. Answers count only where the
  next prompt repeats them.
* *LRU curve*: one LRU list of blocks, cold at the start, with room for `capacity // block_tokens`
  of them, 1k of capacity being 1024 tokens. A request accesses its blocks from the first to the
  last, each moves to the top; a hit is a block that is still there, and then all blocks before it
  are too. Its hit rate counts tokens as above, and ends at that of the infinite cache.
* *block hit rate*: the same hits with each block as `block_tokens` tokens, a partial last one too,
  over all prompt tokens: what is published as the LRU curve of Mooncake. It differs from the hit
  rate only where partial blocks have ids, and can pass 1 where prompts are shorter than a block.
* *per session* figures are of the outermost sessions' own turns; totals have those of subagents
  too. Percentiles interpolate linearly. `think_s` has the turns after the first whose pause is
  recorded, `gap_s` all turns after the first, from sending to sending.
* *rewritten*: of a turn's blocks, less than 9 in 10 are the beginning of the next turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from twinpool.traces.arrivals import arrivals
from twinpool.traces.lru_stack import LruCurve, LruStack
from twinpool.traces.numbering import PrefixNumbering
from twinpool.traces.schema import BlockArray, Session, Trace


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, 90th percentile and largest of some values; all 0 of none."""

    p50: float
    p90: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values, interpolated linearly."""
        if not values:
            return cls(0.0, 0.0, 0.0)
        p50, p90, most = np.percentile(np.array(values, dtype=np.float64), [50, 90, 100])
        return cls(float(p50), float(p90), float(most))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStatistics:
    """The figures of one trace; the module says how they are defined.

    Attributes:
        num_sessions: Outermost sessions.
        num_children: Sessions that others started.
        num_requests: Requests of all sessions.
        input_tokens: Tokens of all prompts.
        output_tokens: Tokens of all answers.
        unique_tokens: Tokens of the different blocks of all prompts.
        reused_tokens: Hit tokens of an infinite cache.
        turns: Turns per session.
        context_tokens: The longest prompt of each session.
        prompt_tokens: Tokens per prompt, of all sessions.
        answer_tokens: Tokens per answer, of all sessions.
        gap_s: Seconds from sending to sending within a session.
        think_s: Seconds from answer to sending; None where no pause is recorded.
        num_pairs: Pairs of turns that follow each other.
        num_rewritten: Pairs whose second prompt lost more than a tenth of the first.
        duration_s: Seconds from the first to the last sending; None without times.
        lru: Hits by capacity.
        block_tokens: Tokens of a block.
    """

    num_sessions: int
    num_children: int
    num_requests: int
    input_tokens: int
    output_tokens: int
    unique_tokens: int
    reused_tokens: int
    turns: Spread
    context_tokens: Spread
    prompt_tokens: Spread
    answer_tokens: Spread
    gap_s: Spread
    think_s: Spread | None
    num_pairs: int
    num_rewritten: int
    duration_s: float | None
    lru: LruCurve
    block_tokens: int

    @property
    def hit_rate(self) -> float:
        """Hit rate of an infinite cache; 0 of an empty trace."""
        return self.rate_of(self.reused_tokens)

    def lru_hit_rate(self, capacity_tokens: int) -> float:
        """Return the hit rate of an LRU cache of a capacity in tokens."""
        return self.rate_of(self.lru.hit_tokens(capacity_tokens))

    def lru_block_hit_rate(self, capacity_tokens: int) -> float:
        """Return the block hit rate of an LRU cache of a capacity in tokens."""
        return self.rate_of(self.lru.hit_blocks(capacity_tokens) * self.block_tokens)

    def rate_of(self, tokens: int) -> float:
        """Return tokens as a part of all prompt tokens; 0 of an empty trace."""
        return tokens / self.input_tokens if self.input_tokens else 0.0


def statistics(trace: Trace) -> TraceStatistics:
    """Measure a trace.

    Args:
        trace: The trace; not changed.

    Cost:
        About 40 us per request and a pass over all blocks.
    """
    everyone = [each for session in trace.sessions for each in session.walk()]
    turns = [turn for session in everyone for turn in session.turns]
    followed = [pair for session in trace.sessions for pair in pairwise(session.turns)]
    think = [after.think_s for _, after in followed if after.is_think_recorded]
    reuse = _Reuse(trace)
    return TraceStatistics(
        num_sessions=len(trace.sessions),
        num_children=len(everyone) - len(trace.sessions),
        num_requests=len(turns),
        input_tokens=sum(turn.input_tokens for turn in turns),
        output_tokens=sum(turn.output_tokens for turn in turns),
        unique_tokens=reuse.num_blocks * trace.block_tokens,
        reused_tokens=reuse.reused_tokens,
        turns=Spread.of([len(session.turns) for session in trace.sessions]),
        context_tokens=Spread.of(_peaks(trace.sessions)),
        prompt_tokens=Spread.of([turn.input_tokens for turn in turns]),
        answer_tokens=Spread.of([turn.output_tokens for turn in turns]),
        gap_s=Spread.of([after.start_s - turn.start_s for turn, after in followed]),
        think_s=Spread.of(think) if think else None,
        num_pairs=len(followed),
        num_rewritten=sum(_is_rewritten(turn.blocks, after.blocks) for turn, after in followed),
        duration_s=reuse.duration_s if trace.has_times else None,
        lru=reuse.curve,
        block_tokens=trace.block_tokens,
    )


def _peaks(sessions: Sequence[Session]) -> list[float]:
    return [max(turn.input_tokens for turn in each.turns) for each in sessions if each.turns]


def _is_rewritten(before: BlockArray, after: BlockArray) -> bool:
    count = min(len(before), len(after))
    differs = before[:count] != after[:count]
    kept = int(differs.argmax()) if differs.any() else count
    return 10 * kept < 9 * len(before)


class _Reuse:
    """One pass over the requests in the order of arrival: what a prefix cache could reuse."""

    def __init__(self, trace: Trace) -> None:
        requests = arrivals(trace)
        numberings: defaultdict[str, PrefixNumbering] = defaultdict(PrefixNumbering)
        stack = LruStack(len(requests))
        gains: list[tuple[int, int, int]] = []
        self.reused_tokens = 0
        for request in requests:
            turn, namespace = request.turn, request.session.namespace
            numbering = numberings[namespace]
            runs, known = numbering.add(turn.blocks)
            self.reused_tokens += min(known * trace.block_tokens, turn.input_tokens)
            distances = stack.access(namespace, runs, known)
            gains += _gains(distances, trace.block_tokens, turn.input_tokens)
        self.num_blocks = sum(each.num_blocks for each in numberings.values())
        self.curve = LruCurve(gains, trace.block_tokens)
        self.duration_s = requests[-1].at_s - requests[0].at_s if requests else 0.0


def _gains(
    distances: list[tuple[int, int]], block_tokens: int, input_tokens: int
) -> list[tuple[int, int, int]]:
    """Turn distances into the capacities from which on a request's leading tokens are hits."""
    gains: list[tuple[int, int, int]] = []
    blocks = tokens = 0
    for length, distance in distances:
        blocks += length
        reached = min(blocks * block_tokens, input_tokens)
        # Blocks before these were accessed no earlier: a cache that has these has them.
        gains.append((distance + 1, length, reached - tokens))
        tokens = reached
    return gains
