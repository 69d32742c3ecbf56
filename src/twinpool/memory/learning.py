"""Learning: what became of cached units, told to the policy that weighs them.

Hears of evictions and of prompts as they arrive, and knows what recompute could have been spared.
Knows the tree and a policy; no pool.
"""

from __future__ import annotations

from twinpool.memory.ghosts import Ghost, Ghosts, tail_bytes, tail_of
from twinpool.memory.node import Node, TokenArray
from twinpool.memory.place import PlaceKind
from twinpool.memory.tree import RadixTree
from twinpool.memory.tree_records import Match
from twinpool.memory.value import Value, class_of, holder_above, last_used

# Ghosts that are remembered for each unit that is cached, and at least.
GHOSTS_PER_UNIT = 4
MIN_GHOSTS = 64


class Learning:
    """Follows units beyond their eviction.

    Args:
        tree: Where they stand.
        policy: What learns.

    Attributes:
        thrashed_tokens: Prompt tokens that are computed again because they were evicted a short
            time ago, since start.
        thrashed_work: The operations that they cost.
    """

    def __init__(self, tree: RadixTree, policy: Value) -> None:
        self._tree = tree
        self._policy = policy
        self._ghosts = Ghosts()
        self.thrashed_tokens = 0
        self.thrashed_work = 0

    def note_demand(self, namespace: str, tokens: TokenArray, match: Match) -> None:
        """Learn from a prompt that has arrived.

        Args:
            namespace: Of the prompt.
            tokens: All of it.
            match: What it finds now.

        Changes:
            The likelihood of the class that it wanted, and what has been thrashed.
        """
        now = self._policy.now
        ghost = self._ghosts.take(namespace, tokens, match.depth)
        if ghost is not None:
            self._policy.returns.note_return(ghost.kind, now - ghost.used)
            self.thrashed_tokens += ghost.depth - match.depth
            self.thrashed_work += self._policy.work.saved(match.depth, ghost.depth)
        elif match.depth:
            node = match.node
            self._policy.returns.note_return(class_of(node), now - last_used(node))

    def note_omission(
        self, namespace: str, above: Node, tokens: TokenArray, ghost: Ghost
    ) -> Node | None:
        """Remember a checkpoint that was not left, as if it had been evicted at once.

        Args:
            namespace: Of its prefix.
            above: The node whose path it would have extended.
            tokens: Its prefix.
            ghost: What is known of it.

        Returns:
            As `note_eviction`.

        Changes:
            Recency and hits of the checkpoint above.
        """
        self._remember(namespace, tail_bytes(tokens), ghost)
        holder = above if above.has_checkpoint else holder_above(above)
        return self._fall_back(holder, self._policy.now)

    def note_eviction(self, node: Node) -> Node | None:
        """Remember a unit that is about to be evicted.

        Returns:
            The checkpoint above, where it is what the session falls back to from now on; its use
            and class have changed, so it must be queued anew.

        Changes:
            Recency and hits of that checkpoint.
        """
        ghost = Ghost(class_of(node), last_used(node), node.depth)
        self._remember(self._tree.namespaces.name_of(node), tail_of(node), ghost)
        # Nobody returns to a finish as a rule, and so nobody falls back from it either.
        if not node.has_checkpoint or node.kind == PlaceKind.FINISH:
            return None
        return self._fall_back(holder_above(node), node.slot_used)

    def _remember(self, namespace: str, tail: bytes, ghost: Ghost) -> None:
        self._ghosts.add(namespace, tail, ghost)
        limit = max(MIN_GHOSTS, GHOSTS_PER_UNIT * self._tree.num_checkpoints)
        for faded in self._ghosts.fade(limit):
            self._policy.returns.note_loss(faded.kind)

    def _fall_back(self, above: Node | None, used: int) -> Node | None:
        if above is None or above.hits > 1:
            return None
        above.hits = 0
        above.slot_used = max(above.slot_used, used)
        return above
