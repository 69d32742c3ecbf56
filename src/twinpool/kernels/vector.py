"""Vector code for Numba: scalar and SIMD building blocks written as LLVM instructions.

Numba has no vector types and no explicit fused multiply-add; these intrinsics add what the kernels
need. Every sum has one written order and every fused multiply-add is explicit, so that the bits of
a result depend neither on where a block is inlined nor on how LLVM vectorises around it. Knows no
model, row or slot. Addresses are integers, so that a call from Python passes no array objects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _host_lanes() -> int:
    """Float32 lanes of one register of this processor: 16 with AVX-512, else 8."""
    return 16 if llvm.get_host_cpu_features().get("avx512f", False) else 8


LANES = _host_lanes()
PANEL = 2 * LANES
"""Columns of a packed panel."""

F32 = ir.FloatType()
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
VECTOR = ir.VectorType(F32, LANES)
WORDS = ir.VectorType(I32, LANES)

Builder = Any
Value = Any


def splat(value: float, like: Any = VECTOR) -> ir.Constant:
    """A constant in every lane of type `like`."""
    if isinstance(like, ir.VectorType):
        return ir.Constant(like, [ir.Constant(like.element, value)] * like.count)
    return ir.Constant(like, value)


def broadcast(builder: Builder, scalar: Value) -> Value:
    """A float32 in every lane."""
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, I32(0))
    return builder.shuffle_vector(
        first, ir.Constant(VECTOR, ir.Undefined), ir.Constant(WORDS, [0] * LANES)
    )


def pointer(builder: Builder, address: Value, offset: Value | int = 0) -> Value:
    """The address `address + offset` bytes as a pointer."""
    if isinstance(offset, int):
        offset = I64(offset)
    return builder.inttoptr(builder.add(address, offset), ir.PointerType())


def load(builder: Builder, address: Value, offset: Value | int = 0, typ: ir.Type = VECTOR) -> Value:
    """Load from `address + offset` bytes, of any alignment."""
    return builder.load(pointer(builder, address, offset), align=4, typ=typ)


def store(builder: Builder, value: Value, address: Value, offset: Value | int = 0) -> None:
    """Store to `address + offset` bytes, of any alignment."""
    builder.store(value, pointer(builder, address, offset), align=4)


def call(builder: Builder, name: str, args: Sequence[Value]) -> Value:
    """An LLVM intrinsic over the type of its first argument, which all arguments have."""
    typ = args[0].type
    suffix = f"v{typ.count}f32" if isinstance(typ, ir.VectorType) else "f32"
    function_type = ir.FunctionType(typ, [typ] * len(args))
    return builder.call(declare(builder.module, function_type, f"{name}.{suffix}"), list(args))


def declare(module: ir.Module, function_type: ir.FunctionType, name: str) -> Value:
    """The function of that name in a module, declared if it is not there yet."""
    return module.globals.get(name) or ir.Function(module, function_type, name)


def prefetch(builder: Builder, address: Value, offset: Value | int = 0) -> None:
    """Ask for the cache line at `address + offset` bytes; any address is allowed."""
    place = pointer(builder, address, offset)
    typ = ir.FunctionType(ir.VoidType(), [place.type, I32, I32, I32])
    function = declare(builder.module, typ, "llvm.prefetch.p0")
    builder.call(function, [place, I32(0), I32(1), I32(1)])


def fused(builder: Builder, a: Value, b: Value, c: Value) -> Value:
    """`a * b + c` with one rounding."""
    return call(builder, "llvm.fma", [a, b, c])


def widen(builder: Builder, words: Value) -> tuple[Value, Value]:
    """The two bfloat16 halves of each 32-bit word as float32: low halves, high halves."""
    low = builder.shl(words, splat(16, words.type))
    high = builder.and_(words, splat(-65536, words.type))
    return builder.bitcast(low, VECTOR), builder.bitcast(high, VECTOR)


def round_to_bfloat16(builder: Builder, x: Value) -> Value:
    """The nearest bfloat16, ties to even, still as float32; NaN stays NaN."""
    typ = x.type
    integer = ir.VectorType(I32, typ.count) if isinstance(typ, ir.VectorType) else I32
    bits = builder.bitcast(x, integer)
    odd = builder.and_(builder.lshr(bits, splat(16, integer)), splat(1, integer))
    rounded = builder.add(builder.add(bits, splat(0x7FFF, integer)), odd)
    rounded = builder.and_(rounded, splat(-65536, integer))
    is_nan = builder.fcmp_unordered("uno", x, x)
    rounded = builder.select(is_nan, splat(0x7FC00000, integer), rounded)
    return builder.bitcast(rounded, typ)


def broadcast_word(builder: Builder, word: Value) -> Value:
    """A 32-bit word in every lane."""
    undefined = ir.Constant(WORDS, ir.Undefined)
    first = builder.insert_element(undefined, word, I32(0))
    return builder.shuffle_vector(first, undefined, ir.Constant(WORDS, [0] * LANES))


def reduce_lanes(builder: Builder, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """Fold a vector by halves: lane i with lane i + n/2, and so on; the order is fixed."""
    width = LANES
    while width > 1:
        width //= 2
        undefined = ir.Constant(value.type, ir.Undefined)
        parts = [
            builder.shuffle_vector(
                value, undefined, ir.Constant(ir.VectorType(I32, width), list(lanes))
            )
            for lanes in (range(width), range(width, 2 * width))
        ]
        value = combine(*parts)
    return builder.extract_element(value, I32(0))


def exponential(builder: Builder, x: Value) -> Value:
    """`exp(x)` of a float32 or a vector of them, within 2 units in the last place.

    Below -87.3 it is 0, above 88.3 it stays at exp(88.3); NaN stays NaN.

    Source:
        Cephes `expf` coefficients; n is rounded by the 1.5 * 2^23 trick, which has no poison value.
    """
    typ = x.type
    integer = ir.VectorType(I32, typ.count) if isinstance(typ, ir.VectorType) else I32
    tiny = builder.fcmp_ordered("<", x, splat(-87.3, typ))
    x = builder.select(builder.fcmp_ordered(">", x, splat(88.3, typ)), splat(88.3, typ), x)
    shifted = fused(builder, x, splat(1.4426950408889634, typ), splat(12582912.0, typ))
    n = builder.fsub(shifted, splat(12582912.0, typ))
    r = fused(builder, n, splat(-0.693359375, typ), x)
    r = fused(builder, n, splat(2.12194440e-4, typ), r)
    poly = splat(1.9875691500e-4, typ)
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5):
        poly = fused(builder, poly, r, splat(coefficient, typ))
    poly = fused(builder, poly, builder.fmul(r, r), r)
    poly = builder.fadd(poly, splat(1.0, typ))
    power = builder.shl(
        builder.add(builder.bitcast(shifted, integer), splat(127, integer)), splat(23, integer)
    )
    return builder.select(tiny, splat(0.0, typ), builder.fmul(poly, builder.bitcast(power, typ)))


def loop(
    builder: Builder,
    start: Value,
    stop: Value,
    step: int,
    carried: Sequence[Value],
    body: Callable[[Value, list[Value]], list[Value]],
) -> tuple[Value, list[Value]]:
    """A counted loop that carries values in registers.

    Args:
        builder: Where to emit.
        start: First index, i64.
        stop: Runs while `index + step <= stop`.
        step: Added each round.
        carried: Start values.
        body: From the index and the carried values to the next carried values.

    Returns:
        The index after the loop and the last carried values.
    """
    entry = builder.block
    head, inside = builder.append_basic_block("head"), builder.append_basic_block("body")
    after = builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(I64)
    index.add_incoming(start, entry)
    phis = []
    for value in carried:
        phi = builder.phi(value.type)
        phi.add_incoming(value, entry)
        phis.append(phi)
    go_on = builder.icmp_signed("<=", builder.add(index, I64(step)), stop)
    builder.cbranch(go_on, inside, after)
    builder.position_at_end(inside)
    following = body(index, list(phis))
    index.add_incoming(builder.add(index, I64(step)), builder.block)
    for phi, value in zip(phis, following, strict=True):
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return index, list(phis)


@dataclass(frozen=True, slots=True)
class Definition:
    """One micro-kernel: an LLVM function that kernels call by its name.

    Attributes:
        name: Its symbol.
        function_type: Its LLVM type.
        emit: Gets the builder and the LLVM arguments; gives the LLVM result, or None for nothing.
    """

    name: str
    function_type: ir.FunctionType
    emit: Callable[..., Value]


DEFINITIONS: dict[str, Definition] = {}
"""Every micro-kernel; `library.link` compiles them, once for all kernels."""


def define(name: str, arguments: str, returns: str, emit: Callable[..., Value]) -> Any:
    """A Numba intrinsic that calls a micro-kernel.

    The micro-kernel is compiled apart from the kernels that call it: nothing around it can change
    the order of its operations, and it is compiled once.

    Args:
        name: Of the LLVM function.
        arguments: One letter per argument: `i` int64 (also an address), `f` float32.
        returns: One such letter, or "" for nothing.
        emit: As in `Definition`.
    """
    letters = {"i": I64, "f": F32, "": ir.VoidType()}
    function_type = ir.FunctionType(letters[returns], [letters[a] for a in arguments])
    definition = Definition(f"twinpool_{name}", function_type, emit)
    assert definition.name not in DEFINITIONS, f"{name} is defined twice"
    DEFINITIONS[definition.name] = definition

    def codegen(context: Any, builder: Builder, _: Any, args: Sequence[Value]) -> Value:
        function = declare(builder.module, function_type, definition.name)
        result = builder.call(function, list(args))
        return result if returns else context.get_dummy_value()

    return _intrinsic(_signature(arguments, returns), codegen)


def define_inline(arguments: str, returns: str, emit: Callable[..., Value]) -> Any:
    """As `define`, for one or two instructions that are emitted where they are used."""
    signature = _signature(arguments, returns)

    def codegen(context: Any, builder: Builder, _: Any, args: Sequence[Value]) -> Value:
        result = emit(builder, *args)
        return result if returns else context.get_dummy_value()

    return _intrinsic(signature, codegen)


def _signature(arguments: str, returns: str) -> Any:
    letters = {"i": types.int64, "f": types.float32, "": types.void}
    return letters[returns](*[letters[letter] for letter in arguments])


def _intrinsic(signature: Any, codegen: Callable[..., Value]) -> Any:
    """A Numba intrinsic of a fixed signature."""

    def typing(*_: Any) -> Any:
        return signature, codegen

    # Numba counts an intrinsic's arguments by its Python signature.
    names = ["context", *(f"a{index}" for index in range(len(signature.args)))]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in names]
    typing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return intrinsic(typing)
