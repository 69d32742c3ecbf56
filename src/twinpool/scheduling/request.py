"""A live request inside the scheduler: its tokens, its rows, its slots, how far it is.

Mutable and private to `scheduling`; what leaves the package are frozen records. Knows no pool and
no policy.
"""

from __future__ import annotations

from bisect import insort

import numpy as np

from twinpool.memory.node import NO_SLOT, Node
from twinpool.memory.place import PlaceKind
from twinpool.memory.tree_records import Match
from twinpool.scheduling.events import Arrival
from twinpool.scheduling.plan import RowArray, TokenArray, TokenLogprobs


class Request:
    """One request from arrival to end.

    Args:
        arrival: What arrived; the prompt is copied.
        number: Order of arrival.

    Attributes:
        num_tokens: Tokens known, prompt and output.
        num_prompt: Tokens of the prompt.
        num_computed: Tokens whose rows and state are in memory.
        fill: Tokens to compute before the next token can be sampled; prefill ends there.
        num_rows: Rows held, those of the tree's path included.
        tree_depth: The first `tree_depth` rows belong to the tree, on the path of `node`.
        node: The locked node; a root when nothing is shared; None while waiting.
        matched: The node whose checkpoint is locked, if one is.
        slot: Working state slot, or `NO_SLOT`.
        tracked: Private slots for snapshots.
        snapshot: `(depth, slot)` of the latest tracked snapshot; its slot is one of `tracked`.
        places: Depths still to be left a checkpoint, rising.
        kinds: Why they are asked for, past ones too, by depth.
        generation: Turns of its session that were cached when it was admitted, as far as known.
        num_asked: How many of them, past ones too, other requests asked for.
        branch: Depth at which KV was matched and state was not, or 0.
        planned_end: Where the span of the step in flight ends.
        is_write_periodic: True when the checkpoint of the step in flight is a periodic one.
        periodic: Node of the latest periodic checkpoint, which the next one replaces.
        cached_tokens: Prompt tokens reused at first admission.
        missed_tokens: Prompt tokens whose KV was there at first admission and whose state was not.
        num_admissions: How often it was admitted.
        num_passed: How often another request was admitted before it out of turn.
        arrived_at: The work clock when it arrived.
        seen_s: The time at which the scheduler first looked at it.
        known_match: What it matches while it waits, as far as it has been looked up.
        known_at: When its namespace had changed last, then.
        wanted: The node of that match, where the cache has been told of it.
    """

    __slots__ = (
        "_rows",
        "_tokens",
        "arrival",
        "arrived_at",
        "branch",
        "cached_tokens",
        "fill",
        "generation",
        "is_write_periodic",
        "kinds",
        "known_at",
        "known_match",
        "matched",
        "missed_tokens",
        "node",
        "num_admissions",
        "num_asked",
        "num_computed",
        "num_passed",
        "num_prompt",
        "num_rows",
        "num_tokens",
        "number",
        "periodic",
        "places",
        "planned_end",
        "prompt_logprobs",
        "seen_s",
        "slot",
        "snapshot",
        "tracked",
        "tree_depth",
        "wanted",
    )

    def __init__(self, arrival: Arrival, number: int) -> None:
        self.arrival = arrival
        self.number = number
        self._tokens: TokenArray = np.array(arrival.prompt, dtype=np.int32)
        self._rows: RowArray = np.empty(0, dtype=np.int32)
        self.num_tokens = self.num_prompt = len(self._tokens)
        self.cached_tokens = 0
        self.missed_tokens = 0
        self.num_admissions = 0
        self.num_passed = 0
        self.arrived_at = 0
        self.seen_s = 0.0
        self.known_match: Match | None = None
        self.known_at = -1
        self.wanted: Node | None = None
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything that is held in memory; the tokens stay."""
        self.num_computed = 0
        self.fill = self.num_tokens
        self.num_rows = 0
        self.tree_depth = 0
        self.node: Node | None = None
        self.matched: Node | None = None
        self.slot = NO_SLOT
        self.tracked: list[int] = []
        self.snapshot: tuple[int, int] | None = None
        self.places: list[int] = []
        self.kinds: dict[int, PlaceKind] = {}
        self.generation = 0
        self.num_asked = 0
        self.branch = 0
        self.planned_end = 0
        self.is_write_periodic = False
        self.periodic: Node | None = None

    @property
    def request_id(self) -> int:
        """The caller's number."""
        return self.arrival.request_id

    @property
    def num_output(self) -> int:
        """Tokens sampled so far."""
        return self.num_tokens - self.num_prompt

    @property
    def num_missing(self) -> int:
        """Known tokens that still have to go through the model, 1 in decode."""
        return self.num_tokens - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """True when one token is left before the next can be sampled."""
        return self.num_missing == 1

    @property
    def remaining_output(self) -> int:
        """Tokens that it may still sample."""
        return self.arrival.sampling.max_tokens - self.num_output

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True while logprobs of prompt tokens are wanted and not complete."""
        return (
            self.arrival.sampling.prompt_logprobs is not None
            and len(self.prompt_logprobs) < self.num_prompt - 1
        )

    @property
    def num_prompt_logprobs(self) -> int | None:
        """How many tokens come with each logprob of the prompt; None when none are wanted now."""
        return self.arrival.sampling.prompt_logprobs if self.wants_prompt_logprobs else None

    @property
    def tokens(self) -> TokenArray:
        """All known tokens, int32 `[num_tokens]`, a view."""
        return self._tokens[: self.num_tokens]

    @property
    def rows(self) -> RowArray:
        """All rows held, int32 `[num_rows]`, a view."""
        return self._rows[: self.num_rows]

    @property
    def own_rows(self) -> RowArray:
        """Rows held that the tree does not own, a view."""
        return self._rows[self.tree_depth : self.num_rows]

    @property
    def slots(self) -> list[int]:
        """State slots held: working and tracked."""
        return ([self.slot] if self.slot != NO_SLOT else []) + self.tracked

    def append_token(self, token: int) -> None:
        """Add a sampled token."""
        if self.num_tokens == len(self._tokens):
            self._tokens = _grown(self._tokens, self.num_tokens + 1)
        self._tokens[self.num_tokens] = token
        self.num_tokens += 1

    def append_rows(self, rows: RowArray) -> None:
        """Add rows at the end."""
        end = self.num_rows + len(rows)
        if end > len(self._rows):
            self._rows = _grown(self._rows, end)
        self._rows[self.num_rows : end] = rows
        self.num_rows = end

    def replace_rows(self, start: int, rows: RowArray) -> None:
        """Point positions from `start` on at other rows."""
        self._rows[start : start + len(rows)] = rows

    def add_place(self, depth: int, kind: PlaceKind = PlaceKind.FORK) -> None:
        """Ask for a checkpoint at a depth, once."""
        if depth not in self.places:
            self.kinds[depth] = kind
            insort(self.places, depth)

    def ask_for_place(self, depth: int, *, limit: int) -> None:
        """Ask for a checkpoint for the sake of another request, up to `limit` per admission."""
        if self.num_asked < limit and depth not in self.places:
            self.num_asked += 1
            self.add_place(depth)


def _grown(array: RowArray, needed: int) -> RowArray:
    grown = np.empty(max(needed, 2 * len(array), 64), dtype=np.int32)
    grown[: len(array)] = array
    return grown
