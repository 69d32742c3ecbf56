"""Token ids as bytes: equal bytes are compared fastest.

Knows ids and pages; no node and no tree.
"""

from __future__ import annotations

import numpy as np

from twinpool.memory.node import TokenArray

TOKEN_BYTES = 4
# Up to here comparing bytes is faster, copy included; beyond it numpy is, which copies nothing.
_SHORT_BYTES = 4096


def bytes_of(tokens: TokenArray) -> memoryview:
    """Return int32 ids as bytes, without a copy where they lie side by side."""
    whole = np.ascontiguousarray(tokens, dtype=np.int32)
    return whole.data.cast("B") if len(whole) else memoryview(b"")


def num_shared(segment: bytes, ids: memoryview, at: int, end: int, page_bytes: int) -> int:
    """Return how many bytes a segment shares with `ids[at:end]`, in whole pages.

    Args:
        segment: Ids of whole pages.
        ids: Ids of a prompt.
        at: Where the segment would begin in it, in bytes.
        end: How far the prompt counts.
        page_bytes: Bytes of a page.
    """
    length = len(segment)
    is_short = length <= _SHORT_BYTES and at + length <= end
    if is_short and ids[at : at + length].tobytes() == segment:
        return length
    count = min(length, end - at) // TOKEN_BYTES
    ours = np.frombuffer(segment, dtype=np.int32, count=count)
    same = ours == np.frombuffer(ids, dtype=np.int32, count=count, offset=at)
    if not same.all():
        count = int(same.argmin())
    return count * TOKEN_BYTES // page_bytes * page_bytes
