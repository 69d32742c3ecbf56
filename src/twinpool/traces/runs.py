"""Run-length code of block ids: `[start, length, start, length, ...]`, checked before expansion.

Knows no format and no meaning of ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twinpool.traces.schema import BlockArray

ID_LIMIT = 2**31


class BadRuns(ValueError):
    """Ids that cannot be: not pairs, outside 32 bits, or not as many as the tokens need."""


def plain_ids(ids: Sequence[int], counts: range) -> BlockArray:
    """Turn plain ids into an array.

    Args:
        ids: Ids as they stand in the file.
        counts: How many there may be.

    Raises:
        BadRuns: If they are too many or too few, or one is outside 32 bits.
    """
    _check_count(len(ids), counts)
    if ids and not (min(ids) >= 0 and max(ids) < ID_LIMIT):
        raise BadRuns("a block id is outside 32 bits")
    return np.array(ids, dtype=np.int32)


def expand(pairs: Sequence[int], counts: range) -> BlockArray:
    """Spell out run-length ids.

    Args:
        pairs: `[start, length, ...]` as they stand in the file.
        counts: How many ids there may be: nothing larger than its end is ever held.

    Raises:
        BadRuns: If they are no pairs, too many or too few, or one is outside 32 bits.
    """
    starts, lengths = pairs[::2], pairs[1::2]
    if len(pairs) % 2 or (lengths and min(lengths) < 1):
        raise BadRuns("block ids are not pairs of start and length")
    _check_count(sum(lengths), counts)
    for start, length in zip(starts, lengths, strict=True):
        if start < 0 or start + length > ID_LIMIT:
            raise BadRuns("a block id is outside 32 bits")
    if len(starts) == 1:
        return np.arange(starts[0], starts[0] + lengths[0], dtype=np.int32)
    parts = [
        np.arange(start, start + length, dtype=np.int32)
        for start, length in zip(starts, lengths, strict=True)
    ]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def collapse(runs: Sequence[tuple[int, int]]) -> list[int]:
    """Write runs as pairs, joined where one goes on where another ended.

    Args:
        runs: `(start, length)`, lengths 1 or more.
    """
    pairs: list[int] = []
    for start, length in runs:
        if pairs and pairs[-2] + pairs[-1] == start:
            pairs[-1] += length
        else:
            pairs += (start, length)
    return pairs


def full_blocks(tokens: int, block_tokens: int) -> range:
    """Return the counts of ids that are right when a partial last block has none."""
    blocks = tokens // block_tokens
    return range(blocks, blocks + 1)


def all_blocks(tokens: int, block_tokens: int) -> range:
    """Return the counts of ids that are right when a partial last block has one."""
    blocks = -(-tokens // block_tokens)
    return range(blocks, blocks + 1)


def either_blocks(tokens: int, block_tokens: int) -> range:
    """Return the counts of ids that are right when a partial last block may have one."""
    return range(tokens // block_tokens, -(-tokens // block_tokens) + 1)


def _check_count(count: int, counts: range) -> None:
    if count not in counts:
        wanted = str(counts.start) if len(counts) == 1 else f"{counts.start} or {counts.stop - 1}"
        raise BadRuns(f"{count} block ids, {wanted} expected")
