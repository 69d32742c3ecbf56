"""Flights: requests between their arrival and their end, with their progress in tokens.

Knows no scheduler; the driver tells it what happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from twinpool.replay.records import ServedRequest
from twinpool.replay.units import Ticket
from twinpool.traces.schema import BlockArray

_NEVER = -1.0


@dataclass(slots=True)
class Flight:
    """One request on its way.

    Attributes:
        index: Its number, which is the scheduler's id of it.
        ticket: What was sent.
        arrival_s: When it joined the queue.
        admitted_s: When it was first admitted; negative before.
        first_token_s: When its first token was out; negative before.
        num_sampled: Units sampled so far, the first token's included.
        num_written: Tokens of the answer after the first.
        cached_tokens: Prompt tokens reused at first admission.
        missed_tokens: Prompt tokens whose KV was there and whose state was not.
        retractions: How often it went back to the queue.
        due_at: Tokens of the answer after the first at which the unit being written is full.
        is_running: True from an admission to its end or to a retraction.
        is_decoding: True while it has its first token and runs.
    """

    index: int
    ticket: Ticket
    arrival_s: float
    admitted_s: float = _NEVER
    first_token_s: float = _NEVER
    num_sampled: int = 0
    num_written: int = 0
    cached_tokens: int = 0
    missed_tokens: int = 0
    retractions: int = 0
    due_at: int = 0
    is_running: bool = False
    is_decoding: bool = False
    keys: BlockArray = field(init=False)

    def __post_init__(self) -> None:
        self.keys = np.concatenate([self.ticket.prompt, self.ticket.answer])

    def note_sampled(self) -> None:
        """Count a sampled unit: the next one is being written from now on."""
        self.num_sampled += 1
        self.due_at = self.ticket.due_after(self.num_sampled)

    @property
    def is_last(self) -> bool:
        """True when the unit that is sampled next is the answer's last."""
        return self.num_sampled == self.ticket.num_decodes

    @property
    def context_tokens(self) -> int:
        """Tokens of prompt and answer so far."""
        return self.ticket.input_tokens + self.num_written

    def next_key(self) -> int:
        """Return the key of the unit that is sampled next; past the answer's end, its last."""
        at = len(self.ticket.prompt) + self.num_sampled
        # The last sampled unit never goes through the model: nobody reads its key.
        return int(self.keys[at]) if at < len(self.keys) else int(self.keys[-1])

    def tokens_of(self, start_unit: int, end_unit: int) -> tuple[int, int]:
        """Return tokens before a span of units and tokens in it, as far as they are written."""
        unit = self.ticket.unit_tokens
        start = min(start_unit * unit, self.context_tokens)
        return start, min(end_unit * unit, self.context_tokens) - start

    def served(self, finished_s: float) -> ServedRequest:
        """Freeze what became of it.

        Args:
            finished_s: When its last token was out.
        """
        ticket = self.ticket
        return ServedRequest(
            index=self.index,
            session=ticket.session,
            turn=ticket.turn,
            namespace=ticket.namespace,
            path=self.keys,
            prompt_units=len(ticket.prompt),
            unit_tokens=ticket.unit_tokens,
            input_tokens=ticket.input_tokens,
            output_tokens=ticket.output_tokens,
            cached_tokens=self.cached_tokens,
            missed_tokens=self.missed_tokens,
            arrival_s=self.arrival_s,
            admitted_s=self.admitted_s,
            first_token_s=self.first_token_s,
            finished_s=finished_s,
            retractions=self.retractions,
        )
