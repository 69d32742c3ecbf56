"""Micro-kernels of the gated delta rule: conv rows, and scans over blocks or rows of a state.

Each works on addresses and does one token of one block; loops over tokens, heads and lanes are in
`delta`. Strides are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twinpool.kernels.tiles import LINE, PREFETCH, WIDTH, row_map, sigmoid
from twinpool.kernels.vector import (
    F32,
    I64,
    LANES,
    VECTOR,
    Builder,
    Value,
    broadcast,
    define,
    fused,
    load,
    loop,
    prefetch,
    round_to_bfloat16,
    splat,
    store,
)


def _conv_row(b: Builder, taps: Value, table: Value, w: Value, ldw: Value, *rest: Value) -> None:
    """`out = silu(sum over taps of column * weight)`, over `count` channels.

    Arguments: taps; address of a table of `taps` column addresses; address and stride of the
    weights `[taps, count]`; address of the output; count; non-zero to round columns to bfloat16.
    """
    out, count, rounds = rest
    is_rounding = b.icmp_signed("!=", rounds, I64(0))

    def run(i: Value, typ: Any) -> list[Value]:
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


def _scan(name: str, reads: bool, writes: bool, vectors: int) -> Any:
    """One token over a block of `vectors * LANES` columns of a recurrent state.

    With `writes`: `state = decay * state + key_k * delta`, for each row k. With `reads`: two sums
    over k of the (new) state, times the next token's key and query. The sums of one column run
    over k in order, whichever variant computes them.
    Arguments: address and stride of the state; rows; with `writes` decay, address of the key,
    address of delta; with `reads` addresses of the next key, the next query and of the two sums.
    """

    def emit(b: Builder, state: Value, ld: Value, rows: Value, *rest: Value) -> None:
        if writes:
            factor, key, delta_at = rest[:3]
            decay = broadcast(b, factor)
            delta = [load(b, delta_at, v * WIDTH) for v in range(vectors)]
        readers, out = rest[-3:-1], rest[-1]

        def row(k: Value, sums: list[Value]) -> list[Value]:
            at, following = b.mul(k, I64(4)), []
            place = b.add(state, b.mul(k, ld))
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

    return define(name, "iii" + "fii" * writes + "iii" * reads, "", emit)


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


conv_row = define("conv_row", "iiiiiii", "", _conv_row)
scan_read = _scan("scan_read", reads=True, writes=False, vectors=2)
scan_write = _scan("scan_write", reads=False, writes=True, vectors=2)
scan_write_read = _scan("scan_write_read", reads=True, writes=True, vectors=2)
delta_row = define("delta_row", "iifffii", "", _delta_row)
decode_read = define("decode_read", "iiiiiii", "", _decode_read)
decode_write = define("decode_write", "iiiifii", "", _decode_write)
change_row = row_map("change_row", 2, 2, lambda b, x, s: _change(b, *x, *s))
read_out_row = row_map("read_out_row", 2, 2, lambda b, x, s: _read_out(b, *x, *s))
