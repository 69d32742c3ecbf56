"""Micro-kernels: matrix tiles, dots, row maps, softmax rows and state scans as LLVM intrinsics.

Each works on addresses of float32 (or bfloat16 bits) and does one small dense piece; loops over
panels, lanes and heads are in the kernels. Strides are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from twinpool.kernels.vector import (
    F32,
    I16,
    I32,
    I64,
    LANES,
    PANEL,
    VECTOR,
    WORDS,
    Builder,
    Value,
    broadcast,
    declare,
    define,
    define_inline,
    exponential,
    fused,
    load,
    loop,
    pointer,
    prefetch,
    reduce_lanes,
    round_to_bfloat16,
    splat,
    store,
    widen,
)

WIDTH = LANES * 4
"""Bytes of one vector."""

LINE = 64
"""Bytes of a cache line."""

PREFETCH = 2048
"""How far ahead of a matrix tile its panel is asked for, in bytes."""

MAX_ROWS = 6 if LANES == 8 else 12
"""Rows of the largest matrix tile: what the registers hold."""


def _matrix_tile(
    b: Builder, rows: int, panels: int, is_bfloat16: bool, args: Sequence[Value]
) -> None:
    """One tile of the size that its caller has found; see `matrix_rows` for the arguments."""
    x, ldx, w, ldw, y, ldy, count, accumulate = args
    vectors = 2 * panels
    step_bytes = PANEL * (2 if is_bfloat16 else 4)
    xs = [b.add(x, b.mul(ldx, I64(r))) for r in range(rows)]
    ws = [b.add(w, b.mul(ldw, I64(p))) for p in range(panels)]
    ys = [b.add(y, b.mul(ldy, I64(r))) for r in range(rows)]

    def step(k: Value, sums: list[Value], ahead: int) -> list[Value]:
        columns: list[Value] = []
        for base in ws:
            at = b.add(base, b.mul(k, I64(step_bytes)))
            if rows > 2 and ahead * step_bytes % LINE == 0:
                # One or two streams are too few for the hardware to run ahead of a slow tile.
                prefetch(b, at, ahead * step_bytes + PREFETCH)
            if is_bfloat16:
                columns += widen(b, load(b, at, ahead * step_bytes, WORDS))
            else:
                offsets = (ahead * step_bytes, ahead * step_bytes + WIDTH)
                columns += [load(b, at, offset) for offset in offsets]
        out = []
        for r, base in enumerate(xs):
            at = b.add(base, b.mul(k, I64(4)))
            factor = broadcast(b, load(b, at, ahead * 4, F32))
            out += [fused(b, factor, columns[v], sums[r * vectors + v]) for v in range(vectors)]
        return out

    def four(k: Value, sums: list[Value]) -> list[Value]:
        for ahead in range(4):
            sums = step(k, sums, ahead)
        return sums

    sums = _start_sums(b, accumulate, [(base, v * WIDTH) for base in ys for v in range(vectors)])
    k, sums = loop(b, I64(0), count, 4, sums, four)
    _, sums = loop(b, k, count, 1, sums, lambda k, sums: step(k, sums, 0))
    for r, base in enumerate(ys):
        for v in range(vectors):
            store(b, sums[r * vectors + v], base, v * WIDTH)


def _matrix_rows(name: str, panels: dict[int, int], is_bfloat16: bool) -> Any:
    """A switch over the tiles that `panels` names: rows to panels."""

    def emit(b: Builder, rows: Value, *args: Value) -> None:
        after = b.append_basic_block("after_tiles")
        switch = b.switch(rows, after)
        for count, width in panels.items():
            block = b.append_basic_block(f"tile_{count}x{width}")
            switch.add_case(I64(count), block)
            b.position_at_end(block)
            _matrix_tile(b, count, width, is_bfloat16, args)
            b.branch(after)
        b.position_at_end(after)

    return define(name, "iiiiiiiii", "", emit)


def _start_sums(b: Builder, accumulate: Value, places: Sequence[tuple[Value, int]]) -> list[Value]:
    """Zero, or what stands at these places where `accumulate` is not zero."""
    with b.if_else(b.icmp_signed("!=", accumulate, I64(0))) as (yes, no):
        with yes:
            old = [load(b, base, offset) for base, offset in places]
            loaded = b.block
        with no:
            fresh = b.block
    sums = []
    for value in old:
        phi = b.phi(VECTOR)
        phi.add_incoming(value, loaded)
        phi.add_incoming(splat(0.0), fresh)
        sums.append(phi)
    return sums


def row_map(
    name: str, inputs: int, scalars: int, emit: Callable[[Builder, list[Value], list[Value]], Value]
) -> Any:
    """`out[i] = emit(inputs[i], scalars)` over a row, by vectors and then one by one.

    Arguments: addresses of the inputs, float32 scalars, address of the output (which may be one of
    the inputs), count. The tail does the same operations, so a value never depends on where in a
    row it stands.
    """

    def body(b: Builder, *args: Value) -> None:
        sources, out, count = args[:inputs], args[-2], args[-1]
        numbers = list(args[inputs : inputs + scalars])
        wide = [broadcast(b, number) for number in numbers]

        def run(i: Value, factors: list[Value], typ: ir.Type) -> list[Value]:
            at = b.mul(i, I64(4))
            values = [load(b, source, at, typ) for source in sources]
            store(b, emit(b, values, factors), out, at)
            return []

        i, _ = loop(b, I64(0), count, LANES, [], lambda i, _: run(i, wide, VECTOR))
        loop(b, i, count, 1, [], lambda i, _: run(i, numbers, F32))

    return define(name, "i" * inputs + "f" * scalars + "ii", "", body)


def sigmoid(b: Builder, x: Value) -> Value:
    """`1 / (1 + exp(-x))` of a float32 or a vector."""
    one = splat(1.0, x.type)
    return b.fdiv(one, b.fadd(one, exponential(b, b.fneg(x))))


def _dot(b: Builder, x: Value, y: Value, count: Value) -> Value:
    """Sum of `x[i] * y[i]`: four interleaved vector sums, folded in a fixed order."""

    def terms(i: Value, sums: list[Value]) -> list[Value]:
        at = b.mul(i, I64(4))
        return [
            fused(
                b, load(b, x, b.add(at, I64(n * WIDTH))), load(b, y, b.add(at, I64(n * WIDTH))), s
            )
            for n, s in enumerate(sums)
        ]

    def last(i: Value, sums: list[Value]) -> list[Value]:
        at = b.mul(i, I64(4))
        return [fused(b, load(b, x, at, F32), load(b, y, at, F32), sums[0])]

    i, sums = loop(b, I64(0), count, 4 * LANES, [splat(0.0)] * 4, terms)
    i, first = loop(b, i, count, LANES, sums[:1], terms)
    total = b.fadd(b.fadd(first[0], sums[1]), b.fadd(sums[2], sums[3]))
    folded = reduce_lanes(b, total, b.fadd)
    _, tail = loop(b, i, count, 1, [splat(0.0, F32)], last)
    return b.fadd(folded, tail[0])


def _move_bytes(b: Builder, source: Value, target: Value, count: Value) -> None:
    """Copy bytes; source and target do not overlap."""
    at, to = pointer(b, source), pointer(b, target)
    typ = ir.FunctionType(ir.VoidType(), [at.type, to.type, I64, ir.IntType(1)])
    function = declare(b.module, typ, "llvm.memcpy.p0.p0.i64")
    b.call(function, [to, at, count, ir.IntType(1)(0)])


def _fetch_add(b: Builder, address: Value, amount: Value) -> Value:
    """Add to a counter that threads share; returns what stood there before."""
    return b.atomic_rmw("add", pointer(b, address), amount, "monotonic")


def larger(b: Builder, x: Value, y: Value) -> Value:
    """The larger of two; `x` where they cannot be compared."""
    return b.select(b.fcmp_ordered(">", y, x), y, x)


def _narrow_row(b: Builder, source: Value, target: Value, count: Value) -> None:
    """Write a float32 row as bfloat16 bits."""

    def run(i: Value, typ: Any, bits: Any) -> list[Value]:
        rounded = round_to_bfloat16(b, load(b, source, b.mul(i, I64(4)), typ))
        words = b.bitcast(rounded, WORDS if typ == VECTOR else I32)
        half = b.trunc(b.lshr(words, splat(16, words.type)), bits)
        b.store(half, pointer(b, target, b.mul(i, I64(2))), align=2)
        return []

    halves = ir.VectorType(I16, LANES)
    i, _ = loop(b, I64(0), count, LANES, [], lambda i, _: run(i, VECTOR, halves))
    loop(b, i, count, 1, [], lambda i, _: run(i, F32, I16))


def _widen_row(b: Builder, source: Value, target: Value, count: Value) -> None:
    """Write a row of bfloat16 bits as float32."""

    def run(i: Value, typ: Any, bits: Any) -> list[Value]:
        half = b.load(pointer(b, source, b.mul(i, I64(2))), align=2, typ=bits)
        words = b.zext(half, WORDS if typ == VECTOR else I32)
        store(b, b.bitcast(b.shl(words, splat(16, words.type)), typ), target, b.mul(i, I64(4)))
        return []

    halves = ir.VectorType(I16, LANES)
    i, _ = loop(b, I64(0), count, LANES, [], lambda i, _: run(i, VECTOR, halves))
    loop(b, i, count, 1, [], lambda i, _: run(i, F32, I16))


def _exp_sum(b: Builder, x: Value, top: Value, count: Value) -> Value:
    """Sum of `exp(x[i] - top)`: one vector of sums, folded in a fixed order, then the tail."""

    def run(i: Value, sums: list[Value], typ: Any, limit: Value) -> list[Value]:
        value = load(b, x, b.mul(i, I64(4)), typ)
        return [b.fadd(sums[0], exponential(b, b.fsub(value, limit)))]

    wide = broadcast(b, top)
    i, sums = loop(
        b, I64(0), count, LANES, [splat(0.0)], lambda i, sums: run(i, sums, VECTOR, wide)
    )
    folded = reduce_lanes(b, sums[0], b.fadd)
    _, tail = loop(b, i, count, 1, [splat(0.0, F32)], lambda i, sums: run(i, sums, F32, top))
    return b.fadd(folded, tail[0])


def _maximum(b: Builder, x: Value, count: Value) -> Value:
    """The largest value of a row; `-inf` for an empty one."""
    start = splat(float("-inf"), F32)

    def step(i: Value, tops: Sequence[Value], typ: ir.Type) -> list[Value]:
        return [larger(b, tops[0], load(b, x, b.mul(i, I64(4)), typ))]

    i, tops = loop(
        b, I64(0), count, LANES, [broadcast(b, start)], lambda i, tops: step(i, tops, VECTOR)
    )
    folded = reduce_lanes(b, tops[0], lambda x, y: larger(b, x, y))
    _, tail = loop(b, i, count, 1, [folded], lambda i, tops: step(i, tops, F32))
    return tail[0]


_TALL = dict.fromkeys(range(1, MAX_ROWS + 1), 1)
_WIDE = {1: 4, 2: 2, 3: 2}
"""Panels of the tiles for few rows: enough independent sums to hide the latency of an addition."""

# `matrix_rows(rows, x, ldx, w, ldw, y, ldy, count, accumulate)`: y[rows, panels * PANEL] = x @ w,
# or += where `accumulate` is not 0; `w` is panels of `[count, PANEL]`, `ldw` apart. Every element
# is one chain of fused multiply-adds in the order of `count`, whichever tile it falls in.
matrix_rows_f32 = _matrix_rows("matrix_rows_f32", _TALL, False)
matrix_rows_bf16 = _matrix_rows("matrix_rows_bf16", _TALL, True)
matrix_wide_f32 = _matrix_rows("matrix_wide_f32", _WIDE, False)
matrix_wide_bf16 = _matrix_rows("matrix_wide_bf16", _WIDE, True)

dot = define("dot", "iii", "f", _dot)
maximum = define("maximum", "ii", "f", _maximum)
exp_sum = define("exp_sum", "ifi", "f", _exp_sum)
move_bytes = define("move_bytes", "iii", "", _move_bytes)
fetch_add = define_inline("ii", "i", _fetch_add)
prefetch_line = define_inline("i", "", lambda b, address: prefetch(b, address))
read_f32 = define_inline("i", "f", lambda b, address: load(b, address, 0, F32))
write_f32 = define_inline("fi", "", lambda b, value, address: store(b, value, address))
read_i32 = define_inline("i", "i", lambda b, address: b.sext(load(b, address, 0, I32), I64))
write_i32 = define_inline(
    "ii", "", lambda b, value, address: store(b, b.trunc(value, I32), address)
)
write_i64 = define_inline("ii", "", lambda b, value, address: store(b, value, address))

narrow_row = define("narrow_row", "iii", "", _narrow_row)
widen_row = define("widen_row", "iii", "", _widen_row)

clear_row = row_map("clear_row", 1, 0, lambda b, x, _: splat(0.0, x[0].type))
copy_row = row_map("copy_row", 1, 0, lambda b, x, _: x[0])
add_row = row_map("add_row", 2, 0, lambda b, x, _: b.fadd(x[0], x[1]))
scale_row = row_map("scale_row", 1, 1, lambda b, x, s: b.fmul(x[0], s[0]))
scale_add_zero = row_map(
    "scale_add_zero", 1, 1, lambda b, x, s: b.fadd(b.fmul(x[0], s[0]), splat(0.0, x[0].type))
)
add_scaled_row = row_map("add_scaled_row", 2, 1, lambda b, x, s: fused(b, x[1], s[0], x[0]))
norm_row = row_map("norm_row", 2, 1, lambda b, x, s: b.fmul(b.fmul(x[0], s[0]), x[1]))
blend_row = row_map("blend_row", 2, 2, lambda b, x, s: fused(b, x[1], s[1], b.fmul(x[0], s[0])))
shift_row = row_map("shift_row", 1, 1, lambda b, x, s: b.fsub(x[0], s[0]))
softmax_weights_row = row_map(
    "softmax_weights_row", 1, 1, lambda b, x, s: exponential(b, b.fsub(x[0], s[0]))
)
silu_mul_row = row_map(
    "silu_mul_row", 2, 0, lambda b, x, _: b.fmul(b.fmul(x[0], sigmoid(b, x[0])), x[1])
)
gate_row = row_map("gate_row", 2, 0, lambda b, x, _: b.fmul(x[0], sigmoid(b, x[1])))
gated_norm_row = row_map(
    "gated_norm_row",
    3,
    1,
    lambda b, x, s: b.fmul(b.fmul(b.fmul(x[0], s[0]), x[1]), b.fmul(x[2], sigmoid(b, x[2]))),
)
sigmoid_of = define("sigmoid_of", "f", "f", lambda b, x: sigmoid(b, x))
exp_of = define("exp_of", "f", "f", lambda b, x: exponential(b, x))
