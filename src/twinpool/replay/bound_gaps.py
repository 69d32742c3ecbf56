"""What a hit costs: the idle gaps over which its KV and its checkpoint have to be kept.

Turns a served schedule into fixed holdings, and into hits that can be had, each with the spans of
time in which it takes memory. Knows no capacity and no solver; `bound` says why this errs upwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from twinpool.replay.bound_tree import Segment, segment_paths
from twinpool.replay.records import ServedRequest

Span = tuple[float, float]

NO_PARENT = -1


@dataclass(slots=True, kw_only=True)
class Hit:
    """Reuse of a run of units at one moment; how much of it is reused is a variable.

    Attributes:
        tokens: Prompt tokens that reusing all of it saves, over all requests of the moment.
        units: KV units that keeping all of it takes.
        parent: Number of the hit that it continues, or `NO_PARENT`.
        kv_spans: When its KV takes memory, each `[start, end)`.
        slot_span: When a checkpoint in it or below takes a slot that `parent` does not count.
    """

    tokens: int
    units: float
    parent: int
    kv_spans: tuple[Span, ...]
    slot_span: Span

    @property
    def is_free(self) -> bool:
        """True when it takes no memory of its own at any time."""
        return not self.kv_spans and self.slot_span[0] >= self.slot_span[1]


@dataclass(slots=True)
class Gaps:
    """A schedule as a problem of what to keep.

    Attributes:
        hits: The hits that take memory; parents before children.
        free_tokens: Prompt tokens that can be reused without keeping anything.
        kv_holds: `(start, end, units)` that running requests are sure to hold.
        slot_holds: `(start, end)` of working states.
    """

    hits: list[Hit] = field(default_factory=list)
    free_tokens: int = 0
    kv_holds: list[tuple[float, float, int]] = field(default_factory=list)
    slot_holds: list[Span] = field(default_factory=list)


def find_gaps(requests: Sequence[ServedRequest], unfinished: Sequence[ServedRequest] = ()) -> Gaps:
    """Find every hit that a schedule allows, and what each takes.

    Args:
        requests: What was served, in any order, with checked times.
        unfinished: What ran when the schedule was cut off: it holds memory and leaves prefixes,
            and what it reuses itself does not count.

    Returns:
        The problem; `bound` says what it leaves out and why.
    """
    everything = [*requests, *unfinished]
    paths = segment_paths(everything)
    gaps = Gaps()
    _find_holds(gaps, everything, paths)
    for time_s, is_admission, numbers in _events(everything):
        if is_admission:
            admitted = [(requests[n], paths[n]) for n in numbers if n < len(requests)]
            _Moment(gaps, time_s, admitted).add()
        else:
            for number in numbers:
                _produce(everything[number], paths[number], time_s)
    return gaps


def _find_holds(gaps: Gaps, requests: Sequence[ServedRequest], paths: list[list[Segment]]) -> None:
    """Book what running requests hold: a prompt from its first token on, one working state."""
    spans: dict[int, list[Span]] = {}
    segments: dict[int, Segment] = {}
    for request, path in zip(requests, paths, strict=True):
        if request.retractions:
            continue
        if request.admitted_s < request.finished_s:
            gaps.slot_holds.append((request.admitted_s, request.finished_s))
        if request.first_token_s >= request.finished_s:
            continue
        for segment in path:
            if segment.end > request.prompt_units:
                break
            segments[id(segment)] = segment
            span = (request.first_token_s, request.finished_s)
            spans.setdefault(id(segment), []).append(span)
    for name, segment in segments.items():
        segment.add_holds(spans[name])
        length = len(segment.keys)
        for start, end in zip(segment.hold_starts, segment.hold_ends, strict=True):
            gaps.kv_holds.append((start, end, length))


def _events(requests: Sequence[ServedRequest]) -> Iterator[tuple[float, bool, list[int]]]:
    """Yield `(time, is it an admission, requests)`, admissions before what comes of them.

    What is admitted at one moment can reuse nothing of what is computed from that moment on.
    """
    events = [(request.admitted_s, 0, number) for number, request in enumerate(requests)]
    for number, request in enumerate(requests):
        events.append((request.admitted_s, 1, number))
        events.append((request.first_token_s, 1, number))
    for (time_s, kind), group in groupby(sorted(events), key=lambda event: event[:2]):
        yield time_s, kind == 0, [number for _, _, number in group]


def _produce(request: ServedRequest, path: list[Segment], now_s: float) -> None:
    """Note until when a request may produce its prompt and, once its first token is out, all."""
    is_answering = now_s >= request.first_token_s
    prompt_s = request.finished_s if request.retractions else request.first_token_s
    for segment in path:
        is_answer = segment.end > request.prompt_units
        if is_answer and not is_answering:
            break
        made_s = request.finished_s if is_answer else prompt_s
        segment.made_s = made_s if segment.made_s is None else max(segment.made_s, made_s)


@dataclass(slots=True)
class _Use:
    """A segment that requests of one moment can reuse."""

    segment: Segment
    since_s: float
    locked_s: float
    num_users: int = 0
    tokens: int = 0
    units: float = 0.0
    hit: int = NO_PARENT
    is_done: bool = False


class _Moment:
    """The requests admitted at one moment; what they share is kept and locked once."""

    def __init__(
        self, gaps: Gaps, now_s: float, admitted: list[tuple[ServedRequest, list[Segment]]]
    ) -> None:
        self._gaps = gaps
        self._now_s = now_s
        self._uses: dict[int, _Use] = {}
        self._chains = [self._chain(request, path) for request, path in admitted]

    def add(self) -> None:
        """Add the hits to the problem and book their locks."""
        for chain in self._chains:
            # A checkpoint below serves as well: none above is needed for longer.
            for below, above in pairwise(reversed(chain)):
                above.since_s = max(above.since_s, below.since_s)
        for chain in self._chains:
            self._add_chain(chain)
        for use in self._uses.values():
            use.segment.locked_s = max(use.segment.locked_s, use.locked_s)

    def _chain(self, request: ServedRequest, path: list[Segment]) -> list[_Use]:
        """Return the part of a prompt that somebody may have produced, from the root down."""
        chain: list[_Use] = []
        lock_s = request.admitted_s if request.retractions else request.first_token_s
        for segment in path:
            tokens = _tokens(request, segment)
            if segment.made_s is None or segment.end > request.prompt_units or not tokens:
                break
            use = self._uses.get(id(segment))
            if use is None:
                since_s = min(segment.made_s, self._now_s)
                use = self._uses[id(segment)] = _Use(segment, since_s, lock_s)
            use.locked_s = min(use.locked_s, lock_s)
            use.num_users += 1
            use.tokens += tokens
            use.units = max(use.units, tokens / request.unit_tokens)
            chain.append(use)
        return chain

    def _add_chain(self, chain: list[_Use]) -> None:
        """Add the hits of one request that no other has added; equal neighbours become one."""
        before: _Use | None = None
        for use in chain:
            if not use.is_done:
                self._add_use(use, before)
            before = use

    def _add_use(self, use: _Use, before: _Use | None) -> None:
        use.is_done = True
        hits = self._gaps.hits
        parent = before.hit if before else NO_PARENT
        covered_s = before.since_s if before else self._now_s
        hit = Hit(
            tokens=use.tokens,
            units=use.units,
            parent=parent,
            kv_spans=tuple(self._kv_spans(use)),
            slot_span=(use.since_s, covered_s),
        )
        if hit.is_free and parent == NO_PARENT:
            self._gaps.free_tokens += use.tokens
            return
        if before and parent != NO_PARENT and use.num_users == before.num_users:
            above = hits[parent]
            if use.since_s == covered_s and hit.kv_spans == above.kv_spans:
                above.tokens += use.tokens
                above.units += use.units
                use.hit = parent
                return
        use.hit = len(hits)
        hits.append(hit)

    def _kv_spans(self, use: _Use) -> Iterator[Span]:
        """Yield when the segment's KV takes memory for this hit that nothing else accounts for."""
        segment, now_s = use.segment, self._now_s
        if segment.locked_s <= now_s:
            yield from _without_holds(segment, use.since_s, max(now_s, use.locked_s))
        else:
            yield from _without_holds(segment, use.since_s, now_s)
            yield from _without_holds(segment, segment.locked_s, use.locked_s)


def _tokens(request: ServedRequest, segment: Segment) -> int:
    """Return how many tokens of the prompt a segment covers."""
    unit_tokens, limit = request.unit_tokens, request.input_tokens
    return min(segment.end * unit_tokens, limit) - min(segment.start * unit_tokens, limit)


def _without_holds(segment: Segment, start_s: float, end_s: float) -> Iterator[Span]:
    """Yield the parts of a span in which no running request holds the segment."""
    at = bisect_right(segment.hold_ends, start_s)
    while start_s < end_s:
        if at == len(segment.hold_starts) or segment.hold_starts[at] >= end_s:
            yield start_s, end_s
            return
        if segment.hold_starts[at] > start_s:
            yield start_s, segment.hold_starts[at]
        start_s = segment.hold_ends[at]
        at += 1
