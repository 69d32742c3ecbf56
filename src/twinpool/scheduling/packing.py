"""Packing: which spans of the running requests make up a step, and the room that they need.

Decodes first, then chunks of prompts as far as the budget of tokens goes. Where a request that runs
finds no rows, the youngest goes back to the queue. Knows who runs; neither the queue's order nor
who may start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from twinpool.errors import OutOfRows
from twinpool.scheduling.admission import Admission
from twinpool.scheduling.known_match import known_match
from twinpool.scheduling.placing import Placing
from twinpool.scheduling.plan import Lane, MemoryAction, MoveRows
from twinpool.scheduling.request import Request
from twinpool.scheduling.residency import Residency
from twinpool.scheduling.roster import Roster


@dataclass(slots=True)
class StepDraft:
    """A step that is being planned.

    Attributes:
        budget: Tokens of prompts that may still be computed in it.
        actions: What is done before it, in order.
        lanes: Its lanes so far.
    """

    budget: int
    actions: list[MemoryAction]
    lanes: list[Lane] = field(default_factory=list)


class Packing:
    """Fills steps with what runs.

    Args:
        roster: Who runs and who waits.
        residency: Holds rows for requests.
        placing: Says where they leave checkpoints.
        admission: Hears of retractions.
        is_due: Says of a decoding request, by its id, whether it takes part in the next step;
            None: always.

    Attributes:
        num_held_back: Requests that were not due in the step that is being planned.
    """

    def __init__(
        self,
        roster: Roster,
        residency: Residency,
        placing: Placing,
        admission: Admission,
        is_due: Callable[[int], bool] | None,
    ) -> None:
        self._cache = residency.cache
        self._roster = roster
        self._residency = residency
        self._placing = placing
        self._admission = admission
        self._is_due = is_due
        self.num_held_back = 0

    def add_decodes(self, draft: StepDraft) -> None:
        """Plan a token for every request that decodes and is due.

        Changes:
            The draft, and what the requests hold; some may go back to the queue.
        """
        running, is_due = self._roster.running, self._is_due
        self.num_held_back = 0
        for request in list(running.values()):
            # One that came earlier in the loop may have sent it back to the queue.
            request_id = request.request_id
            if is_due is not None and not is_due(request_id):
                self.num_held_back += 1
                continue
            if request_id not in running or not request.is_decoding:
                continue
            if self._make_room(request, request.num_tokens):
                draft.lanes.append(self._lane(request, request.num_tokens))

    def add_chunks(self, draft: StepDraft) -> None:
        """Plan the next span of every running prefill, as far as the budget goes.

        Changes:
            The draft, and what the requests hold; some may go back to the queue.
        """
        running = self._roster.running
        for request in list(running.values()):
            if request.request_id not in running or request.is_decoding:
                continue
            if not self.add_chunk(draft, request):
                break

    def add_chunk(self, draft: StepDraft, request: Request) -> bool:
        """Plan the next span of a prefill, if there is room for it.

        Returns:
            False when the budget does not hold another page of it.

        Changes:
            The draft, and what the request holds; where no lane is planned yet, the youngest may
            go back to the queue.
        """
        end = self._chunk_end(request, draft.budget)
        if end == request.num_computed:
            return False
        if self._make_room(request, end, may_wait=bool(draft.lanes)):
            draft.budget -= end - request.num_computed
            draft.lanes.append(self._lane(request, end))
        return True

    def add_moves(self, draft: StepDraft) -> None:
        """Plan the copies of rows that were moved so far, before what is planned from now on."""
        for moves in self._cache.room.drain_moves():
            draft.actions.append(MoveRows(moves.sources, moves.targets))
            self._roster.log.add("move", len(moves.sources))

    def retract(self, request: Request) -> None:
        """Send a running request back to the queue.

        Changes:
            What it computed is the tree's; it holds nothing.
        """
        del self._roster.running[request.request_id]
        self._roster.log.add("retract", request.request_id, request.num_computed)
        if request.wants_prompt_logprobs:
            request.prompt_logprobs.clear()
        self._residency.keep(request)
        request.fill = request.num_tokens
        self._roster.waiting.add(request)
        if self._cache.demand.is_heeded:
            known_match(request, self._cache)
        self._roster.counters.retractions += 1
        self._admission.note_retraction()

    def _chunk_end(self, request: Request, budget: int) -> int:
        """Return where the next span of a prefill ends: with its last token, or on a page.

        Every span then begins on a page, and so do the grids that count from it.
        """
        end = request.num_computed + budget
        if end >= request.num_tokens:
            return request.num_tokens
        return max(end // self._cache.page_size * self._cache.page_size, request.num_computed)

    def _make_room(self, request: Request, end: int, *, may_wait: bool = False) -> bool:
        """Hold rows up to `end`, sending the youngest back to the queue while there are none.

        With `may_wait` nobody is sent back: lanes that are planned already keep their memory, and
        the request takes its turn when they have ended.
        """
        while True:
            try:
                self._residency.grow(request, end)
            except OutOfRows:
                if may_wait:
                    return False
                youngest = next(reversed(self._roster.running.values()))
                self.retract(youngest)
                if youngest is request:
                    return False
            else:
                return True

    def _lane(self, request: Request, end: int) -> Lane:
        skipped = self._placing.skipped_checkpoints
        writes = self._placing.writes(request, end)
        if self._placing.skipped_checkpoints > skipped:
            self._roster.log.add("skipped", request.request_id)
        request.planned_end = end
        return Lane(
            request_id=request.request_id,
            start=request.num_computed,
            end=end,
            tokens=request.tokens,
            num_prompt=request.num_prompt,
            rows=request.rows[:end],
            slot=request.slot,
            checkpoints=writes,
            sampling=request.arrival.sampling if end == request.num_tokens else None,
            output_index=request.num_output,
            prompt_logprobs=request.num_prompt_logprobs,
        )
