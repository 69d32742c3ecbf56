"""The queue pass: looks through the queue once a step and starts those that there is room for.

Order, admission and rotation each say one thing about a waiting request; here they meet. Knows who
waits; not how steps are filled.
"""

from __future__ import annotations

from twinpool.memory.tree_records import Match
from twinpool.scheduling.admission import Admission
from twinpool.scheduling.known_match import MAX_MATCHED_QUEUE, forget_match, known_match
from twinpool.scheduling.limits import Limits
from twinpool.scheduling.order import QueueOrder
from twinpool.scheduling.packing import Packing, StepDraft
from twinpool.scheduling.request import Request
from twinpool.scheduling.residency import Residency
from twinpool.scheduling.roster import Roster
from twinpool.scheduling.rotation import Rotation

# So many requests that wait for another's prefill are passed over in one step: a long queue of
# them must not be searched to its end every time.
MAX_AWAITING = 64


class QueuePass:
    """Starts requests.

    Args:
        roster: Who waits and who runs.
        residency: Moves what requests hold.
        packing: Plans what those that start compute first.
        admission: Says who fits.
        order: Which waiting request is looked at first.
        rotation: Says who may push out what will be wanted again; None: everybody.
        limits: Bounds of a step.
    """

    def __init__(
        self,
        *,
        roster: Roster,
        residency: Residency,
        packing: Packing,
        admission: Admission,
        order: QueueOrder,
        rotation: Rotation | None,
        limits: Limits,
    ) -> None:
        self._cache = residency.cache
        self._roster = roster
        self._residency = residency
        self._packing = packing
        self._admission = admission
        self._order = order
        self._rotation = rotation
        self._max_running = limits.max_running_requests
        self._admits_down_to = limits.chunk_tokens - (limits.admit_tokens or 0)

    def run(self, draft: StepDraft) -> None:
        """Start waiting requests, as far as memory and the budget of the step go.

        Changes:
            The draft, who waits and who runs, and what the requests hold.
        """
        roster, rotation, admission = self._roster, self._rotation, self._admission
        running = roster.running
        if not roster.waiting or len(running) >= self._max_running:
            return
        num_awaiting = 0
        promised = admission.promised(list(running.values()))
        # Those that still compute their prompt are few; looked up once, not for each in the queue.
        prefilling = [each for each in running.values() if each.num_computed < each.fill]
        # Each that is looked at takes a seat, awaits a prefill, or is the last one.
        num_looks = self._max_running - len(running) + MAX_AWAITING
        if rotation:
            # Where the head waits for room its followers are looked at, too, but not without end.
            num_looks = MAX_MATCHED_QUEUE
        queue = self._order.first(roster.waiting, self._cache, num_looks)
        if rotation:
            rotation.begin(queue, len(running))
        for request in queue:
            if draft.budget < self._cache.page_size or draft.budget <= self._admits_down_to:
                return
            match = known_match(request, self._cache)
            if admission.awaited(request, match, prefilling):
                num_awaiting += 1
                if num_awaiting == MAX_AWAITING:
                    return
                continue
            num_running = len(running)
            if rotation and num_running and not rotation.allows(request, match, num_running):
                continue
            if not admission.fits(request, match, num_running, promised):
                return
            if rotation:
                rotation.pay()
            self._start(draft, request, match)
            prefilling.append(request)
            self._packing.add_chunk(draft, request)
            promised = admission.promised(list(running.values()))

    def _start(self, draft: StepDraft, request: Request, match: Match) -> None:
        """Let a waiting request run, and plan what makes its memory ready."""
        waiting = self._roster.waiting
        if self._order.counts_passes:
            for other in waiting.by_arrival.before(request):
                other.num_passed += 1
        waiting.pop(request.request_id)
        entered = self._residency.enter(request, match)
        self._packing.add_moves(draft)
        draft.actions += entered
        forget_match(request, self._cache)
        self._roster.running[request.request_id] = request
        self._note_start(request, match.kv_depth)
        # Those that will share this prefill say so before its first chunk is planned.
        for other in waiting.between(0, MAX_MATCHED_QUEUE):
            self._admission.ask(other, request)

    def _note_start(self, request: Request, kv_depth: int) -> None:
        depth = request.num_computed
        self._roster.log.add("admit", request.request_id, depth, kv_depth, request.slot)
        if request.num_admissions == 0:
            counters = self._roster.counters
            request.cached_tokens = min(depth, request.num_prompt)
            request.missed_tokens = kv_depth - depth
            counters.prompt_tokens += request.num_prompt
            counters.cached_tokens += request.cached_tokens
            counters.state_missed_tokens += request.missed_tokens
            counters.note_wait(self._roster.now_s - request.seen_s)
        request.num_admissions += 1
