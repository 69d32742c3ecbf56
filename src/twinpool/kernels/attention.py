"""Full attention between its two linears, on KV rows in place.

One token is: RMSNorm and rotary factors on its queries and keys; its keys and values into its row;
softmax attention over the rows of its lane; the output gate. Keys are taken in blocks of `BLOCK`
aligned to absolute positions, and blocks in segments of `SEGMENT` keys, with the same arithmetic
for one query as for many, so that the bits do not depend on how a prompt is cut. Rows are read
where they lie; nothing is gathered. Knows no scheduler.

    positions   0 ....... 31 | 32 ...... 63 | ...   blocks: online softmax, in order
                '------- SEGMENT keys -------'      segments: own maximum and sum, merged in order
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange

from twinpool.kernels import threads
from twinpool.kernels.attention_tiles import (
    BLOCK,
    add_values_bf16,
    add_values_f32,
    rotate_row,
    scores_bf16,
    scores_f32,
    softmax_row,
)
from twinpool.kernels.batch import RaggedBatch
from twinpool.kernels.linear import check_matrix
from twinpool.kernels.rowwise import inverse_rms
from twinpool.kernels.tiles import (
    LINE,
    MAX_ROWS,
    blend_row,
    clear_row,
    copy_row,
    exp_of,
    fetch_add,
    gate_row,
    narrow_row,
    norm_row,
    prefetch_line,
    read_f32,
    scale_row,
    write_f32,
    write_i64,
)
from twinpool.kernels.views import AttentionWeights, KvView, Rope

# Places in `KvView.table`, `AttentionWeights.table` and in the addresses of a call.
KEYS, VALUES, ROW, IS_BF16, HK, K, V = range(7)
H, Q_NORM, K_NORM, HAS_GATE = range(4)
PROJ, COS, SIN, HALF, OUT = range(5)

# Places in a task: a lane of one token is cut by segments of its keys, any other by its tokens.
LANE, PIECE, SHELF = range(3)

SEGMENT = 512
"""Keys that one task of a decode takes; a long context is thereby shared among threads."""

QUERIES = 64
"""Query rows (tokens times heads of a group) that one task of a prefill takes together."""

CHUNK = 8
"""Tokens that one task norms and writes."""


@threads.inlined
def proj_row_of(g, w):  # type: ignore[no-untyped-def]
    """Bytes of one row of the projection."""
    return (w[H] * (g[K] + w[HAS_GATE] * g[V]) + g[HK] * (g[K] + g[V])) * 4


@threads.part
def norm_and_turn(a, source, norm, eps, token, width, out):  # type: ignore[no-untyped-def]
    """One head: RMSNorm where there is a norm, then the rotary factors."""
    if norm != 0:
        norm_row(source, norm, inverse_rms(source, width, eps), out, width)
    else:
        copy_row(source, out, width)
    turn = token * a[HALF] * 4
    rotate_row(out, a[COS] + turn, a[SIN] + turn, a[HALF])


@threads.part
def load_queries(g, w, a, eps, scale, token, head, out):  # type: ignore[no-untyped-def]
    """The scaled queries of one token that read key head `head`, one after the other."""
    group = w[H] // g[HK]
    source = a[PROJ] + token * proj_row_of(g, w) + head * group * g[K] * 4
    for i in range(group):
        at = i * g[K] * 4
        norm_and_turn(a, source + at, w[Q_NORM], eps, token, g[K], out + at)
        scale_row(out + at, scale, out + at, g[K])


@threads.part
def write_row(g, w, a, eps, token, head, row, scratch):  # type: ignore[no-untyped-def]
    """Key and value of one token and head into its KV row; `scratch` holds one key."""
    keys = a[PROJ] + token * proj_row_of(g, w) + w[H] * (g[K] + w[HAS_GATE] * g[V]) * 4
    values = keys + (g[HK] * g[K] + head * g[V]) * 4
    norm_and_turn(a, keys + head * g[K] * 4, w[K_NORM], eps, token, g[K], scratch)
    if g[IS_BF16]:
        narrow_row(scratch, g[KEYS] + row * g[ROW] + head * g[K] * 2, g[K])
        narrow_row(values, g[VALUES] + row * g[ROW] + head * g[V] * 2, g[V])
    else:
        copy_row(scratch, g[KEYS] + row * g[ROW] + head * g[K] * 4, g[K])
        copy_row(values, g[VALUES] + row * g[ROW] + head * g[V] * 4, g[V])


@threads.part
def find_block(g, head, rows, first, count, ahead, tables):  # type: ignore[no-untyped-def]
    """Addresses of `count` keys and of their values; `rows[first]` is the row of the first.

    `tables` has `BLOCK` addresses of keys, then as many of values; past `count` the last key is
    repeated. The rows of the `ahead` keys behind them are asked for.
    """
    size = 2 if g[IS_BF16] else 4
    keys, values = g[KEYS] + head * g[K] * size, g[VALUES] + head * g[V] * size
    for i in range(BLOCK):
        row = np.int64(rows[first + min(i, count - 1)]) * g[ROW]
        write_i64(keys + row, tables + i * 8)
        write_i64(values + row, tables + (BLOCK + i) * 8)
    for i in range(ahead):
        row = np.int64(rows[first + count + i]) * g[ROW]
        for line in range(0, g[K] * size, LINE):
            prefetch_line(keys + row + line)
        for line in range(0, g[V] * size, LINE):
            prefetch_line(values + row + line)


@threads.part
def add_block(g, table, weights, count, seen, out):  # type: ignore[no-untyped-def]
    """Add `seen` weighted values to each of `count` output rows."""
    tiles, row = (count + MAX_ROWS - 1) // MAX_ROWS, 0
    for tile in range(tiles):
        rows = count // tiles + (1 if tile < count % tiles else 0)
        source, to, line = weights + row * BLOCK * 4, out + row * g[V] * 4, g[V] * 4
        if g[IS_BF16]:
            add_values_bf16(rows, table, seen, source, BLOCK * 4, to, line, g[V])
        else:
            add_values_f32(rows, table, seen, source, BLOCK * 4, to, line, g[V])
        row += rows


@threads.part
def attend_block(g, tables, valid, queries, count, group, offset, out, states, scores):  # type: ignore[no-untyped-def]
    """Query rows over one block of `valid` keys; row i sees `offset + i // group + 1` of them."""
    if g[IS_BF16]:
        scores_bf16(tables, count, queries, g[K] * 4, g[K], scores, BLOCK * 4)
    else:
        scores_f32(tables, count, queries, g[K] * 4, g[K], scores, BLOCK * 4)
    for i in range(count):
        seen = min(valid, offset + i // group + 1)
        factor = softmax_row(scores + i * BLOCK * 4, seen, states + i * 8)
        if factor != np.float32(1.0):
            scale_row(out + i * g[V] * 4, factor, out + i * g[V] * 4, g[V])
    values = tables + BLOCK * 8
    if offset + 1 >= valid:
        add_block(g, values, scores, count, valid, out)
    else:
        # A token adds no value that comes after it, not even times zero: it might be infinite.
        for i in range(0, count, group):
            at = i * BLOCK * 4
            seen = min(valid, offset + i // group + 1)
            add_block(g, values, scores + at, group, seen, out + i * g[V] * 4)


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
        out: Address of `[count, V]`, which is overwritten.
        states: Address of `[count, 2]`, maximum and sum, overwritten.
        room: Address of scratch: two tables of `BLOCK` addresses, then scores `[count, BLOCK]`.
    """
    scores = room + 2 * BLOCK * 8
    reset(out, states, count, g[V])
    for block in range(begin, end, BLOCK):
        # Rows whose position lies before the block read nothing of it.
        skip = max(0, block - position)
        first = skip * group
        if first < count:
            valid = min(BLOCK, end - block)
            ahead = min(BLOCK, end - block - valid)
            find_block(g, head, rows, origin + block, valid, ahead, room)
            attend_block(
                g,
                room,
                valid,
                queries + first * g[K] * 4,
                count - first,
                group,
                position + skip - block,
                out + first * g[V] * 4,
                states + first * 8,
                scores,
            )


@threads.inlined
def reset(out, states, count, width):  # type: ignore[no-untyped-def]
    """Rows that have seen no key: output and sum 0, maximum minus infinity."""
    clear_row(out, out, count * width)
    for i in range(count):
        write_f32(np.float32(-np.inf), states + i * 8)
        write_f32(np.float32(0.0), states + i * 8 + 4)


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
def finish(g, w, a, token, query_head, source, state):  # type: ignore[no-untyped-def]
    """Divide by the sum and apply the output gate."""
    to = a[OUT] + (token * w[H] + query_head) * g[V] * 4
    scale_row(source, np.float32(1.0) / read_f32(state + 4), to, g[V])
    if w[HAS_GATE]:
        gate = a[PROJ] + token * proj_row_of(g, w) + (w[H] * g[K] + query_head * g[V]) * 4
        gate_row(to, gate, to, g[V])


@threads.part
def query_block(g, w, a, queries, rows, origin, head, position, token, count, room):  # type: ignore[no-untyped-def]
    """`count` tokens of one lane and key head, from `token` at `position`, over all they may read.

    `room` has the totals and the parts of their rows, then scratch for `attend`.
    """
    group, width = w[H] // g[HK], g[V] * 4
    lines = count * group
    totals, parts = room, room + lines * (width + 8)
    total_states, states = totals + lines * width, parts + lines * width
    rest, end = states + lines * 8, position + count
    reset(totals, total_states, lines, g[V])
    for begin in range(0, end, SEGMENT):
        stop = min(end, begin + SEGMENT)
        attend(
            g, head, rows, origin, begin, stop, queries, lines, group, position, parts, states, rest
        )
        # A row that reads nothing of this segment must stay as it is.
        for i in range(max(0, begin - position) * group, lines):
            at, state = i * width, i * 8
            merge(totals + at, total_states + state, parts + at, states + state, g[V])
    for i in range(lines):
        query_head = head * group + i % group
        finish(g, w, a, token + i // group, query_head, totals + i * width, total_states + i * 8)


@threads.part
def segments_of(start):  # type: ignore[no-untyped-def]
    """Segments that the token at position `start` reads."""
    return (np.int64(start) + SEGMENT) // SEGMENT


@threads.part
def list_tasks(cu_tokens, starts, most):  # type: ignore[no-untyped-def]
    """Tasks `[n, 3]` (lane, piece, place on the shelf or -1), shelf places, longest lane.

    A lane of one token and several segments puts a part of its result on the shelf for each.
    """
    lanes, count, shelf, longest = len(starts), 0, 0, 0
    for lane in range(lanes):
        mine = np.int64(cu_tokens[lane + 1] - cu_tokens[lane])
        longest = max(longest, int(mine))
        count += segments_of(starts[lane]) if mine == 1 else (mine + most - 1) // most
    tasks, index = np.empty((count, 3), np.int64), 0
    # The last lanes and the last pieces are the long ones: plans put decodes first.
    for lane in range(lanes - 1, -1, -1):
        mine = np.int64(cu_tokens[lane + 1] - cu_tokens[lane])
        pieces = segments_of(starts[lane]) if mine == 1 else (mine + most - 1) // most
        is_shared = mine == 1 and pieces > 1
        for piece in range(pieces - 1, -1, -1):
            tasks[index, LANE], tasks[index, PIECE] = lane, piece
            tasks[index, SHELF] = shelf + piece if is_shared else -1
            index += 1
        shelf += pieces if is_shared else 0
    return tasks, shelf, longest


@threads.part
def do_task(g, w, a, eps, scale, index, task, head, most, shelf, scratch):  # type: ignore[no-untyped-def]
    """One task of one key head; `shelf` is an address, `scratch` starts with the queries."""
    cu_tokens, starts, cu_rows, rows, new_rows = index
    lane, piece, place = task[LANE], task[PIECE], task[SHELF]
    first, last = np.int64(cu_tokens[lane]), np.int64(cu_tokens[lane + 1])
    start, origin, group = np.int64(starts[lane]), np.int64(cu_rows[lane]), w[H] // g[HK]
    room = scratch + most * group * g[K] * 4
    if last - first > 1:
        token = first + piece * most
        some = min(most, last - token)
        for t in range(some):
            load_queries(g, w, a, eps, scale, token + t, head, scratch + t * group * g[K] * 4)
        position = start + token - first
        query_block(g, w, a, scratch, rows, origin, head, position, token, some, room)
        return
    begin = piece * SEGMENT
    end = min(start + 1, begin + SEGMENT)
    if end == start + 1:
        write_row(g, w, a, eps, first, head, np.int64(new_rows[first]), room)
    load_queries(g, w, a, eps, scale, first, head, scratch)
    if place < 0:
        query_block(g, w, a, scratch, rows, origin, head, start, first, 1, room)
    else:
        at = shelf + (place * g[HK] + head) * group * (g[V] + 2) * 4
        states = at + group * g[V] * 4
        attend(g, head, rows, origin, begin, end, scratch, group, group, start, at, states, room)


@threads.part
def take_from_shelf(g, w, a, token, pieces, head, place, shelf, scratch):  # type: ignore[no-untyped-def]
    """Merge the parts of a lane of one token; `scratch` has room for one row and its state."""
    group, width = w[H] // g[HK], g[V] * 4
    for i in range(group):
        reset(scratch, scratch + width, 1, g[V])
        for piece in range(place, place + pieces):
            part = shelf + (piece * g[HK] + head) * group * (width + 8)
            merge(scratch, scratch + width, part + i * width, part + group * width + i * 8, g[V])
        finish(g, w, a, token, head * group + i, scratch, scratch + width)


@threads.kernel
def _attention(a, g, w, eps, scale, cu_tokens, starts, cu_rows, rows, new_rows, workers):  # type: ignore[no-untyped-def]
    heads, tokens, factor = g[HK], np.int64(cu_tokens[len(starts)]), np.float32(scale)
    group = w[H] // heads
    most = max(1, QUERIES // group)
    small = most * group * (g[K] + 2 * g[V] + 4 + BLOCK) + 4 * BLOCK + g[K]
    tasks, places, longest = list_tasks(cu_tokens, starts, most)
    count = len(tasks) * heads
    counters = np.zeros(3, np.int64)
    shelf = np.empty(places * heads * group * (g[V] + 2), np.float32)
    index = (cu_tokens, starts, cu_rows, rows, new_rows)
    if longest > 1:
        # Some lane has several tokens: their rows must be there before any of them reads.
        for _ in prange(workers):
            scratch = np.empty(g[K], np.float32)
            first = fetch_add(counters.ctypes.data, CHUNK)
            while first < tokens:
                for token in range(first, min(tokens, first + CHUNK)):
                    row = np.int64(new_rows[token])
                    for head in range(heads):
                        write_row(g, w, a, eps, token, head, row, scratch.ctypes.data)
                first = fetch_add(counters.ctypes.data, CHUNK)
    for _ in prange(workers):
        scratch = np.empty(small, np.float32)
        n = fetch_add(counters.ctypes.data + 8, 1)
        while n < count:
            task = tasks[n // heads]
            at = scratch.ctypes.data
            do_task(g, w, a, eps, factor, index, task, n % heads, most, shelf.ctypes.data, at)
            n = fetch_add(counters.ctypes.data + 8, 1)
    if places > 0:
        for _ in prange(workers):
            scratch = np.empty(g[V] + 2, np.float32)
            n = fetch_add(counters.ctypes.data + 16, 1)
            while n < count:
                task = tasks[n // heads]
                if task[SHELF] >= 0 and task[PIECE] == 0:
                    token = int(cu_tokens[task[LANE]])
                    pieces = segments_of(starts[task[LANE]])
                    at, parts = scratch.ctypes.data, shelf.ctypes.data
                    take_from_shelf(g, w, a, token, pieces, n % heads, task[SHELF], parts, at)
                n = fetch_add(counters.ctypes.data + 16, 1)


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
    keys = len(batch.rows) * -(-batch.num_tokens // max(1, batch.num_lanes))
    addresses = (proj.data_ptr(), rope.cos.data_ptr(), rope.sin.data_ptr(), half, out.data_ptr())
    _attention(
        addresses,
        kv.table,
        weights.table,
        weights.eps,
        weights.scale,
        batch.cu_tokens,
        batch.starts,
        batch.cu_rows,
        batch.rows,
        batch.new_rows,
        threads.workers(keys * heads * (kv.key_width + kv.value_width)),
    )
    return out
