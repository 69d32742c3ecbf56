"""Plain torch twins of the ops that read and write rows and slots: attention, gated delta rule.

One lane and one token after the other, in the obvious order. Knows no scheduler: which rows and
slots are whose comes in a `RaggedBatch`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from twinpool.kernels.batch import RaggedBatch
from twinpool.kernels.reference import rms_norm
from twinpool.kernels.views import (
    AttentionWeights,
    FloatOrBits,
    GatedDeltaWeights,
    KvView,
    Rope,
    StateView,
)

L2_EPS = 1e-6


def gated_delta(
    proj: torch.Tensor, weights: GatedDeltaWeights, state: StateView, batch: RaggedBatch
) -> torch.Tensor:
    """A Gated DeltaNet mixer between its two linears: conv, SiLU, delta scan, gated norm.

    Args:
        proj: `[T, C + HV*V + 2*HV]` float32; the columns are queries `[HK, K]`, keys `[HK, K]`,
            values `[HV, V]` (these three go through the conv), the norm gate z `[HV, V]`, b `[HV]`
            (beta is its sigmoid) and a `[HV]` (the decay).
        weights: The layer's small weights.
        state: Where the layer's state lies in a slot.
        batch: Lanes, working slots, checkpoint events.

    Returns:
        A new `[T, HV*V]` float32.

    Changes:
        Conv and recurrent state of every working slot of a lane with tokens; and the slot of every
        event, which receives both as they are after its token. Reads no other slot. With a
        bfloat16 conv state the conv's input is rounded to bfloat16, so that the state loses
        nothing.

    Source:
        transformers 5.24 `torch_recurrent_gated_delta_rule` and `Qwen3NextGatedDeltaNet`.
    """
    out = torch.empty(len(proj), state.num_value_heads * state.value_width)
    conv = _as_torch(state.conv)
    recurrent = torch.from_numpy(state.recurrent)
    for lane in range(batch.num_lanes):
        first, last = int(batch.cu_tokens[lane]), int(batch.cu_tokens[lane + 1])
        if first == last:
            continue
        slot = int(batch.slots[lane])
        columns, scanned = _conv_cell(state, conv, slot), _recurrent_cell(state, recurrent, slot)
        events = _events_of(batch, lane)
        for token in range(first, last):
            qkv = _conv_step(proj[token], weights, columns)
            out[token] = _delta_step(qkv, proj[token], weights, state, scanned)
            for target in events.get(token, ()):
                _conv_cell(state, conv, target).copy_(columns)
                _recurrent_cell(state, recurrent, target).copy_(scanned)
    return out


def attention(
    proj: torch.Tensor, rope: Rope, weights: AttentionWeights, kv: KvView, batch: RaggedBatch
) -> torch.Tensor:
    """A full-attention mixer between its two linears: q/k norm, rope, write rows, attend, gate.

    Args:
        proj: `[T, N]` float32; the columns are queries `[H, D]`, the output gate `[H, V]` (only
            with `has_gate`), keys `[HK, D]`, values `[HK, V]`.
        rope: Rotary factors of the packed tokens; the first `rotary_dim` elements of a head turn.
        weights: The layer's small weights and numbers.
        kv: Where the layer's keys and values lie in a row.
        batch: Lanes, rows.

    Returns:
        A new `[T, H*V]` float32.

    Changes:
        Keys and values of `batch.new_rows`. Reads the rows of `batch.rows` and no other.
    """
    heads, groups = weights.num_query_heads, weights.num_query_heads // kv.num_heads
    widths = [heads * kv.key_width, heads * kv.value_width * weights.has_gate]
    widths += [kv.num_heads * kv.key_width, kv.num_heads * kv.value_width]
    query, gate, key, value = torch.split(proj, widths, dim=1)
    query = _norm_and_turn(query, kv.key_width, weights.q_norm, weights.eps, rope)
    key = _norm_and_turn(key, kv.key_width, weights.k_norm, weights.eps, rope)
    pool = _as_torch(kv.pool)
    new = torch.from_numpy(batch.new_rows).long()
    keys = pool[:, kv.k_offset : kv.k_offset + widths[2]]
    values = pool[:, kv.v_offset : kv.v_offset + widths[3]]
    keys[new] = key.flatten(1).to(pool.dtype)
    values[new] = value.to(pool.dtype)
    out = torch.empty(len(proj), heads * kv.value_width)
    for lane in range(batch.num_lanes):
        first, last = int(batch.cu_tokens[lane]), int(batch.cu_tokens[lane + 1])
        rows = torch.from_numpy(batch.rows[batch.cu_rows[lane] : batch.cu_rows[lane + 1]]).long()
        k = keys[rows].float().view(len(rows), kv.num_heads, kv.key_width)
        v = values[rows].float().view(len(rows), kv.num_heads, kv.value_width)
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = torch.einsum("thd,shd->hts", query[first:last] * weights.scale, k)
        here = torch.arange(len(rows)) > torch.arange(first, last).unsqueeze(1) - first + int(
            batch.starts[lane]
        )
        probs = torch.softmax(scores.masked_fill(here, float("-inf")), dim=-1)
        out[first:last] = torch.einsum("hts,shv->thv", probs, v).flatten(1)
    return out * torch.sigmoid(gate) if weights.has_gate else out


def _conv_step(
    row: torch.Tensor, weights: GatedDeltaWeights, columns: torch.Tensor
) -> torch.Tensor:
    """One token through conv and SiLU; shifts the conv state `columns` `[W - 1, C]` in place."""
    x = row[: columns.shape[1]].to(columns.dtype)
    window = torch.cat([columns, x.unsqueeze(0)])
    columns.copy_(window[1:])
    return F.silu((window.float() * weights.conv_weight).sum(0))


def _delta_step(
    qkv: torch.Tensor,
    row: torch.Tensor,
    weights: GatedDeltaWeights,
    state: StateView,
    scanned: torch.Tensor,
) -> torch.Tensor:
    """One token through the delta rule and the gated norm; updates `scanned` `[HV, K, V]`."""
    heads, keys = state.num_value_heads, state.num_key_heads * state.key_width
    query, key, value = torch.split(qkv, [keys, keys, heads * state.value_width])
    z, b, a = torch.split(row[state.conv_channels :], [heads * state.value_width, heads, heads])
    repeats = heads // state.num_key_heads
    query = _l2_norm(query.view(-1, state.key_width)).repeat_interleave(repeats, 0)
    key = _l2_norm(key.view(-1, state.key_width)).repeat_interleave(repeats, 0)
    value = value.view(heads, state.value_width)
    decay = torch.exp(weights.decay_rate * F.softplus(a + weights.dt_bias))
    scanned *= decay.view(-1, 1, 1)
    known = torch.einsum("hkv,hk->hv", scanned, key)
    delta = (value - known) * torch.sigmoid(b).unsqueeze(1)
    scanned += key.unsqueeze(2) * delta.unsqueeze(1)
    out = torch.einsum("hkv,hk->hv", scanned, query * state.key_width**-0.5)
    gated = rms_norm(out, weights.norm_weight, weights.eps) * F.silu(z.view(heads, -1))
    return gated.flatten()


def _norm_and_turn(
    x: torch.Tensor, width: int, norm: torch.Tensor | None, eps: float, rope: Rope
) -> torch.Tensor:
    """Heads of `[T, heads * width]` normed and rotated: `[T, heads, width]`."""
    x = x.reshape(len(x), -1, width)
    if norm is not None:
        x = rms_norm(x, norm, eps)
    half = rope.cos.shape[1]
    cos, sin = rope.cos.unsqueeze(1), rope.sin.unsqueeze(1)
    low, high, rest = torch.split(x, [half, half, width - 2 * half], dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], dim=-1)


def _l2_norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + L2_EPS)


def _as_torch(pool: FloatOrBits) -> torch.Tensor:
    """The pool's memory as a float tensor; uint16 is the bits of bfloat16."""
    tensor = torch.from_numpy(pool)
    return tensor if tensor.dtype == torch.float32 else tensor.view(torch.bfloat16)


def _conv_cell(state: StateView, conv: torch.Tensor, slot: int) -> torch.Tensor:
    size = (state.conv_width - 1) * state.conv_channels
    cell = conv[slot, state.conv_offset : state.conv_offset + size]
    return cell.view(state.conv_width - 1, state.conv_channels)


def _recurrent_cell(state: StateView, recurrent: torch.Tensor, slot: int) -> torch.Tensor:
    size = state.num_value_heads * state.key_width * state.value_width
    cell = recurrent[slot, state.recurrent_offset : state.recurrent_offset + size]
    return cell.view(state.num_value_heads, state.key_width, state.value_width)


def _events_of(batch: RaggedBatch, lane: int) -> dict[int, list[int]]:
    """Target slots by packed token."""
    events: dict[int, list[int]] = {}
    for index in range(int(batch.cu_events[lane]), int(batch.cu_events[lane + 1])):
        events.setdefault(int(batch.event_tokens[index]), []).append(int(batch.event_slots[index]))
    return events
