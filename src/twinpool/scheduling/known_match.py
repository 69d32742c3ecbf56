"""What a waiting request matches, looked up once per state of the tree.

Where the cache heeds demand it is told what each waiting request would reuse, as far as that was
looked up. Knows the cache and a request; orders nothing.
"""

from __future__ import annotations

from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree_records import Match, nothing_matched
from twinpool.scheduling.request import Request

# Above this many waiting requests matching all of them costs more than an order gains.
MAX_MATCHED_QUEUE = 128


def known_match(request: Request, cache: PrefixCache) -> Match:
    """Match a waiting request, once per state of the tree.

    Changes:
        The request remembers the match and the cache's version, and the cache hears what it wants.
    """
    if request.known_match is None or request.known_version != cache.version:
        if request.wants_prompt_logprobs:
            # Logprobs of the prompt need every position to go through the model.
            request.known_match = nothing_matched()
        else:
            request.known_match = cache.match(request.arrival.namespace, request.tokens)
        request.known_version = cache.version
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


def _want(request: Request, cache: PrefixCache, match: Match) -> None:
    node = match.node if match.depth else None
    if node is request.wanted:
        return
    if node is not None:
        cache.demand.want(node)
    if request.wanted is not None:
        cache.demand.unwant(request.wanted)
    request.wanted = node
