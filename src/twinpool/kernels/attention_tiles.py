"""Micro-kernels of attention: scores and weighted values over a block of KV rows, and softmax.

A block is a table of the addresses of its keys or values, which are read where they lie. Loops over
blocks, heads and lanes are in `attention`. Strides are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from twinpool.kernels.tiles import MAX_ROWS, WIDTH, larger
from twinpool.kernels.vector import (
    F32,
    I16,
    I32,
    I64,
    LANES,
    VECTOR,
    WORDS,
    Builder,
    Value,
    broadcast,
    broadcast_word,
    define,
    exponential,
    fused,
    load,
    loop,
    pointer,
    reduce_lanes,
    splat,
    store,
)

BLOCK = 32
"""Keys of one attention block; blocks are aligned to absolute positions."""

KEYS = 4
"""Keys of one tile of scores: their sums fill one small vector."""

QUERIES = 3 if LANES == 8 else 6
"""Query rows of one tile of scores: what the registers hold, `KEYS` sums each."""

FOUR = ir.VectorType(F32, KEYS)


def _load_widened(b: Builder, address: Value, typ: Any, is_bfloat16: bool) -> Value:
    """Float32 or bfloat16 bits at an address, as float32 of type `typ`."""
    if not is_bfloat16:
        return load(b, address, 0, typ)
    halves, words = (ir.VectorType(I16, LANES), WORDS) if typ == VECTOR else (I16, I32)
    bits = b.zext(b.load(pointer(b, address), align=2, typ=halves), words)
    return b.bitcast(b.shl(bits, splat(16, words)), typ)


def _score_tile(b: Builder, rows: int, is_bfloat16: bool, args: tuple[Value, ...]) -> None:
    """Scores of `rows` queries with the four keys of a table; see `_scores`."""
    table, queries, ldq, width, out, ldo = args
    size = 2 if is_bfloat16 else 4
    keys = [load(b, table, n * 8, I64) for n in range(KEYS)]
    lines = [b.add(queries, b.mul(ldq, I64(r))) for r in range(rows)]

    def chunk(d: Value, sums: list[Value]) -> list[Value]:
        at, offset = b.mul(d, I64(4)), b.mul(d, I64(size))
        query = [load(b, line, at) for line in lines]
        out = list(sums)
        for n, key in enumerate(keys):
            value = _load_widened(b, b.add(key, offset), VECTOR, is_bfloat16)
            for r in range(rows):
                out[r * KEYS + n] = fused(b, query[r], value, sums[r * KEYS + n])
        return out

    def element(d: Value, sums: list[Value]) -> list[Value]:
        at, offset = b.mul(d, I64(4)), b.mul(d, I64(size))
        value: Value = ir.Constant(FOUR, ir.Undefined)
        for n, key in enumerate(keys):
            number = _load_widened(b, b.add(key, offset), F32, is_bfloat16)
            value = b.insert_element(value, number, I32(n))
        return [
            fused(b, _four(b, load(b, line, at, F32)), value, total)
            for line, total in zip(lines, sums, strict=True)
        ]

    d, sums = loop(b, I64(0), width, LANES, [splat(0.0)] * (rows * KEYS), chunk)
    folded = [_fold_four(b, sums[r * KEYS : (r + 1) * KEYS]) for r in range(rows)]
    _, totals = loop(b, d, width, 1, folded, element)
    for r, total in enumerate(totals):
        store(b, total, out, b.mul(ldo, I64(r)))


def _four(b: Builder, number: Value) -> Value:
    """A float32 in each of four lanes."""
    first = b.insert_element(ir.Constant(FOUR, ir.Undefined), number, I32(0))
    lanes = ir.Constant(ir.VectorType(I32, KEYS), [0] * KEYS)
    return b.shuffle_vector(first, ir.Constant(FOUR, ir.Undefined), lanes)


def _fold_four(b: Builder, sums: list[Value]) -> Value:
    """The lanes of four vectors added up, each as `reduce_lanes` does: one small vector."""

    def pick(x: Value, y: Value, lanes: list[int]) -> Value:
        return b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))

    width = LANES
    while width > KEYS:
        width //= 2
        low, high = list(range(width)), list(range(width, 2 * width))
        sums = [b.fadd(pick(x, x, low), pick(x, x, high)) for x in sums]
    # Two rounds of interleaving transpose the square: then lane i of every sum is in one vector.
    first = [pick(sums[n], sums[n + 2], [0, 4, 1, 5]) for n in (0, 1)]
    second = [pick(sums[n], sums[n + 2], [2, 6, 3, 7]) for n in (0, 1)]
    lanes = [
        pick(pair[0], pair[1], order)
        for pair in (first, second)
        for order in ([0, 4, 1, 5], [2, 6, 3, 7])
    ]
    return b.fadd(b.fadd(lanes[0], lanes[2]), b.fadd(lanes[1], lanes[3]))


def _scores(name: str, is_bfloat16: bool) -> Any:
    """`out[i, n] = query i . key n` for the keys of a block.

    Each score is one vector of sums over the key's elements in order, folded in a fixed order, and
    then the elements that fill no vector.
    Arguments: address of the table of `BLOCK` key addresses; query rows; address and stride of the
    queries; elements of a key; address and stride of the scores.
    """

    def emit(
        b: Builder, table: Value, rows: Value, queries: Value, ldq: Value, *rest: Value
    ) -> None:
        width, out, ldo = rest

        def some(count: int) -> Callable[[Value, list[Value]], list[Value]]:
            def run(row: Value, _: list[Value]) -> list[Value]:
                query, to = b.add(queries, b.mul(ldq, row)), b.add(out, b.mul(ldo, row))

                def four(n: Value, _: list[Value]) -> list[Value]:
                    keys, place = b.add(table, b.mul(n, I64(8))), b.add(to, b.mul(n, I64(4)))
                    _score_tile(b, count, is_bfloat16, (keys, query, ldq, width, place, ldo))
                    return []

                loop(b, I64(0), I64(BLOCK), KEYS, [], four)
                return []

            return run

        row, _ = loop(b, I64(0), rows, QUERIES, [], some(QUERIES))
        for count in (2, 1) if QUERIES == 3 else (4, 2, 1):
            row, _ = loop(b, row, rows, count, [], some(count))

    return define(name, "iiiiiii", "", emit)


def _value_tile(
    b: Builder, rows: int, lanes: int, is_bfloat16: bool, args: tuple[Value, ...]
) -> Callable[[Value, list[Value]], list[Value]]:
    """A loop body that adds weighted values to `rows` output rows, `lanes` columns at once."""
    table, count, weights, ldw, out, ldo = args
    size = 2 if is_bfloat16 else 4
    typ, vectors = (VECTOR, lanes // LANES) if lanes > 1 else (F32, 1)

    def columns(c: Value, _: list[Value]) -> list[Value]:
        places = [b.add(b.add(out, b.mul(ldo, I64(r))), b.mul(c, I64(4))) for r in range(rows)]
        offset = b.mul(c, I64(size))

        def key(j: Value, sums: list[Value]) -> list[Value]:
            source = b.add(load(b, table, b.mul(j, I64(8)), I64), offset)
            values = [
                _load_widened(b, b.add(source, I64(v * LANES * size)), typ, is_bfloat16)
                for v in range(vectors)
            ]
            following = []
            for r in range(rows):
                line = b.add(weights, b.mul(ldw, I64(r)))
                weight = load(b, line, b.mul(j, I64(4)), F32)
                factor = broadcast(b, weight) if lanes > 1 else weight
                following += [
                    fused(b, factor, values[v], sums[r * vectors + v]) for v in range(vectors)
                ]
            return following

        def two(j: Value, sums: list[Value]) -> list[Value]:
            return key(b.add(j, I64(1)), key(j, sums))

        start = [load(b, place, v * WIDTH, typ) for place in places for v in range(vectors)]
        j, sums = loop(b, I64(0), count, 2, start, two)
        _, sums = loop(b, j, count, 1, sums, key)
        for r, place in enumerate(places):
            for v in range(vectors):
                store(b, sums[r * vectors + v], place, v * WIDTH)
        return []

    return columns


def _add_values(name: str, is_bfloat16: bool) -> Any:
    """`out[i] += sum over n of weight[i, n] * value n`, one chain over the keys in order.

    Arguments: rows, up to `MAX_ROWS`; address of the table of value addresses; keys; address and
    stride of the weights; address and stride of the output; elements of a value.
    """

    def emit(b: Builder, rows: Value, *args: Value) -> None:
        width = args[-1]
        after = b.append_basic_block("after_values")
        switch = b.switch(rows, after)
        for count in range(1, MAX_ROWS + 1):
            block = b.append_basic_block(f"values_{count}")
            switch.add_case(I64(count), block)
            b.position_at_end(block)
            c: Value = I64(0)
            for lanes in (2 * LANES, LANES, 1):
                tile = _value_tile(b, count, lanes, is_bfloat16, args[:-1])
                c, _ = loop(b, c, width, lanes, [], tile)
            b.branch(after)
        b.position_at_end(after)

    return define(name, "iiiiiiii", "", emit)


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
        top = larger(b, top, value)
    old = load(b, state, 0, F32)
    new = larger(b, old, reduce_lanes(b, top, lambda x, y: larger(b, x, y)))
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


scores_f32 = _scores("scores_f32", False)
scores_bf16 = _scores("scores_bf16", True)
add_values_f32 = _add_values("add_values_f32", False)
add_values_bf16 = _add_values("add_values_bf16", True)
softmax_row = define("softmax_row", "iii", "f", _softmax_row)
rotate_row = define("rotate_row", "iiii", "", _rotate_row)
