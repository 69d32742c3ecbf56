"""Compile every kernel, or read it from disk, before the first request, with progress.

Runs each op once on a layer of the smallest size. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from twinpool.kernels.batch import RaggedBatch
from twinpool.kernels.table import OpTable
from twinpool.kernels.views import AttentionWeights, GatedDeltaWeights, KvView, StateView

Progress = Callable[[int, int, str], None]


def warm_up(ops: OpTable, progress: Progress | None = None, *, has_experts: bool = True) -> None:
    """Run every op of a table once.

    Args:
        ops: The table.
        progress: Called before each part with parts done, parts in all and the next part's name,
            and once more at the end.
        has_experts: False to leave the experts and the router out, for a dense model.

    Cost:
        The first time on a machine about a minute of compiling; then about a second, because the
        code is on disk.
    """
    parts: list[tuple[str, Callable[[OpTable], object]]] = [
        ("linear", _linear),
        ("norms", _rows),
        ("attention", _attention),
        ("gated delta", _gated_delta),
    ]
    if has_experts:
        parts.append(("experts", _experts))
    for done, (name, run) in enumerate(parts):
        if progress is not None:
            progress(done, len(parts), name)
        run(ops)
    if progress is not None:
        progress(len(parts), len(parts), "")


def _linear(ops: OpTable) -> object:
    return ops.pack_head(torch.ones(1, 1))(torch.ones(1, 1))


def _rows(ops: OpTable) -> object:
    return ops.rms_norm(torch.ones(1, 8), torch.ones(8), 1e-6)


def _experts(ops: OpTable) -> object:
    ids, weights = ops.route(torch.zeros(1, 1), 1, True)
    return ops.pack_experts(torch.ones(1, 2, 1), torch.ones(1, 1, 1))(
        torch.ones(1, 1), ids, weights
    )


def _attention(ops: OpTable) -> object:
    batch = _one_token()
    pool = np.zeros((1, 4), np.float32)
    kv = KvView(pool=pool, k_offset=0, v_offset=2, num_heads=1, key_width=2, value_width=2)
    weights = AttentionWeights(
        num_query_heads=1, q_norm=None, k_norm=None, eps=1e-6, scale=1.0, has_gate=False
    )
    rope = ops.rope(batch.positions, torch.ones(1), 1.0)
    return ops.attention(torch.ones(1, 6), rope, weights, kv, batch)


def _gated_delta(ops: OpTable) -> object:
    state = StateView(
        recurrent=np.zeros((1, 1), np.float32),
        recurrent_offset=0,
        conv=np.zeros((1, 3), np.float32),
        conv_offset=0,
        num_key_heads=1,
        num_value_heads=1,
        key_width=1,
        value_width=1,
        conv_width=2,
    )
    weights = GatedDeltaWeights(
        conv_weight=torch.ones(2, 3),
        decay_rate=-torch.ones(1),
        dt_bias=torch.ones(1),
        norm_weight=torch.ones(1),
        eps=1e-6,
    )
    return ops.gated_delta(torch.ones(1, 6), weights, state, _one_token())


def _one_token() -> RaggedBatch:
    zero, offsets = np.zeros(1, np.int32), np.array([0, 1], np.int32)
    return RaggedBatch(
        cu_tokens=offsets,
        starts=zero,
        positions=zero,
        slots=zero,
        cu_rows=offsets,
        rows=zero,
        new_rows=zero,
        cu_events=np.zeros(2, np.int32),
        event_tokens=np.zeros(0, np.int32),
        event_slots=np.zeros(0, np.int32),
    )
