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
    broadcast_word,
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


def _row_map(
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


def _conv_row(b: Builder, taps: Value, table: Value, w: Value, ldw: Value, *rest: Value) -> None:
    """`out = silu(sum over taps of column * weight)`, over `count` channels.

    Arguments: taps; address of a table of `taps` column addresses; address and stride of the
    weights `[taps, count]`; address of the output; count; non-zero to round columns to bfloat16.
    """
    out, count, rounds = rest
    is_rounding = b.icmp_signed("!=", rounds, I64(0))

    def run(i: Value, typ: ir.Type) -> list[Value]:
        at = b.mul(i, I64(4))

        def tap(j: Value, sums: list[Value]) -> list[Value]:
            column = load(b, load(b, table, b.mul(j, I64(8)), I64), at, typ)
            column = b.select(is_rounding, round_to_bfloat16(b, column), column)
            weight = load(b, b.add(w, b.mul(ldw, j)), at, typ)
            return [fused(b, column, weight, sums[0])]

        _, sums = loop(b, I64(0), taps, 1, [splat(0.0, typ)], tap)
        store(b, b.fmul(sums[0], sigmoid(b, sums[0])), out, at)
        return []

    i, _ = loop(b, I64(0), count, LANES, [], lambda i, _: run(i, VECTOR))
    loop(b, i, count, 1, [], lambda i, _: run(i, F32))


def _load_widened(b: Builder, address: Value, typ: Any, is_bfloat16: bool) -> Value:
    """Float32 or bfloat16 bits at an address, as float32 of type `typ`."""
    if not is_bfloat16:
        return load(b, address, 0, typ)
    halves, words = (ir.VectorType(I16, LANES), WORDS) if typ == VECTOR else (I16, I32)
    bits = b.zext(b.load(pointer(b, address), align=2, typ=halves), words)
    return b.bitcast(b.shl(bits, splat(16, words)), typ)


def _transpose_keys(name: str, is_bfloat16: bool) -> Any:
    """`LANES` keys at the addresses of a table, transposed into columns of a panel.

    Arguments: address of the table; elements of a key; address of the first column, in a panel
    `[width, PANEL]`.
    """
    size = 2 if is_bfloat16 else 4

    def emit(b: Builder, table: Value, width: Value, out: Value) -> None:
        keys = [load(b, table, r * 8, I64) for r in range(LANES)]

        def square(d: Value, _: list[Value]) -> list[Value]:
            rows = [
                _load_widened(b, b.add(key, b.mul(d, I64(size))), VECTOR, is_bfloat16)
                for key in keys
            ]
            to = b.add(out, b.mul(d, I64(PANEL * 4)))
            for r, row in enumerate(_transposed(b, rows)):
                store(b, row, to, r * PANEL * 4)
            return []

        def column(d: Value, _: list[Value]) -> list[Value]:
            to = b.add(out, b.mul(d, I64(PANEL * 4)))
            for r, key in enumerate(keys):
                value = _load_widened(b, b.add(key, b.mul(d, I64(size))), F32, is_bfloat16)
                store(b, value, to, r * 4)
            return []

        d, _ = loop(b, I64(0), width, LANES, [], square)
        loop(b, d, width, 1, [], column)

    return define(name, "iii", "", emit)


def _transposed(b: Builder, rows: list[Value]) -> list[Value]:
    """A square of vectors with rows and columns swapped, bit by bit of their numbers."""
    distance = 1
    while distance < LANES:
        lanes = range(LANES)
        first = [c if not c & distance else LANES + c - distance for c in lanes]
        second = [c + distance if not c & distance else LANES + c for c in lanes]
        for r in range(LANES):
            if not r & distance:
                pair = rows[r], rows[r + distance]
                rows[r] = b.shuffle_vector(*pair, ir.Constant(WORDS, first))
                rows[r + distance] = b.shuffle_vector(*pair, ir.Constant(WORDS, second))
        distance *= 2
    return rows


def _copy_values(name: str, is_bfloat16: bool) -> Any:
    """Values at the addresses of a table as panels `[width / PANEL, BLOCK, PANEL]` of float32.

    Arguments: address of the table of `BLOCK` addresses; elements of a value; address of the
    panels.
    """
    size = 2 if is_bfloat16 else 4

    def emit(b: Builder, table: Value, width: Value, out: Value) -> None:
        def key(i: Value, _: list[Value]) -> list[Value]:
            source = load(b, table, b.mul(i, I64(8)), I64)
            to = b.add(out, b.mul(i, I64(PANEL * 4)))

            def panel(c: Value, _: list[Value]) -> list[Value]:
                for half in (0, LANES):
                    at = b.add(source, b.mul(b.add(c, I64(half)), I64(size)))
                    value = _load_widened(b, at, VECTOR, is_bfloat16)
                    store(b, value, to, b.add(b.mul(c, I64(BLOCK * 4)), I64(half * 4)))
                return []

            def tail(c: Value, _: list[Value]) -> list[Value]:
                at = b.add(source, b.mul(c, I64(size)))
                value = _load_widened(b, at, F32, is_bfloat16)
                start = b.and_(c, I64(-PANEL))
                place = b.add(b.mul(start, I64(BLOCK * 4)), b.mul(b.sub(c, start), I64(4)))
                store(b, value, to, place)
                return []

            c, _ = loop(b, I64(0), width, PANEL, [], panel)
            loop(b, c, width, 1, [], tail)
            return []

        loop(b, I64(0), I64(BLOCK), 1, [], key)

    return define(name, "iii", "", emit)


BLOCK = 32
"""Keys of one attention block; blocks are aligned to absolute positions."""


def _softmax_row(b: Builder, scores: Value, valid: Value, state: Value) -> Value:
    """One row of one block of online softmax.

    Arguments: address of `BLOCK` scores, which become weights; how many of them count; address of
    the row's running maximum and, behind it, running sum.

    Returns:
        What the row's output so far has to be multiplied by.
    """
    parts = range(BLOCK // LANES)
    limit = broadcast_word(b, b.trunc(valid, I32))
    kept, values = [], []
    for part in parts:
        lanes = ir.Constant(WORDS, [part * LANES + lane for lane in range(LANES)])
        kept.append(b.icmp_signed("<", lanes, limit))
        values.append(b.select(kept[part], load(b, scores, part * WIDTH), splat(float("-inf"))))
    top = values[0]
    for value in values[1:]:
        top = _larger(b, top, value)
    old = load(b, state, 0, F32)
    new = _larger(b, old, reduce_lanes(b, top, lambda x, y: _larger(b, x, y)))
    wide, total = broadcast(b, new), splat(0.0)
    for part in parts:
        weight = exponential(b, b.fsub(values[part], wide))
        weight = b.select(kept[part], weight, splat(0.0))
        store(b, weight, scores, part * WIDTH)
        total = b.fadd(total, weight)
    factor = exponential(b, b.fsub(old, new))
    added = reduce_lanes(b, total, b.fadd)
    store(b, fused(b, load(b, state, 4, F32), factor, added), state, 4)
    store(b, new, state, 0)
    return factor


def _larger(b: Builder, x: Value, y: Value) -> Value:
    return b.select(b.fcmp_ordered(">", y, x), y, x)


def _scan(name: str, reads: bool, writes: bool, vectors: int) -> Any:
    """One token over a block of `vectors * LANES` columns of a recurrent state.

    With `writes`: `state = decay * state + key_k * delta`, for each row k. With `reads`: two sums
    over k of the (new) state, times the next token's key and query. The sums of one column run
    over k in order, whichever variant computes them.
    Arguments: address and stride of the state; rows; address of memory that is asked for ahead, a
    line per row; with `writes` decay, address of the key, address of delta; with `reads` addresses
    of the next key, the next query and of the two sums.
    """

    def emit(b: Builder, state: Value, ld: Value, rows: Value, ahead: Value, *rest: Value) -> None:
        if writes:
            factor, key, delta_at = rest[:3]
            decay = broadcast(b, factor)
            delta = [load(b, delta_at, v * WIDTH) for v in range(vectors)]
        readers, out = rest[-3:-1], rest[-1]

        def row(k: Value, sums: list[Value]) -> list[Value]:
            at, following = b.mul(k, I64(4)), []
            place = b.add(state, b.mul(k, ld))
            prefetch(b, ahead, b.mul(k, I64(LINE)))
            values = [load(b, place, v * WIDTH) for v in range(vectors)]
            if writes:
                factor = broadcast(b, load(b, key, at, F32))
                values = [
                    fused(b, factor, delta[v], b.fmul(values[v], decay)) for v in range(vectors)
                ]
                for v in range(vectors):
                    store(b, values[v], place, v * WIDTH)
            for which, vector in enumerate(readers if reads else ()):
                factor = broadcast(b, load(b, vector, at, F32))
                following += [
                    fused(b, factor, values[v], sums[which * vectors + v]) for v in range(vectors)
                ]
            return following

        def two(k: Value, sums: list[Value]) -> list[Value]:
            return row(b.add(k, I64(1)), row(k, sums))

        start = [splat(0.0)] * (2 * vectors * reads)
        k, sums = loop(b, I64(0), rows, 2, start, two)
        _, sums = loop(b, k, rows, 1, sums, row)
        for index, value in enumerate(sums):
            store(b, value, out, index * WIDTH)

    return define(name, "iiii" + "fii" * writes + "iii" * reads, "", emit)


def _by_rows(
    b: Builder,
    rows: Value,
    columns: Value,
    group: int,
    before: Callable[[Value], None],
    vectors: Sequence[Value],
    body: Callable[[Value, Value, list[list[Value]]], None],
) -> None:
    """Walk a state `group` whole rows at a time.

    `before` gets the first row of a group. `body` gets the first row, the byte within a row and,
    for each of `vectors`, its numbers of these rows: as vectors, or as float32 in a row's tail.
    """

    def some(count: int) -> Callable[[Value, list[Value]], list[Value]]:
        def run(k: Value, _: list[Value]) -> list[Value]:
            before(k)
            at = b.mul(k, I64(4))
            numbers = [[load(b, b.add(v, at), r * 4, F32) for r in range(count)] for v in vectors]
            spread = [[broadcast(b, number) for number in row] for row in numbers]

            def one(i: Value, factors: list[list[Value]]) -> list[Value]:
                body(k, b.mul(i, I64(4)), factors)
                return []

            i, _ = loop(b, I64(0), columns, LANES, [], lambda i, _: one(i, spread))
            loop(b, i, columns, 1, [], lambda i, _: one(i, numbers))
            return []

        return run

    k, _ = loop(b, I64(0), rows, group, [], some(group))
    if group > 1:
        loop(b, k, rows, 1, [], some(1))


def _decode_read(b: Builder, state: Value, ld: Value, rows: Value, *rest: Value) -> None:
    """Two sums over the rows of a state, times a key and a query: `[2, columns]`.

    Arguments: address and stride of the state; rows; columns; addresses of the key, the query and
    of the sums, which are zero. The sum of a column runs over the rows in order, as in `_scan`.
    """
    columns, key, query, sums = rest
    outs = (sums, b.add(sums, b.mul(columns, I64(4))))

    def ask(k: Value) -> None:
        # Four rows are read side by side; memory is faster when it is asked for front to back.
        base = b.add(b.add(state, b.mul(k, ld)), I64(2 * PREFETCH))

        def line(i: Value, _: list[Value]) -> list[Value]:
            prefetch(b, base, i)
            return []

        loop(b, I64(0), b.mul(ld, I64(4)), LINE, [], line)

    def body(k: Value, at: Value, factors: list[list[Value]]) -> None:
        place = b.add(b.add(state, b.mul(k, ld)), at)
        typ = factors[0][0].type
        values = [load(b, place, b.mul(ld, I64(r)), typ) for r in range(len(factors[0]))]
        for numbers, out in zip(factors, outs, strict=True):
            total = load(b, out, at, typ)
            for number, value in zip(numbers, values, strict=True):
                total = fused(b, number, value, total)
            store(b, total, out, at)

    _by_rows(b, rows, columns, 4, ask, (key, query), body)


def _decode_write(b: Builder, state: Value, ld: Value, rows: Value, *rest: Value) -> None:
    """`state = decay * state + key * delta` over whole rows, in the order of memory.

    Arguments: address and stride of the state; rows; columns; decay; addresses of the key and of
    delta.
    """
    columns, decay, key, delta = rest
    wide = broadcast(b, decay)

    def body(k: Value, at: Value, factors: list[list[Value]]) -> None:
        place = b.add(state, b.add(b.mul(k, ld), at))
        number = factors[0][0]
        kept = wide if number.type == VECTOR else decay
        value = b.fmul(load(b, place, 0, number.type), kept)
        store(b, fused(b, number, load(b, delta, at, number.type), value), place)

    _by_rows(b, rows, columns, 1, lambda _: None, (key,), body)


def _delta_row(b: Builder, sums: Value, value: Value, *rest: Value) -> None:
    """What one token adds to a block of state columns, and what it reads from the new state.

    Arguments: address of the sums over the key and, behind them, over the query; address of the
    value; beta, decay and the dot product of query and key; address of delta; address of the
    output.
    """
    *numbers, delta, out = rest
    beta, decay, query_key = (broadcast(b, number) for number in numbers)
    for v in range(2):
        change = _change(b, load(b, sums, v * WIDTH), load(b, value, v * WIDTH), beta, decay)
        store(b, change, delta, v * WIDTH)
        read = load(b, sums, (2 + v) * WIDTH)
        store(b, _read_out(b, read, change, decay, query_key), out, v * WIDTH)


def _change(b: Builder, known: Value, value: Value, beta: Value, decay: Value) -> Value:
    """What the delta rule adds along the key: the part of the value that is not known yet."""
    return b.fmul(b.fsub(value, b.fmul(decay, known)), beta)


def _read_out(b: Builder, read: Value, change: Value, decay: Value, query_key: Value) -> Value:
    """What the query reads from the new state, from what it read from the old one."""
    return fused(b, query_key, change, b.fmul(decay, read))


def _move_bytes(b: Builder, source: Value, target: Value, count: Value) -> None:
    """Copy bytes; source and target do not overlap."""
    at, to = pointer(b, source), pointer(b, target)
    typ = ir.FunctionType(ir.VoidType(), [at.type, to.type, I64, ir.IntType(1)])
    function = declare(b.module, typ, "llvm.memcpy.p0.p0.i64")
    b.call(function, [to, at, count, ir.IntType(1)(0)])


def _fetch_add(b: Builder, address: Value, amount: Value) -> Value:
    """Add to a counter that threads share; returns what stood there before."""
    return b.atomic_rmw("add", pointer(b, address), amount, "monotonic")


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


def _rotate_row(b: Builder, x: Value, cos: Value, sin: Value, half: Value) -> None:
    """Turn the pairs `(x[i], x[i + half])` of a row in place."""

    def run(i: Value, typ: Any) -> list[Value]:
        at = b.mul(i, I64(4))
        upper = b.add(at, b.mul(half, I64(4)))
        low, high = load(b, x, at, typ), load(b, x, upper, typ)
        c, s = load(b, cos, at, typ), load(b, sin, at, typ)
        store(b, fused(b, low, c, b.fneg(b.fmul(high, s))), x, at)
        store(b, fused(b, high, c, b.fmul(low, s)), x, upper)
        return []

    i, _ = loop(b, I64(0), half, LANES, [], lambda i, _: run(i, VECTOR))
    loop(b, i, half, 1, [], lambda i, _: run(i, F32))


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


def _is_finite(b: Builder, x: Value, count: Value) -> Value:
    """1 where all of a row is finite, else 0; `count` is a multiple of `LANES`."""

    def run(i: Value, sums: list[Value]) -> list[Value]:
        # Zero times a number is zero, and times infinity or NaN it is NaN.
        return [fused(b, load(b, x, b.mul(i, I64(4))), splat(0.0), sums[0])]

    _, sums = loop(b, I64(0), count, LANES, [splat(0.0)], run)
    total = reduce_lanes(b, sums[0], b.fadd)
    return b.zext(b.fcmp_ordered("==", total, splat(0.0, F32)), I64)


def _maximum(b: Builder, x: Value, count: Value) -> Value:
    """The largest value of a row; `-inf` for an empty one."""
    start = splat(float("-inf"), F32)
    step = lambda i, tops, typ: [_larger(b, tops[0], load(b, x, b.mul(i, I64(4)), typ))]  # noqa: E731
    i, tops = loop(
        b, I64(0), count, LANES, [broadcast(b, start)], lambda i, tops: step(i, tops, VECTOR)
    )
    folded = reduce_lanes(b, tops[0], lambda x, y: _larger(b, x, y))
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
is_finite = define("is_finite", "ii", "i", _is_finite)
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
rotate_row = define("rotate_row", "iiii", "", _rotate_row)
conv_row = define("conv_row", "iiiiiii", "", _conv_row)
softmax_row = define("softmax_row", "iii", "f", _softmax_row)
keys_f32 = _transpose_keys("keys_f32", False)
keys_bf16 = _transpose_keys("keys_bf16", True)
values_f32 = _copy_values("values_f32", False)
values_bf16 = _copy_values("values_bf16", True)
delta_row = define("delta_row", "iifffii", "", _delta_row)
decode_read = define("decode_read", "iiiiiii", "", _decode_read)
decode_write = define("decode_write", "iiiifii", "", _decode_write)
scan_read = _scan("scan_read", reads=True, writes=False, vectors=2)
scan_write = _scan("scan_write", reads=False, writes=True, vectors=2)
scan_write_read = _scan("scan_write_read", reads=True, writes=True, vectors=2)

clear_row = _row_map("clear_row", 1, 0, lambda b, x, _: splat(0.0, x[0].type))
copy_row = _row_map("copy_row", 1, 0, lambda b, x, _: x[0])
add_row = _row_map("add_row", 2, 0, lambda b, x, _: b.fadd(x[0], x[1]))
scale_row = _row_map("scale_row", 1, 1, lambda b, x, s: b.fmul(x[0], s[0]))
scale_add_zero = _row_map(
    "scale_add_zero", 1, 1, lambda b, x, s: b.fadd(b.fmul(x[0], s[0]), splat(0.0, x[0].type))
)
add_scaled_row = _row_map("add_scaled_row", 2, 1, lambda b, x, s: fused(b, x[1], s[0], x[0]))
norm_row = _row_map("norm_row", 2, 1, lambda b, x, s: b.fmul(b.fmul(x[0], s[0]), x[1]))
blend_row = _row_map("blend_row", 2, 2, lambda b, x, s: fused(b, x[1], s[1], b.fmul(x[0], s[0])))
shift_row = _row_map("shift_row", 1, 1, lambda b, x, s: b.fsub(x[0], s[0]))
softmax_weights_row = _row_map(
    "softmax_weights_row", 1, 1, lambda b, x, s: exponential(b, b.fsub(x[0], s[0]))
)
silu_mul_row = _row_map(
    "silu_mul_row", 2, 0, lambda b, x, _: b.fmul(b.fmul(x[0], sigmoid(b, x[0])), x[1])
)
gate_row = _row_map("gate_row", 2, 0, lambda b, x, _: b.fmul(x[0], sigmoid(b, x[1])))
gated_norm_row = _row_map(
    "gated_norm_row",
    3,
    1,
    lambda b, x, s: b.fmul(b.fmul(b.fmul(x[0], s[0]), x[1]), b.fmul(x[2], sigmoid(b, x[2]))),
)
change_row = _row_map("change_row", 2, 2, lambda b, x, s: _change(b, *x, *s))
read_out_row = _row_map("read_out_row", 2, 2, lambda b, x, s: _read_out(b, *x, *s))
sigmoid_of = define("sigmoid_of", "f", "f", lambda b, x: sigmoid(b, x))
exp_of = define("exp_of", "f", "f", lambda b, x: exponential(b, x))
