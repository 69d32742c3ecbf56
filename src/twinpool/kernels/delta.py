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

# Addresses of one call: the projection, its channels after the conv, gates, the output.
PROJ, QKV, GATES, OUT = range(4)

# Bytes into the scratch of a scan, behind the sums over key and query at its start.
DELTA, PADDED_VALUE, PADDED_OUT, PANEL_BLOCK = (n * PANEL * 4 for n in (2, 3, 4, 5))

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
def conv_span(g, w, a, lane, token, channel, count, scratch):  # type: ignore[no-untyped-def]
    """Conv and SiLU of one token's channels; taps before the lane's tokens come from its slot.

    `scratch` has room for `W` addresses and `W - 1` columns of `count` floats behind them.
    """
    first, _, slot = lane
    row, columns, taps = proj_row_of(g), channels_of(g), g[W]
    history = scratch + taps * 8
    for tap in range(taps):
        source = token - (taps - 1) + tap
        if source >= first:
            address = a[PROJ] + source * row + channel * 4
        else:
            column = (taps - 1 + source - first) * columns + channel
            if g[IS_BF16]:
                address = history + tap * count * 4
                widen_row(g[CONV] + slot * g[CONV_SLOT] + column * 2, address, count)
            else:
                address = g[CONV] + slot * g[CONV_SLOT] + column * 4
        write_i64(address, scratch + tap * 8)
    weight, out = w[CONV_WEIGHT] + channel * 4, a[QKV] + (token * columns + channel) * 4
    conv_row(taps, scratch, weight, columns * 4, out, count, g[IS_BF16])


@threads.part
def save_conv(g, a, lane, token, target, channel, count):  # type: ignore[no-untyped-def]
    """Write these channels' conv state as it is after `token` into the slot `target`.

    Columns from before the lane's tokens are read from its slot, which may be `target`: columns
    move towards the front, oldest first.
    """
    first, _, slot = lane
    row, columns, taps = proj_row_of(g), channels_of(g), g[W]
    size = 2 if g[IS_BF16] else 4
    old, new = g[CONV] + slot * g[CONV_SLOT], g[CONV] + target * g[CONV_SLOT]
    for column in range(taps - 1):
        source = token - (taps - 2) + column
        to = new + (column * columns + channel) * size
        if source >= first:
            at = a[PROJ] + source * row + channel * 4
            if g[IS_BF16]:
                narrow_row(at, to, count)
            else:
                copy_row(at, to, count)
        else:
            at = old + ((taps - 1 + source - first) * columns + channel) * size
            move_bytes(at, to, count * size)


@threads.part
def save_span(g, a, lane, events, channel, count):  # type: ignore[no-untyped-def]
    """Conv checkpoints of a lane, and then its working state."""
    _, last, slot = lane
    event_tokens, event_slots, first_event, end_event = events
    for n in range(first_event, end_event):
        save_conv(g, a, lane, np.int64(event_tokens[n]), np.int64(event_slots[n]), channel, count)
    save_conv(g, a, lane, last - 1, slot, channel, count)


@threads.part
def prepare(g, w, a, lane, token, head, scratch):  # type: ignore[no-untyped-def]
    """Conv, L2 norms and gates of one token and key head: its parts of `QKV` and `GATES`.

    `GATES` is `[T, HV, 3]`: decay, beta, and the dot product of query and key.
    """
    for which in range(3):
        channel, count = span_of(g, head, which)
        conv_span(g, w, a, lane, token, channel, count, scratch)
    query = a[QKV] + (token * channels_of(g) + head * g[K]) * 4
    key = query + g[HK] * g[K] * 4
    for which in range(2):
        vector = query if which == 0 else key
        norm = np.float32(1.0) / np.sqrt(dot(vector, vector, g[K]) + np.float32(L2_EPS))
        if which == 0:
            norm = norm * np.float32(np.float64(g[K]) ** -0.5)
        scale_row(vector, norm, vector, g[K])
    query_key, group = dot(query, key, g[K]), g[HV] // g[HK]
    logits = a[PROJ] + token * proj_row_of(g) + (channels_of(g) + g[HV] * g[V]) * 4
    for value_head in range(head * group, (head + 1) * group):
        gate, at = a[GATES] + (token * g[HV] + value_head) * 12, value_head * 4
        x = np.float64(read_f32(logits + g[HV] * 4 + at))
        x += np.float64(read_f32(w[DT_BIAS] + at))
        softplus = x if x > 20.0 else math.log1p(math.exp(x))
        rate = np.float64(read_f32(w[DECAY_RATE] + at))
        write_f32(exp_of(np.float32(rate * softplus)), gate)
        write_f32(sigmoid_of(read_f32(logits + at)), gate + 4)
        write_f32(query_key, gate + 8)


@threads.inlined
def vectors_of(g, a, token, head):  # type: ignore[no-untyped-def]
    """Addresses of a value head's query, key, value, gates and output for one token."""
    row, key_head = a[QKV] + token * channels_of(g) * 4, head // (g[HV] // g[HK])
    query = row + key_head * g[K] * 4
    value = row + (2 * g[HK] * g[K] + head * g[V]) * 4
    place = token * g[HV] + head
    return query, query + g[HK] * g[K] * 4, value, a[GATES] + place * 12, a[OUT] + place * g[V] * 4


@threads.part
def decode_head(g, a, token, head, state, scratch):  # type: ignore[no-untyped-def]
    """One token of one value head, on its state in place, by whole rows: the order in memory.

    `scratch` has room for three rows of a state.
    """
    query, key, value, gate, out = vectors_of(g, a, token, head)
    decay, beta, query_key = read_f32(gate), read_f32(gate + 4), read_f32(gate + 8)
    line = g[V] * 4
    known, read, delta = scratch, scratch + line, scratch + 2 * line
    clear_row(known, known, 2 * g[V])
    decode_read(state, line, g[K], g[V], key, query, known)
    change_row(known, value, beta, decay, delta, g[V])
    read_out_row(read, delta, decay, query_key, out, g[V])
    decode_write(state, line, g[K], g[V], decay, key, delta)


@threads.inlined
def copy_block(source, source_row, target, target_row, rows, width):  # type: ignore[no-untyped-def]
    """Copy `rows` rows of `width` floats."""
    for row in range(rows):
        copy_row(source + row * source_row, target + row * target_row, width)


@threads.part
def delta_step(value, gate, out, width, scratch):  # type: ignore[no-untyped-def]
    """What one token adds to a panel of columns and reads from it; `scratch` is as below."""
    decay, beta, query_key = read_f32(gate), read_f32(gate + 4), read_f32(gate + 8)
    delta = scratch + DELTA
    if width == PANEL:
        delta_row(scratch, value, beta, decay, query_key, delta, out)
    else:
        padded, whole = scratch + PADDED_VALUE, scratch + PADDED_OUT
        copy_row(value, padded, width)
        delta_row(scratch, padded, beta, decay, query_key, delta, whole)
        copy_row(whole, out, width)


@threads.part
def scan_columns(g, a, lane, events, head, column, state, scratch):  # type: ignore[no-untyped-def]
    """A lane's tokens over one panel of state columns, which stays in the cache meanwhile.

    `state` is the address of the head's state in its slot. `scratch` holds the sums over key and
    query, delta, a value, an output, and the panel.
    """
    first, last, _ = lane
    event_tokens, event_slots, event, end_event = events
    width, line, ld = min(PANEL, g[V] - column), PANEL * 4, g[V] * 4
    block, delta, place = scratch + PANEL_BLOCK, scratch + DELTA, state + column * 4
    if width < PANEL:
        clear_row(scratch, scratch, PANEL_BLOCK // 4 + g[K] * PANEL)
    copy_block(place, ld, block, line, g[K], width)
    query, key, value, gate, out = vectors_of(g, a, first, head)
    scan_read(block, line, g[K], key, query, scratch)
    for token in range(first, last):
        query, key, value, gate, out = vectors_of(g, a, token, head)
        next_key, next_query = key + channels_of(g) * 4, query + channels_of(g) * 4
        delta_step(value + column * 4, gate, out + column * 4, width, scratch)
        decay = read_f32(gate)
        is_event = event < end_event and event_tokens[event] == token
        if not is_event and token + 1 < last:
            scan_write_read(block, line, g[K], decay, key, delta, next_key, next_query, scratch)
            continue
        scan_write(block, line, g[K], decay, key, delta)
        while event < end_event and event_tokens[event] == token:
            target = g[RECURRENT] + event_slots[event] * g[SLOT]
            target += (head * g[K] * g[V] + column) * 4
            copy_block(block, line, target, ld, g[K], width)
            event += 1
        if token + 1 < last:
            scan_read(block, line, g[K], next_key, next_query, scratch)
    copy_block(block, line, place, ld, g[K], width)


@threads.part
def scan_head(g, w, eps, a, lane, events, head, scratch):  # type: ignore[no-untyped-def]
    """A lane's tokens through one value head: delta rule, checkpoints, gated norm."""
    first, last, slot = lane
    state = g[RECURRENT] + slot * g[SLOT] + head * g[K] * g[V] * 4
    if last - first == 1 and events[2] == events[3]:
        decode_head(g, a, first, head, state, scratch)
    else:
        for column in range(0, g[V], PANEL):
            scan_columns(g, a, lane, events, head, column, state, scratch)
    for token in range(first, last):
        out = a[OUT] + (token * g[HV] + head) * g[V] * 4
        z = a[PROJ] + token * proj_row_of(g) + (channels_of(g) + head * g[V]) * 4
        gated_norm_row(out, w[NORM_WEIGHT], z, inverse_rms(out, g[V], eps), out, g[V])


@threads.inlined
def lane_of(index, n):  # type: ignore[no-untyped-def]
    """First token, end and slot of lane `n`."""
    return np.int64(index[0][n]), np.int64(index[0][n + 1]), np.int64(index[1][n])


@threads.inlined
def events_of(index, n):  # type: ignore[no-untyped-def]
    """Tokens and slots of all events, and which of them are lane `n`'s."""
    return index[3], index[4], np.int64(index[2][n]), np.int64(index[2][n + 1])


@threads.part
def decode_task(g, w, eps, a, index, n, head, scratch):  # type: ignore[no-untyped-def]
    """A lane of at most one token, from conv to norm, for one key head and its values."""
    lane, events = lane_of(index, n), events_of(index, n)
    if lane[0] == lane[1]:
        return
    prepare(g, w, a, lane, lane[0], head, scratch)
    group = g[HV] // g[HK]
    for value_head in range(head * group, (head + 1) * group):
        scan_head(g, w, eps, a, lane, events, value_head, scratch)
    for which in range(3):
        channel, count = span_of(g, head, which)
        save_span(g, a, lane, events, channel, count)


@threads.part
def scan_task(g, w, eps, a, index, n, head, scratch):  # type: ignore[no-untyped-def]
    """One prepared lane and value head; the head past the last stands for the conv state."""
    lane, events = lane_of(index, n), events_of(index, n)
    if lane[0] == lane[1]:
        return
    if head < g[HV]:
        scan_head(g, w, eps, a, lane, events, head, scratch)
    else:
        save_span(g, a, lane, events, 0, channels_of(g))


@threads.part
def lanes_of_tokens(cu_tokens):  # type: ignore[no-untyped-def]
    """The lane of every packed token, and the longest lane's tokens."""
    count = len(cu_tokens) - 1
    lanes, longest = np.empty(np.int64(cu_tokens[count]), np.int32), np.int64(0)
    for n in range(count):
        lanes[cu_tokens[n] : cu_tokens[n + 1]] = n
        longest = max(longest, np.int64(cu_tokens[n + 1] - cu_tokens[n]))
    return lanes, longest


@threads.kernel
def _gated_delta(  # type: ignore[no-untyped-def]
    proj, out, g, w, eps, cu_tokens, slots, cu_events, event_tokens, event_slots, workers
):
    lanes, tokens, group = len(slots), np.int64(cu_tokens[len(slots)]), g[HV] // g[HK]
    floats = tokens * channels_of(g)
    room = np.empty(floats + tokens * 3 * g[HV], np.float32)
    small = PANEL_BLOCK // 4 + g[K] * PANEL + 3 * g[V] + g[W] * (2 + max(g[K], group * g[V]))
    index = (cu_tokens, slots, cu_events, event_tokens, event_slots)
    counters = np.zeros(2, np.int64)
    lane_of_token, longest = lanes_of_tokens(cu_tokens)
    if longest <= 1:
        # Decode: a key head with its values is independent of the others from end to end.
        for _ in prange(workers):
            # Taken here, because Numba frees an array of which only the address is used later.
            a = (proj, room.ctypes.data, room.ctypes.data + floats * 4, out)
            scratch = np.empty(small, np.float32)
            task = fetch_add(counters.ctypes.data, 1)
            while task < lanes * g[HK]:
                at = scratch.ctypes.data
                decode_task(g, w, eps, a, index, task // g[HK], task % g[HK], at)
                task = fetch_add(counters.ctypes.data, 1)
    else:
        for _ in prange(workers):
            a = (proj, room.ctypes.data, room.ctypes.data + floats * 4, out)
            scratch = np.empty(small, np.float32)
            first = fetch_add(counters.ctypes.data, CHUNK)
            while first < tokens:
                for token in range(first, min(tokens, first + CHUNK)):
                    lane = lane_of(index, lane_of_token[token])
                    for head in range(g[HK]):
                        prepare(g, w, a, lane, token, head, scratch.ctypes.data)
                first = fetch_add(counters.ctypes.data, CHUNK)
        each = g[HV] + 1
        for _ in prange(workers):
            a = (proj, room.ctypes.data, room.ctypes.data + floats * 4, out)
            scratch = np.empty(small, np.float32)
            task = fetch_add(counters.ctypes.data + 8, 1)
            while task < lanes * each:
                # The last lanes are the long ones: plans put decodes first.
                n, at = lanes - 1 - task // each, scratch.ctypes.data
                scan_task(g, w, eps, a, index, n, task % each, at)
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
        threads.workers(4 * values * state.key_width * batch.num_tokens),
    )
    return out
