"""What a waiting request matches, looked up once per state of its namespace.

Where the cache heeds demand it is told what each waiting request would reuse, as far as that was
looked up. Knows the cache and a request; orders nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from twinpool.errors import InvariantError
from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree_records import Match, nothing_matched
from twinpool.scheduling.request import Request

# Above this many waiting requests matching all of them costs more than an order gains.
MAX_MATCHED_QUEUE = 128


def known_match(request: Request, cache: PrefixCache) -> Match:
    """Match a waiting request, once per state of its namespace.

    Changes:
        The request remembers the match and when it held, and the cache hears what it wants.
    """
    changed_at = cache.changed_at(request.arrival.namespace)
    if request.known_match is None or request.known_at != changed_at:
        if request.wants_prompt_logprobs:
            # Logprobs of the prompt need every position to go through the model.
            request.known_match = nothing_matched()
        else:
            request.known_match = cache.match(request.arrival.namespace, request.tokens)
        request.known_at = changed_at
        if cache.demand.is_heeded:
            _want(request, cache, request.known_match)
    return request.known_match


def forget_match(request: Request, cache: PrefixCache) -> None:
    """Forget what a request matched: it waits no longer.

    Changes:
        The request, and what the cache hears that it wants.
    """
    request.known_match = None
    if request.wanted is not None:
        cache.demand.unwant(request.wanted)
        request.wanted = None


def audit_matches(requests: Iterable[Request], cache: PrefixCache) -> None:
    """Check that what requests remember as matching now is what they match.

    Raises:
        InvariantError: If it is not.
    """
    for request in requests:
        namespace, known = request.arrival.namespace, request.known_match
        if known is None or request.wants_prompt_logprobs:
            continue
        if request.known_at == cache.changed_at(namespace):
            found = cache.match(namespace, request.tokens)
            is_same = (known.depth, known.kv_depth) == (found.depth, found.kv_depth)
            if not is_same or (found.depth and known.node is not found.node):
                raise InvariantError(
                    "a waiting request remembers a match that does not hold",
                    ledger={"remembered": known.depth, "found": found.depth},
                )


def _want(request: Request, cache: PrefixCache, match: Match) -> None:
    node = match.node if match.depth else None
    if node is request.wanted:
        return
    if node is not None:
        cache.demand.want(node)
    if request.wanted is not None:
        cache.demand.unwant(request.wanted)
    request.wanted = node
