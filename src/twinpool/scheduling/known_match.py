"""What a waiting request matches, looked up once per state of the tree.

Knows the cache and a request; orders nothing.
"""

from __future__ import annotations

from twinpool.memory.prefix_cache import PrefixCache
from twinpool.memory.tree import Match
from twinpool.scheduling.request import Request

# Above this many waiting requests matching all of them costs more than an order gains.
MAX_MATCHED_QUEUE = 128


def known_match(request: Request, cache: PrefixCache) -> Match:
    """Match a waiting request, once per state of the tree.

    Changes:
        The request remembers the match and the cache's version.
    """
    if request.known_match is None or request.known_version != cache.version:
        if request.wants_prompt_logprobs:
            # Logprobs of the prompt need every position to go through the model.
            request.known_match = cache.match_nothing()
        else:
            request.known_match = cache.match(request.arrival.namespace, request.tokens)
        request.known_version = cache.version
    return request.known_match
