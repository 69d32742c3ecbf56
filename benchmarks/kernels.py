"""Kernels against their plain torch twins and against the roofline, in one run.

Shapes are model A's, at decode batches and one prefill. Figures are of this machine and
minute: only ratios within one run mean something. Knows no engine.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.roofline import Roofline, describe_machine, measure_roofline
from twinpool.kernels import reference_mixers
from twinpool.kernels.batch import RaggedBatch
from twinpool.kernels.reference import ReferenceLinear
from twinpool.kernels.registry import OpTable, load
from twinpool.kernels.views import AttentionWeights, GatedDeltaWeights, KvView, StateView

HIDDEN, INNER, HEADS, KV_HEADS, WIDTH, CONV = 768, 2048, 6, 2, 128, 4
CHANNELS = 3 * HEADS * WIDTH
DECODES_AND_PREFILLS = ((1, 1024, 1), (8, 1024, 1), (32, 1024, 1), (1, 0, 512), (1, 1536, 512))
COPIES = 8
"""Layers of each kind, so that weights and states come from memory and not from the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        name: Kernel and shape.
        fast_s: Seconds of one call.
        twin_s: Seconds of one call of the twin; None where it was not run.
        moved_bytes: Bytes that have to be read or written at least.
        flops: Floating-point operations.
    """

    name: str
    fast_s: float
    twin_s: float | None
    moved_bytes: float
    flops: float

    def print(self, machine: Roofline) -> None:
        """Print it with the roofline's share: the larger of memory and arithmetic."""
        ratio = f"{self.twin_s / self.fast_s:8.1f}" if self.twin_s is not None else f"{'-':>8}"
        memory = self.moved_bytes / self.fast_s / machine.read_bytes_s
        arithmetic = self.flops / self.fast_s / machine.flops_s
        print(
            f"{self.name:<44} {self.fast_s * 1e6:>10.0f} {ratio} "
            f"{self.moved_bytes / self.fast_s / 1e9:>8.1f} {self.flops / self.fast_s / 1e9:>9.1f} "
            f"{max(memory, arithmetic):>9.2f} {'memory' if memory > arithmetic else 'arithmetic'}"
        )


def seconds(calls: Sequence[Callable[[], object]], tries: int) -> float:
    """Best time of one round over `calls`, by call."""
    best = float("inf")
    for _ in range(tries + 1):
        began = time.perf_counter()
        for call in calls:
            call()
        best = min(best, time.perf_counter() - began)
    return best / len(calls)


def bind(op: Callable[..., object], calls: Sequence[tuple]) -> list[Callable[[], object]]:
    """One call of `op` per tuple of arguments."""
    return [functools.partial(op, *arguments) for arguments in calls]


def lanes(count: int, start: int, tokens: int, seed: int = 0) -> RaggedBatch:
    """`count` equal lanes whose rows lie in scattered runs of 16."""
    each = -(-(start + tokens) // 16) * 16
    runs = np.random.default_rng(seed).permutation(count * each // 16)
    rows = (runs[:, None] * 16 + np.arange(16)).reshape(count, each)[:, : start + tokens]

    def offsets(size: int) -> np.ndarray:
        return (np.arange(count + 1) * size).astype(np.int32)

    return RaggedBatch(
        cu_tokens=offsets(tokens),
        starts=np.full(count, start, np.int32),
        positions=np.tile(np.arange(start, start + tokens), count).astype(np.int32),
        slots=np.arange(count, dtype=np.int32),
        cu_rows=offsets(start + tokens),
        rows=np.ascontiguousarray(rows.reshape(-1), np.int32),
        new_rows=np.ascontiguousarray(rows[:, start:].reshape(-1), np.int32),
        cu_events=np.zeros(count + 1, np.int32),
        event_tokens=np.zeros(0, np.int32),
        event_slots=np.zeros(0, np.int32),
    )


def linears(ops: OpTable, dtype: torch.dtype, tries: int) -> list[Row]:
    """Every linear of a layer at several batches."""
    rows = []
    size = torch.empty(0, dtype=dtype).element_size()
    for n, k in ((2 * INNER, HIDDEN), (HIDDEN, INNER)):
        weights = [torch.randn(n, k).to(dtype) for _ in range(COPIES)]
        packed = [ops.pack_linear(weight, None) for weight in weights]
        twins = [ReferenceLinear(weight) for weight in weights]
        for m in (1, 2, 4, 8, 32, 512):
            x = torch.randn(m, k)
            rows.append(
                Row(
                    name=f"linear {_short(dtype)} {n}x{k}, {m} rows",
                    fast_s=seconds([functools.partial(p, x) for p in packed], tries),
                    twin_s=seconds([functools.partial(t, x) for t in twins], 2),
                    moved_bytes=n * k * size + 4 * m * (n + k),
                    flops=2 * m * n * k,
                )
            )
    return rows


def gated_delta(ops: OpTable, dtype: torch.dtype, tries: int) -> list[Row]:
    """One Gated DeltaNet layer: decode batches and a prefill."""
    rows = []
    weights = GatedDeltaWeights(
        conv_weight=torch.randn(CONV, CHANNELS),
        decay_rate=-torch.rand(HEADS),
        dt_bias=torch.randn(HEADS),
        norm_weight=torch.ones(WIDTH),
        eps=1e-6,
    )
    for count, tokens in ((1, 1), (8, 1), (32, 1), (1, 512)):
        views = [_state_view(count, dtype) for _ in range(COPIES)]
        batch = lanes(count, 0, tokens)
        proj = torch.randn(count * tokens, CHANNELS + HEADS * WIDTH + 2 * HEADS)

        calls = [(proj, weights, view, batch) for view in views]
        state = count * HEADS * WIDTH * WIDTH
        rows.append(
            Row(
                name=f"gated delta {_short(dtype)}, {count} x {tokens} tokens",
                fast_s=seconds(bind(ops.gated_delta, calls), tries),
                twin_s=seconds(bind(reference_mixers.gated_delta, calls[:1]), 1),
                moved_bytes=2 * 4 * state,
                flops=8 * state * tokens,
            )
        )
    return rows


def attention(ops: OpTable, dtype: torch.dtype, tries: int) -> list[Row]:
    """One full-attention layer: decode batches and prefills."""
    rows = []
    weights = AttentionWeights(
        num_query_heads=HEADS,
        q_norm=torch.ones(WIDTH),
        k_norm=torch.ones(WIDTH),
        eps=1e-6,
        scale=WIDTH**-0.5,
        has_gate=True,
    )
    size = torch.empty(0, dtype=dtype).element_size()
    for count, start, tokens in DECODES_AND_PREFILLS:
        batch = lanes(count, start, tokens)
        views = [_kv_view(count * -(-(start + tokens) // 16) * 16, dtype) for _ in range(4)]
        rope = ops.rope(batch.positions, torch.rand(16), 1.0)
        proj = torch.randn(count * tokens, 2 * (HEADS + KV_HEADS) * WIDTH)

        calls = [(proj, rope, weights, view, batch) for view in views]
        read = count * sum(start + t + 1 for t in range(tokens))
        rows.append(
            Row(
                name=f"attention {_short(dtype)}, {count} x {tokens} tokens after {start}",
                fast_s=seconds(bind(ops.attention, calls), tries),
                twin_s=seconds(bind(reference_mixers.attention, calls), 1),
                moved_bytes=count * (start + tokens) * KV_HEADS * 2 * WIDTH * size,
                flops=4 * HEADS * WIDTH * read,
            )
        )
    return rows


def row_ops(ops: OpTable, tries: int) -> list[Row]:
    """The small ops between the linears."""
    twins, rows, norm = load("reference"), [], torch.ones(HIDDEN)
    for m in (1, 32, 512):
        add = [(torch.zeros(m, HIDDEN), torch.randn(m, HIDDEN), norm, 1e-6)] * 20
        gate = [(torch.randn(m, 2 * INNER),)] * 20
        for name, calls, elements in (
            ("add_rms_norm", add, 4 * HIDDEN),
            ("silu_mul", gate, 3 * INNER),
        ):
            rows.append(
                Row(
                    name=f"{name}, {m} rows",
                    fast_s=seconds(bind(getattr(ops, name), calls), tries),
                    twin_s=seconds(bind(getattr(twins, name), calls), 2),
                    moved_bytes=4 * m * elements,
                    flops=0,
                )
            )
    return rows


def _short(dtype: torch.dtype) -> str:
    return "bf16" if dtype == torch.bfloat16 else "f32"


def _pool(units: int, elements: int, dtype: torch.dtype) -> np.ndarray:
    return np.zeros((units, elements), np.uint16 if dtype == torch.bfloat16 else np.float32)


def _state_view(slots: int, dtype: torch.dtype) -> StateView:
    return StateView(
        recurrent=np.zeros((slots, HEADS * WIDTH * WIDTH), np.float32),
        recurrent_offset=0,
        conv=_pool(slots, (CONV - 1) * CHANNELS, dtype),
        conv_offset=0,
        num_key_heads=HEADS,
        num_value_heads=HEADS,
        key_width=WIDTH,
        value_width=WIDTH,
        conv_width=CONV,
    )


def _kv_view(rows: int, dtype: torch.dtype) -> KvView:
    half = KV_HEADS * WIDTH
    return KvView(
        pool=_pool(rows, 2 * half, dtype),
        k_offset=0,
        v_offset=half,
        num_heads=KV_HEADS,
        key_width=WIDTH,
        value_width=WIDTH,
    )


def main(argv: list[str] | None = None) -> list[Row]:
    """Print the table and return its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", choices=["bf16", "f32"], default=["bf16", "f32"])
    parser.add_argument("--tries", type=int, default=5)
    wanted = parser.parse_args(argv)
    ops, machine = load("auto"), measure_roofline()
    print(
        f"{describe_machine()}, {torch.get_num_threads()} threads; read "
        f"{machine.read_bytes_s / 1e9:.1f} GB/s, float32 {machine.flops_s / 1e9:.0f} GFLOP/s"
    )
    for choice in ops.choices:
        for name, reason in choice.refused:
            print(f"{choice.op}: {choice.implementation}; {name} refused: {reason}")
    print(f"{'':<44} {'us':>10} {'x twin':>8} {'GB/s':>8} {'GFLOP/s':>9} {'of roof':>9}")
    rows: list[Row] = []
    with torch.inference_mode():
        for short in wanted.dtypes:
            dtype = torch.bfloat16 if short == "bf16" else torch.float32
            for part in (linears, gated_delta, attention):
                for row in part(ops, dtype, wanted.tries):
                    row.print(machine)
                    rows.append(row)
        for row in row_ops(ops, wanted.tries):
            row.print(machine)
            rows.append(row)
    return rows


if __name__ == "__main__":
    main()
