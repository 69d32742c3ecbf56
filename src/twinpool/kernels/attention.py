"""Full attention between its two linears, on KV rows in place.

One token is: RMSNorm and rotary factors on its queries and keys; its keys and values into its row;
softmax attention over the rows of its lane; the output gate. Keys are taken in blocks of `BLOCK`
aligned to absolute positions, and blocks in segments of `SEGMENT` keys, with the same arithmetic
for one query as for many, so that the bits do not depend on how a prompt is cut. A block is copied
to the first-level cache and never a whole context. Knows no scheduler.

    positions   0 ....... 31 | 32 ...... 63 | ...   blocks: online softmax, in order
                '------- SEGMENT keys -------'      segments: own maximum and sum, merged in order
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange

from twinpool.kernels import threads
from twinpool.kernels.batch import RaggedBatch
from twinpool.kernels.linear import check_matrix, few_rows, rows_by_panels
from twinpool.kernels.rowwise import inverse_rms
from twinpool.kernels.tiles import (
    BLOCK,
    LINE,
    blend_row,
    clear_row,
    copy_row,
    exp_of,
    fetch_add,
    gate_row,
    is_finite,
    keys_bf16,
    keys_f32,
    narrow_row,
    norm_row,
    prefetch_line,
    read_f32,
    rotate_row,
    scale_add_zero,
    scale_row,
    softmax_row,
    values_bf16,
    values_f32,
    write_f32,
    write_i64,
)
from twinpool.kernels.vector import LANES, PANEL
from twinpool.kernels.views import AttentionWeights, KvView, Rope

# Places in `KvView.table` and `AttentionWeights.table`.
KEYS, VALUES, ROW, IS_BF16, HK, K, V = range(7)
H, Q_NORM, K_NORM, HAS_GATE = range(4)

SEGMENT = 512
"""Keys that one task of a decode takes; a long context is thereby shared among threads."""

QUERIES = 64
"""Query rows (tokens times heads of a group) that share the copy of a key block."""

CHUNK = 8
"""Tokens that one task norms and writes."""


@threads.inlined
def padded(width):  # type: ignore[no-untyped-def]
    """`width` rounded up to whole panels."""
    return (width + PANEL - 1) // PANEL * PANEL


@threads.inlined
def proj_row_of(g, w):  # type: ignore[no-untyped-def]
    """Bytes of one row of the projection."""
    return (w[H] * (g[K] + w[HAS_GATE] * g[V]) + g[HK] * (g[K] + g[V])) * 4


@threads.part
def norm_and_turn(source, norm, eps, cos, sin, half, width, out):  # type: ignore[no-untyped-def]
    """One head: RMSNorm where there is a norm, then the rotary factors."""
    if norm != 0:
        norm_row(source, norm, inverse_rms(source, width, eps), out, width)
    else:
        copy_row(source, out, width)
    rotate_row(out, cos, sin, half)


@threads.part
def load_queries(g, w, proj, eps, scale, cos, sin, half, token, head, out):  # type: ignore[no-untyped-def]
    """The scaled queries of one token that read key head `head`, one after the other."""
    group = w[H] // g[HK]
    source = proj + token * proj_row_of(g, w) + head * group * g[K] * 4
    turn = token * half * 4
    for i in range(group):
        to = out + i * g[K] * 4
        norm_and_turn(source + i * g[K] * 4, w[Q_NORM], eps, cos + turn, sin + turn, half, g[K], to)
        scale_row(to, scale, to, g[K])


@threads.part
def write_row(g, w, proj, eps, cos, sin, half, token, head, row, scratch):  # type: ignore[no-untyped-def]
    """Key and value of one token and head into its KV row."""
    keys = proj + token * proj_row_of(g, w) + w[H] * (g[K] + w[HAS_GATE] * g[V]) * 4
    values = keys + (g[HK] * g[K] + head * g[V]) * 4
    turn = token * half * 4
    norm_and_turn(
        keys + head * g[K] * 4, w[K_NORM], eps, cos + turn, sin + turn, half, g[K], scratch
    )
    if g[IS_BF16]:
        narrow_row(scratch, g[KEYS] + row * g[ROW] + head * g[K] * 2, g[K])
        narrow_row(values, g[VALUES] + row * g[ROW] + head * g[V] * 2, g[V])
    else:
        copy_row(scratch, g[KEYS] + row * g[ROW] + head * g[K] * 4, g[K])
        copy_row(values, g[VALUES] + row * g[ROW] + head * g[V] * 4, g[V])


@threads.part
def load_block(g, head, rows, first, count, ahead, keys, values, scratch):  # type: ignore[no-untyped-def]
    """A block of `count` keys and values as panels; `rows[first]` is the row of the first.

    Keys as `[BLOCK / PANEL][K][PANEL]`, values as `[V / PANEL][BLOCK][PANEL]`. What stands past
    `count` is the last key again, whose scores are masked, and a value of zero: `scratch` has
    `BLOCK` addresses and then a zero value. The rows of the `ahead` keys behind them are asked for.
    """
    size = 2 if g[IS_BF16] else 4
    nothing = scratch + BLOCK * 8
    for i in range(BLOCK):
        row = np.int64(rows[first + min(i, count - 1)])
        write_i64(g[KEYS] + row * g[ROW] + head * g[K] * size, scratch + i * 8)
    for start in range(0, BLOCK, LANES):
        to = keys + (start // PANEL * PANEL * g[K] + start % PANEL) * 4
        if g[IS_BF16]:
            keys_bf16(scratch + start * 8, g[K], to)
        else:
            keys_f32(scratch + start * 8, g[K], to)
    for i in range(ahead):
        row = np.int64(rows[first + count + i]) * g[ROW]
        for line in range(0, g[K] * size, LINE):
            prefetch_line(g[KEYS] + row + head * g[K] * size + line)
        for line in range(0, g[V] * size, LINE):
            prefetch_line(g[VALUES] + row + head * g[V] * size + line)
    for i in range(BLOCK):
        address = nothing
        if i < count:
            row = np.int64(rows[first + i])
            address = g[VALUES] + row * g[ROW] + head * g[V] * size
        write_i64(address, scratch + i * 8)
    if g[IS_BF16]:
        values_bf16(scratch, g[V], values)
    else:
        values_f32(scratch, g[V], values)


@threads.inlined
def reset(out, states, count, width):  # type: ignore[no-untyped-def]
    """Rows that have seen no key: output and sum 0, maximum minus infinity."""
    clear_row(out, out, count * width)
    for i in range(count):
        write_f32(np.float32(-np.inf), states + i * 8)
        write_f32(np.float32(0.0), states + i * 8 + 4)


@threads.part
def add_seen_values(scores, count, group, position, values, out, width):  # type: ignore[no-untyped-def]
    """Add weighted values row by row, without the keys that a row does not see.

    Their weight is zero, and zero times what is not finite would be NaN in tokens that came before.
    """
    for i in range(count):
        seen = min(BLOCK, position + i // group + 1)
        for column in range(0, width, PANEL):
            at = values + column * BLOCK * 4
            to = out + (i * width + column) * 4
            few_rows(1, scores + i * BLOCK * 4, BLOCK * 4, at, 0, to, width * 4, seen, 1, 0)


@threads.part
def attend(g, head, rows, origin, begin, end, queries, count, group, position, out, states, room):  # type: ignore[no-untyped-def]
    """Query rows over the keys `begin` to `end` of one segment.

    Args:
        g: The view's table.
        head: Key head.
        rows: KV rows of the batch; the lane's first is at `origin`.
        origin: See `rows`.
        begin: First key position, a multiple of `BLOCK`.
        end: Past the last key position that any query row may read.
        queries: Address of the query rows `[count, K]`.
        count: Query rows.
        group: Rows per token: row i belongs to the position `position + i // group`.
        position: See `group`.
        out: Address of `[count, padded V]`, which is overwritten.
        states: Address of `[count, 2]`, maximum and sum, overwritten.
        room: Address of scratch: a key block, a value block, scores, addresses, a zero value.
    """
    width = padded(g[V])
    keys = room
    values = keys + BLOCK * g[K] * 4
    scores = values + BLOCK * width * 4
    table = scores + count * BLOCK * 4
    clear_row(table, table + BLOCK * 8, g[V])
    reset(out, states, count, width)
    for block in range(begin, end, BLOCK):
        valid = min(BLOCK, end - block)
        ahead = min(BLOCK, end - block - valid)
        load_block(g, head, rows, origin + block, valid, ahead, keys, values, table)
        # Rows whose position lies before the block read nothing of it.
        skip = max(0, block - position) * group
        some = count - skip
        if some > 0:
            line = BLOCK * 4
            rows_by_panels(
                some,
                queries + skip * g[K] * 4,
                g[K] * 4,
                keys,
                g[K],
                scores,
                line,
                0,
                BLOCK // PANEL,
                0,
                0,
            )
            for i in range(some):
                row = skip + i
                seen = min(BLOCK, position + row // group + 1 - block)
                factor = softmax_row(scores + i * line, seen, states + row * 8)
                if factor != np.float32(1.0):
                    scale_row(out + row * width * 4, factor, out + row * width * 4, width)
            to = out + skip * width * 4
            if position + skip // group + 1 < block + valid and not is_finite(
                values, BLOCK * width
            ):
                add_seen_values(
                    scores, some, group, position + skip // group - block, values, to, width
                )
            else:
                rows_by_panels(
                    some, scores, line, values, BLOCK, to, width * 4, 0, width // PANEL, 1, 0
                )


@threads.part
def merge(total, total_state, part, part_state, width):  # type: ignore[no-untyped-def]
    """Fold one row's next segment into what the segments before it gave."""
    old, new = read_f32(total_state), read_f32(part_state)
    top = new if new > old else old
    keep, add = exp_of(old - top), exp_of(new - top)
    blend_row(total, part, keep, add, total, width)
    kept = read_f32(total_state + 4) * keep
    write_f32(kept + read_f32(part_state + 4) * add, total_state + 4)
    write_f32(top, total_state)


@threads.part
def finish(g, w, proj, token, query_head, source, state, out):  # type: ignore[no-untyped-def]
    """Divide by the sum and apply the output gate."""
    to = out + (token * w[H] + query_head) * g[V] * 4
    # Adding zero makes -0 a 0: masked keys add zeros of either sign, as many as a block has.
    scale_add_zero(source, np.float32(1.0) / read_f32(state + 4), to, g[V])
    if w[HAS_GATE]:
        gate = proj + token * proj_row_of(g, w) + (w[H] * g[K] + query_head * g[V]) * 4
        gate_row(to, gate, to, g[V])


@threads.part
def query_block(  # type: ignore[no-untyped-def]
    g, w, proj, queries, rows, origin, head, first, start, token, count, out, room
):
    """`count` tokens of one lane and key head over all that they may read.

    `first` is the lane's first packed token, at position `start`; `queries` is `[T, H, K]` by key
    head: `[HK, T, group, K]`.
    """
    group, width = w[H] // g[HK], padded(g[V])
    lines = count * group
    totals = room
    total_states = totals + lines * width * 4
    parts = total_states + lines * 8
    states = parts + lines * width * 4
    rest = states + lines * 8
    position = start + token - first
    end = position + count
    reset(totals, total_states, lines, width)
    for begin in range(0, end, SEGMENT):
        stop = min(end, begin + SEGMENT)
        attend(
            g, head, rows, origin, begin, stop, queries, lines, group, position, parts, states, rest
        )
        # A row that reads nothing of this segment has a sum of 0 and must stay as it is.
        skip = max(0, begin - position) * group
        for i in range(skip, lines):
            at = i * width * 4
            merge(totals + at, total_states + i * 8, parts + at, states + i * 8, width)
    for i in range(lines):
        finish(
            g,
            w,
            proj,
            token + i // group,
            head * group + i % group,
            totals + i * width * 4,
            total_states + i * 8,
            out,
        )


@threads.kernel
def _attention(  # type: ignore[no-untyped-def]
    proj,
    cos,
    sin,
    half,
    out,
    g,
    w,
    eps,
    scale,
    cu_tokens,
    starts,
    cu_rows,
    rows,
    new_rows,
    workers,
):
    lanes, heads = len(starts), g[HK]
    tokens = np.int64(cu_tokens[lanes])
    group, width, factor = w[H] // g[HK], padded(g[V]), np.float32(scale)
    most = max(1, QUERIES // group)
    lines = most * group
    small = (
        2 * lines * (width + 2) + lines * (g[K] + BLOCK) + BLOCK * (g[K] + width) + 2 * BLOCK + g[V]
    )
    # Tasks: a lane of one token is cut by segments of its keys, any other by blocks of its tokens.
    count, partials, longest = 0, 0, 0
    for lane in range(lanes):
        mine = np.int64(cu_tokens[lane + 1] - cu_tokens[lane])
        longest = max(longest, mine)
        if mine == 1:
            pieces = (np.int64(starts[lane]) + SEGMENT) // SEGMENT
            if pieces > 1:
                partials += pieces
        else:
            pieces = (mine + most - 1) // most
        count += pieces
    tasks = np.empty((count, 3), np.int64)
    index, partial = 0, 0
    for step in range(lanes):
        # The last lanes are the long ones: plans put decodes first.
        lane = lanes - 1 - step
        mine = np.int64(cu_tokens[lane + 1] - cu_tokens[lane])
        if mine == 1:
            pieces = (np.int64(starts[lane]) + SEGMENT) // SEGMENT
            for piece in range(pieces):
                tasks[index, 0] = lane
                tasks[index, 1] = piece
                tasks[index, 2] = partial if pieces > 1 else -1
                if pieces > 1:
                    partial += 1
                index += 1
        else:
            pieces = (mine + most - 1) // most
            for piece in range(pieces):
                tasks[index, 0] = lane
                tasks[index, 1] = pieces - 1 - piece
                tasks[index, 2] = -1
                index += 1
    counters = np.zeros(3, np.int64)
    shelf = np.empty(partials * heads * group * (width + 2), np.float32)
    if longest > 1:
        # Some lane has several tokens: their rows must be written before any of them reads.
        for _ in prange(workers):
            scratch = np.zeros(small, np.float32)
            token = fetch_add(counters.ctypes.data, CHUNK)
            while token < tokens:
                for t in range(token, min(tokens, token + CHUNK)):
                    for head in range(heads):
                        row = np.int64(new_rows[t])
                        at = scratch.ctypes.data
                        write_row(g, w, proj, eps, cos, sin, half, t, head, row, at)
                token = fetch_add(counters.ctypes.data, CHUNK)
    for _ in prange(workers):
        scratch = np.zeros(small, np.float32)
        task = fetch_add(counters.ctypes.data + 8, 1)
        while task < count * heads:
            queries = scratch.ctypes.data
            room = queries + lines * g[K] * 4
            head, task = task % heads, task // heads
            lane, piece, place = tasks[task, 0], tasks[task, 1], tasks[task, 2]
            first, last = np.int64(cu_tokens[lane]), np.int64(cu_tokens[lane + 1])
            start, origin = np.int64(starts[lane]), np.int64(cu_rows[lane])
            if last - first == 1:
                begin = piece * SEGMENT
                end = min(start + 1, begin + SEGMENT)
                if end == start + 1:
                    row = np.int64(new_rows[first])
                    write_row(g, w, proj, eps, cos, sin, half, first, head, row, room)
                load_queries(g, w, proj, eps, factor, cos, sin, half, first, head, queries)
                if place < 0:
                    query_block(
                        g, w, proj, queries, rows, origin, head, first, start, first, 1, out, room
                    )
                else:
                    at = shelf.ctypes.data + (place * heads + head) * group * (width + 2) * 4
                    attend(
                        g,
                        head,
                        rows,
                        origin,
                        begin,
                        end,
                        queries,
                        group,
                        group,
                        start,
                        at,
                        at + group * width * 4,
                        room,
                    )
            elif first < last:
                token = first + piece * most
                some = min(most, last - token)
                for t in range(some):
                    to = queries + t * group * g[K] * 4
                    load_queries(g, w, proj, eps, factor, cos, sin, half, token + t, head, to)
                query_block(
                    g, w, proj, queries, rows, origin, head, first, start, token, some, out, room
                )
            task = fetch_add(counters.ctypes.data + 8, 1)
    if partials > 0:
        for _ in prange(workers):
            scratch = np.zeros(width + 2, np.float32)
            task = fetch_add(counters.ctypes.data + 16, 1)
            while task < count * heads:
                head, task = task % heads, task // heads
                lane, piece, place = tasks[task, 0], tasks[task, 1], tasks[task, 2]
                if place >= 0 and piece == 0:
                    pieces = (np.int64(starts[lane]) + SEGMENT) // SEGMENT
                    total = scratch.ctypes.data
                    for i in range(group):
                        reset(total, total + width * 4, 1, width)
                        for p in range(place, place + pieces):
                            at = shelf.ctypes.data + (p * heads + head) * group * (width + 2) * 4
                            state = at + group * width * 4 + i * 8
                            merge(total, total + width * 4, at + i * width * 4, state, width)
                        token = np.int64(cu_tokens[lane])
                        finish(g, w, proj, token, head * group + i, total, total + width * 4, out)
                task = fetch_add(counters.ctypes.data + 16, 1)


def attention(
    proj: torch.Tensor, rope: Rope, weights: AttentionWeights, kv: KvView, batch: RaggedBatch
) -> torch.Tensor:
    """As `reference_mixers.attention`.

    Changes:
        Rows `batch.new_rows`.
    """
    heads, half = weights.num_query_heads, rope.cos.shape[1]
    gates = heads * kv.value_width * weights.has_gate
    columns = heads * kv.key_width + gates + kv.num_heads * (kv.key_width + kv.value_width)
    check_matrix(proj, columns)
    assert len(proj) == batch.num_tokens, f"{len(proj)} rows for {batch.num_tokens} tokens"
    assert rope.cos.shape == (len(proj), half), "rotary factors of another batch"
    out = torch.empty(batch.num_tokens, heads * kv.value_width)
    _attention(
        proj.data_ptr(),
        rope.cos.data_ptr(),
        rope.sin.data_ptr(),
        half,
        out.data_ptr(),
        kv.table,
        weights.table,
        weights.eps,
        weights.scale,
        batch.cu_tokens,
        batch.starts,
        batch.cu_rows,
        batch.rows,
        batch.new_rows,
        threads.workers(),
    )
    return out
