"""Gated DeltaNet between its two linears, on state slots in place.

One token is: causal conv and SiLU over its queries, keys and values; L2 norms; the delta rule on
the recurrent state; the gated norm. The prefill is the same recurrence token after token, with a
block of state columns in the first-level cache, so that a prompt gives the same bits however it is
cut, and the same as decode. Knows no scheduler.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import prange

from twinpool.kernels import threads
from twinpool.kernels.batch import RaggedBatch
from twinpool.kernels.delta_tiles import (
    change_row,
    conv_row,
    decode_read,
    decode_write,
    delta_row,
    read_out_row,
    scan_read,
    scan_write,
    scan_write_read,
)
from twinpool.kernels.linear import check_matrix
from twinpool.kernels.rowwise import inverse_rms
from twinpool.kernels.tiles import (
    clear_row,
    copy_row,
    dot,
    exp_of,
    fetch_add,
    gated_norm_row,
    move_bytes,
    narrow_row,
    read_f32,
    scale_row,
    sigmoid_of,
    widen_row,
    write_f32,
    write_i64,
)
from twinpool.kernels.vector import PANEL
from twinpool.kernels.views import GatedDeltaWeights, StateView

# Places in `StateView.table` and `GatedDeltaWeights.table`.
RECURRENT, SLOT, CONV, CONV_SLOT, IS_BF16, HK, HV, K, V, W = range(10)
CONV_WEIGHT, DECAY_RATE, DT_BIAS, NORM_WEIGHT = range(4)

CHUNK = 8
"""Tokens that one task prepares."""

L2_EPS = 1e-6


@threads.inlined
def channels_of(g):  # type: ignore[no-untyped-def]
    """Channels of the conv, `C`."""
    return 2 * g[HK] * g[K] + g[HV] * g[V]


@threads.inlined
def proj_row_of(g):  # type: ignore[no-untyped-def]
    """Bytes of one row of the projection."""
    return (channels_of(g) + g[HV] * g[V] + 2 * g[HV]) * 4


@threads.inlined
def span_of(g, head, which):  # type: ignore[no-untyped-def]
    """First channel and number of channels of a key head's queries, keys or values (0, 1, 2)."""
    if which < 2:
        return (which * g[HK] + head) * g[K], g[K]
    group = g[HV] // g[HK]
    return 2 * g[HK] * g[K] + head * group * g[V], group * g[V]


@threads.part
def conv_span(g, weights, proj, first, token, slot, channel, count, out, scratch):  # type: ignore[no-untyped-def]
    """Conv and SiLU of one token's channels; taps before the lane's tokens come from its slot.

    `scratch` has room for `W` addresses and `W - 1` columns of `count` floats behind them.
    """
    row, columns, taps = proj_row_of(g), channels_of(g), g[W]
    history = scratch + taps * 8
    for tap in range(taps):
        source = token - (taps - 1) + tap
        if source >= first:
            address = proj + source * row + channel * 4
        else:
            column = (taps - 1 + source - first) * columns + channel
            if g[IS_BF16]:
                address = history + tap * count * 4
                widen_row(g[CONV] + slot * g[CONV_SLOT] + column * 2, address, count)
            else:
                address = g[CONV] + slot * g[CONV_SLOT] + column * 4
        write_i64(address, scratch + tap * 8)
    weight = weights[CONV_WEIGHT] + channel * 4
    conv_row(taps, scratch, weight, columns * 4, out, count, g[IS_BF16])


@threads.part
def save_conv(g, proj, first, token, slot, target, channel, count):  # type: ignore[no-untyped-def]
    """Write these channels' conv state as it is after `token` into the slot `target`.

    Columns from before the lane's tokens are read from `slot`, which may be `target`: columns move
    towards the front, oldest first.
    """
    row, columns, taps = proj_row_of(g), channels_of(g), g[W]
    size = 2 if g[IS_BF16] else 4
    old, new = g[CONV] + slot * g[CONV_SLOT], g[CONV] + target * g[CONV_SLOT]
    for column in range(taps - 1):
        source = token - (taps - 2) + column
        to = new + (column * columns + channel) * size
        if source >= first:
            at = proj + source * row + channel * 4
            if g[IS_BF16]:
                narrow_row(at, to, count)
            else:
                copy_row(at, to, count)
        else:
            at = old + ((taps - 1 + source - first) * columns + channel) * size
            move_bytes(at, to, count * size)


@threads.part
def prepare(g, weights, proj, first, token, slot, head, qkv, gates, scratch):  # type: ignore[no-untyped-def]
    """Conv, L2 norms and gates of one token and key head; fills its parts of `qkv` and `gates`.

    `gates` is `[T, HV, 3]`: decay, beta, and the dot product of query and key.
    """
    at = qkv + token * channels_of(g) * 4
    for which in range(3):
        channel, count = span_of(g, head, which)
        conv_span(g, weights, proj, first, token, slot, channel, count, at + channel * 4, scratch)
    query, key = at + head * g[K] * 4, at + (g[HK] + head) * g[K] * 4
    for which in range(2):
        vector = query if which == 0 else key
        norm = np.float32(1.0) / np.sqrt(dot(vector, vector, g[K]) + np.float32(L2_EPS))
        if which == 0:
            norm = norm * np.float32(np.float64(g[K]) ** -0.5)
        scale_row(vector, norm, vector, g[K])
    query_key = dot(query, key, g[K])
    group = g[HV] // g[HK]
    logits = proj + token * proj_row_of(g) + (channels_of(g) + g[HV] * g[V]) * 4
    for value_head in range(head * group, (head + 1) * group):
        gate, at = gates + (token * g[HV] + value_head) * 12, value_head * 4
        a = np.float64(read_f32(logits + g[HV] * 4 + at))
        x = a + np.float64(read_f32(weights[DT_BIAS] + at))
        softplus = x if x > 20.0 else math.log1p(math.exp(x))
        rate = np.float64(read_f32(weights[DECAY_RATE] + at))
        write_f32(exp_of(np.float32(rate * softplus)), gate)
        write_f32(sigmoid_of(read_f32(logits + at)), gate + 4)
        write_f32(query_key, gate + 8)


@threads.part
def decode_head(g, token, head, qkv, gates, out, state, scratch):  # type: ignore[no-untyped-def]
    """One token of one value head, on its state in place, by whole rows: the order in memory.

    `scratch` has room for three rows of a state.
    """
    row = qkv + token * channels_of(g) * 4
    key_head = head // (g[HV] // g[HK])
    query, key = row + key_head * g[K] * 4, row + (g[HK] + key_head) * g[K] * 4
    value = row + (2 * g[HK] * g[K] + head * g[V]) * 4
    to = out + (token * g[HV] + head) * g[V] * 4
    gate, line = gates + (token * g[HV] + head) * 12, g[V] * 4
    decay, beta, query_key = read_f32(gate), read_f32(gate + 4), read_f32(gate + 8)
    known, read, delta = scratch, scratch + line, scratch + 2 * line
    clear_row(known, known, 2 * g[V])
    decode_read(state, line, g[K], g[V], key, query, known)
    change_row(known, value, beta, decay, delta, g[V])
    read_out_row(read, delta, decay, query_key, to, g[V])
    decode_write(state, line, g[K], g[V], decay, key, delta)


@threads.inlined
def copy_block(source, source_row, target, target_row, rows, width):  # type: ignore[no-untyped-def]
    """Copy `rows` rows of `width` floats."""
    for row in range(rows):
        copy_row(source + row * source_row, target + row * target_row, width)


@threads.part
def scan_columns(  # type: ignore[no-untyped-def]
    g, first, last, head, column, qkv, gates, out, state, events, event, scratch
):
    """A lane's tokens over one panel of state columns, which stays in the cache meanwhile.

    `events` is `(tokens, slots, first, last)` of the lane; `scratch` holds the block and small
    vectors. `state` is the address of the head's state in its slot.
    """
    event_tokens, event_slots = events
    next_event, end_event = event
    width = min(PANEL, g[V] - column)
    block, sums = scratch + 8 * PANEL * 4, scratch
    delta, padded_value, padded_out = (
        scratch + 4 * PANEL * 4,
        scratch + 5 * PANEL * 4,
        scratch + 6 * PANEL * 4,
    )
    line, ld = PANEL * 4, g[V] * 4
    place = state + column * 4
    if width < PANEL:
        clear_row(scratch, scratch, (8 + g[K]) * PANEL)
    copy_block(place, ld, block, line, g[K], width)
    key_head = head // (g[HV] // g[HK])
    row_bytes = channels_of(g) * 4
    query = qkv + first * row_bytes + key_head * g[K] * 4
    key = query + g[HK] * g[K] * 4
    value = qkv + first * row_bytes + (2 * g[HK] * g[K] + head * g[V] + column) * 4
    scan_read(block, line, g[K], key, query, sums)
    for token in range(first, last):
        gate = gates + (token * g[HV] + head) * 12
        decay, beta, query_key = read_f32(gate), read_f32(gate + 4), read_f32(gate + 8)
        to = out + ((token * g[HV] + head) * g[V] + column) * 4
        if width == PANEL:
            delta_row(sums, value, beta, decay, query_key, delta, to)
        else:
            copy_row(value, padded_value, width)
            delta_row(sums, padded_value, beta, decay, query_key, delta, padded_out)
            copy_row(padded_out, to, width)
        is_event = next_event < end_event and event_tokens[next_event] == token
        if is_event or token + 1 == last:
            scan_write(block, line, g[K], decay, key, delta)
            while next_event < end_event and event_tokens[next_event] == token:
                target = g[RECURRENT] + event_slots[next_event] * g[SLOT]
                target += (head * g[K] * g[V] + column) * 4
                copy_block(block, line, target, ld, g[K], width)
                next_event += 1
            if token + 1 < last:
                scan_read(block, line, g[K], key + row_bytes, query + row_bytes, sums)
        else:
            scan_write_read(
                block,
                line,
                g[K],
                decay,
                key,
                delta,
                key + row_bytes,
                query + row_bytes,
                sums,
            )
        query, key, value = query + row_bytes, key + row_bytes, value + row_bytes
    copy_block(block, line, place, ld, g[K], width)


@threads.part
def scan_head(  # type: ignore[no-untyped-def]
    g, weights, eps, proj, first, last, slot, head, qkv, gates, out, events, event, scratch
):
    """A lane's tokens through one value head: delta rule, checkpoints, gated norm."""
    state = g[RECURRENT] + slot * g[SLOT] + head * g[K] * g[V] * 4
    if last - first == 1 and event[0] == event[1]:
        decode_head(g, first, head, qkv, gates, out, state, scratch)
    else:
        for column in range(0, g[V], PANEL):
            scan_columns(
                g, first, last, head, column, qkv, gates, out, state, events, event, scratch
            )
    for token in range(first, last):
        at = out + (token * g[HV] + head) * g[V] * 4
        z = proj + token * proj_row_of(g) + (channels_of(g) + head * g[V]) * 4
        gated_norm_row(at, weights[NORM_WEIGHT], z, inverse_rms(at, g[V], eps), at, g[V])


@threads.part
def save_span(g, proj, first, last, slot, channel, count, events, event):  # type: ignore[no-untyped-def]
    """Conv checkpoints of a lane, and then its working state."""
    event_tokens, event_slots = events
    for index in range(event[0], event[1]):
        save_conv(g, proj, first, event_tokens[index], slot, event_slots[index], channel, count)
    save_conv(g, proj, first, last - 1, slot, slot, channel, count)


@threads.kernel
def _gated_delta(  # type: ignore[no-untyped-def]
    proj, out, g, weights, eps, cu_tokens, slots, cu_events, event_tokens, event_slots, workers
):
    lanes, heads = len(slots), g[HK]
    tokens = np.int64(cu_tokens[lanes])
    columns = channels_of(g)
    room = np.empty(tokens * (columns + 3 * g[HV]), np.float32)
    group = g[HV] // g[HK]
    counters = np.zeros(2, np.int64)
    events = (event_tokens, event_slots)
    small = (8 + g[K]) * PANEL + 3 * g[V] + g[W] * (2 + max(g[K], group * g[V]))
    longest = 0
    for lane in range(lanes):
        longest = max(longest, cu_tokens[lane + 1] - cu_tokens[lane])
    if longest <= 1:
        # Decode: a key head with its values is independent of the others from end to end.
        for _ in prange(workers):
            # Taken here, because Numba frees an array of which only the address is used later.
            qkv, gates = room.ctypes.data, room.ctypes.data + tokens * columns * 4
            scratch = np.zeros(small, np.float32)
            task = fetch_add(counters.ctypes.data, 1)
            while task < lanes * heads:
                lane, head = task // heads, task % heads
                first, last = np.int64(cu_tokens[lane]), np.int64(cu_tokens[lane + 1])
                if first < last:
                    slot = np.int64(slots[lane])
                    event = (np.int64(cu_events[lane]), np.int64(cu_events[lane + 1]))
                    at = scratch.ctypes.data
                    prepare(g, weights, proj, first, first, slot, head, qkv, gates, at)
                    for value_head in range(head * group, (head + 1) * group):
                        scan_head(
                            g,
                            weights,
                            eps,
                            proj,
                            first,
                            last,
                            slot,
                            value_head,
                            qkv,
                            gates,
                            out,
                            events,
                            event,
                            at,
                        )
                    for which in range(3):
                        channel, count = span_of(g, head, which)
                        save_span(g, proj, first, last, slot, channel, count, events, event)
                task = fetch_add(counters.ctypes.data, 1)
    else:
        lane_of = np.empty(tokens, np.int32)
        for lane in range(lanes):
            lane_of[cu_tokens[lane] : cu_tokens[lane + 1]] = lane
        for _ in prange(workers):
            qkv, gates = room.ctypes.data, room.ctypes.data + tokens * columns * 4
            scratch = np.zeros(small, np.float32)
            start = fetch_add(counters.ctypes.data, CHUNK)
            while start < tokens:
                for token in range(start, min(tokens, start + CHUNK)):
                    lane = lane_of[token]
                    first, slot = np.int64(cu_tokens[lane]), np.int64(slots[lane])
                    for head in range(heads):
                        prepare(
                            g,
                            weights,
                            proj,
                            first,
                            token,
                            slot,
                            head,
                            qkv,
                            gates,
                            scratch.ctypes.data,
                        )
                start = fetch_add(counters.ctypes.data, CHUNK)
        each = g[HV] + 1
        for _ in prange(workers):
            qkv, gates = room.ctypes.data, room.ctypes.data + tokens * columns * 4
            scratch = np.zeros(small, np.float32)
            task = fetch_add(counters.ctypes.data + 8, 1)
            while task < lanes * each:
                # The last lanes are the long ones: plans put decodes first.
                lane, head = lanes - 1 - task // each, task % each
                first, last = np.int64(cu_tokens[lane]), np.int64(cu_tokens[lane + 1])
                if first < last:
                    slot = np.int64(slots[lane])
                    event = (np.int64(cu_events[lane]), np.int64(cu_events[lane + 1]))
                    if head < g[HV]:
                        scan_head(
                            g,
                            weights,
                            eps,
                            proj,
                            first,
                            last,
                            slot,
                            head,
                            qkv,
                            gates,
                            out,
                            events,
                            event,
                            scratch.ctypes.data,
                        )
                    else:
                        save_span(g, proj, first, last, slot, 0, columns, events, event)
                task = fetch_add(counters.ctypes.data + 8, 1)


def gated_delta(
    proj: torch.Tensor, weights: GatedDeltaWeights, state: StateView, batch: RaggedBatch
) -> torch.Tensor:
    """As `reference_mixers.gated_delta`.

    Changes:
        Working slots and event slots of the batch.
    """
    values = state.num_value_heads * state.value_width
    check_matrix(proj, state.conv_channels + values + 2 * state.num_value_heads)
    assert len(proj) == batch.num_tokens, f"{len(proj)} rows for {batch.num_tokens} tokens"
    out = torch.empty(batch.num_tokens, values)
    _gated_delta(
        proj.data_ptr(),
        out.data_ptr(),
        state.table,
        weights.table,
        weights.eps,
        batch.cu_tokens,
        batch.slots,
        batch.cu_events,
        batch.event_tokens,
        batch.event_slots,
        threads.workers(),
    )
    return out
