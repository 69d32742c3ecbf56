"""Foresight: what it would cost to take memory, and whether a checkpoint is worth it.

Only a policy by value can say; under others nothing is known and everything is allowed. Knows the
victims and their policy; no request.
"""

from __future__ import annotations

import math

from twinpool.memory.eviction import EvictionPolicy
from twinpool.memory.evictor import Evictor
from twinpool.memory.forecast import expected_loss
from twinpool.memory.ghosts import Ghost
from twinpool.memory.node import Node, TokenArray
from twinpool.memory.place import PlaceKind
from twinpool.memory.supply import Supply
from twinpool.memory.value import MAX_GENERATION, Value, class_number

# A checkpoint is left out where what its slot would cost is worth so many times as much. Worth says
# nothing of how soon a unit returns, and one that is left now may return before the next eviction.
CERTAINTY = 8.0


class Foresight:
    """Looks ahead.

    Args:
        evictor: Knows what goes first.
        supply: Both allocators.
        policy: The order of eviction.
    """

    def __init__(self, evictor: Evictor, supply: Supply, policy: EvictionPolicy) -> None:
        self._evictor = evictor
        self._supply = supply
        self._policy = policy

    def expected_loss(
        self, num_rows: int, num_slots: int, *, spared: Node, limit: float = math.inf
    ) -> float:
        """Return the operations likely to be wasted if rows and slots are taken; see `forecast`.

        Args:
            num_rows: Rows.
            num_slots: Slots.
            spared: A node that will be locked before.
            limit: Beyond this much the exact loss does not matter.
        """
        policy = self._policy
        if not isinstance(policy, Value):
            return 0.0
        return expected_loss(
            self._evictor,
            policy,
            self._supply.shortage(num_rows, num_slots),
            spared=spared,
            limit=limit,
        )

    def admit_checkpoint(
        self,
        namespace: str,
        start: Node,
        tokens: TokenArray,
        above: int,
        kind: PlaceKind,
        generation: int,
    ) -> bool:
        """Decide whether a checkpoint is worth what a slot for it costs.

        Args:
            namespace: Where its prefix belongs.
            start: The locked node of its path, or a root.
            tokens: Its prefix.
            above: The depth of the checkpoint before it: in the tree, or about to be left.
            kind: Why it would be left.
            generation: How many turns of its session were cached before.

        Returns:
            False when no slot is free and what would be evicted for one is worth far more.

        Changes:
            Where it is not worth it, it is remembered as if evicted, and the session falls back to
            the checkpoint above.
        """
        policy, learning = self._policy, self._evictor.learning
        if not isinstance(policy, Value) or learning is None or self._supply.free_slots:
            return True
        end, generation = len(tokens), min(generation, MAX_GENERATION)
        worth = policy.worth_of_new(kind, generation, above, end)
        if self._evictor.least_worth() <= CERTAINTY * worth:
            return True
        ghost = Ghost(class_number(kind, 0, generation), policy.now, end)
        fallen_back_to = learning.note_omission(namespace, start, tokens, ghost)
        if fallen_back_to is not None:
            self._evictor.push(fallen_back_to)
        return False
