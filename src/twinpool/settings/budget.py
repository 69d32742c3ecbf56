"""The bytes for both pools on a machine that is not there: from a GPU's facts and the weights.

Pure arithmetic with the provenance of each part; asks no machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from twinpool.errors import CapacityError, ConfigError
from twinpool.settings.resolve import Resolved
from twinpool.settings.values import Source, Value
from twinpool.spec.hardware import Hardware
from twinpool.units import GIB, MIB, format_bytes

# GPU memory in GiB up to which a row applies, prefill chunk in tokens, largest decode graph batch
# below and from tensor parallel 4 on.
_ENGINE_DEFAULTS = (
    (20, 2048, 8, 8),
    (35, 4096, 48, 160),
    (60, 4096, 32, 160),
    (90, 8192, 256, 512),
    (160, 8192, 256, 512),
    (None, 16384, 512, 512),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAsk:
    """What is known of the memory that both pools are to be cut from.

    Attributes:
        after_weights_bytes: Bytes per rank that the weights leave at the static fraction; None
            when they follow from the hardware.
        hardware: The GPU; None when the bytes are given.
        num_gpus: GPUs for this model, all copies of it; None: one copy.
        weights: Bytes of the weights of one copy, with how they were got; None when not known.
    """

    after_weights_bytes: int | None = None
    hardware: Hardware | None = None
    num_gpus: int | None = None
    weights: Value[int] | None = None


def rest_bytes(ask: MemoryAsk, resolved: Resolved) -> tuple[Value[int], dict[str, Value[object]]]:
    """Work out the bytes per rank for both pools.

    Args:
        ask: What is known.
        resolved: The settings; ranks and static fraction count.

    Returns:
        The bytes, and the numbers that they were worked out from, by name.

    Raises:
        ConfigError: If neither the bytes nor hardware with memory are given, or GPUs and ranks do
            not go together.
        CapacityError: If the weights leave nothing.
    """
    ranks = resolved.scheduling.tp * resolved.scheduling.pp
    parts: dict[str, Value[object]] = {}
    if ask.num_gpus is not None and ask.num_gpus % ranks:
        raise ConfigError(
            f"--num-gpus is {ask.num_gpus}, and one copy of the model takes {ranks} "
            "(--tp times --pp)",
            hint=f"use a multiple of {ranks}, or change --tp",
        )
    if ask.after_weights_bytes is not None:
        if ask.hardware is not None:
            raise ConfigError(
                "--memory-after-weights and --gpu both size the pools", hint="give one of them"
            )
        return Value(ask.after_weights_bytes, Source.FLAG, "--memory-after-weights"), parts
    if ask.hardware is None or ask.hardware.memory_bytes is None:
        raise ConfigError(
            "nothing says how much memory both pools may take"
            if ask.hardware is None
            else f"{ask.hardware.name} has no memory size of its own",
            hint="give --memory-after-weights 62.4GiB (per rank), or --gpu NAME with "
            "--weights-bytes",
        )
    if ask.weights is None:
        raise ConfigError(
            "the size of the weights is not known",
            hint="give --weights-bytes, for example 54GB, or a folder with safetensors",
        )
    return _from_hardware(ask.hardware, ask.weights, resolved, ranks, parts)


def _from_hardware(
    hardware: Hardware,
    weights: Value[int],
    resolved: Resolved,
    ranks: int,
    parts: dict[str, Value[object]],
) -> tuple[Value[int], dict[str, Value[object]]]:
    total = hardware.memory_bytes
    assert total is not None
    fraction = resolved.values["mem_fraction_static"]
    static: Value[Fraction]
    if fraction.source.is_explicit:
        static = Value(resolved.memory.mem_fraction_static, fraction.source)
    else:
        static = default_fraction(total, resolved)
    per_rank = -(-weights.value // ranks)
    rest = math.floor(total * static.value) - per_rank
    parts["gpu_memory_bytes"] = Value(total, Source.CATALOG, hardware.name)
    parts["mem_fraction_static"] = Value(static.value, static.source, static.why)
    parts["weights_bytes"] = Value(weights.value, weights.source, weights.why)
    parts["weights_bytes_per_rank"] = Value(per_rank, Source.DERIVED, f"over {ranks} ranks")
    if rest < 1:
        least = math.ceil(1000 * Fraction(per_rank, total)) / 1000
        raise CapacityError(
            f"the weights take {format_bytes(per_rank)} per rank, and "
            f"{float(static.value):g} of {format_bytes(total)} is "
            f"{format_bytes(math.floor(total * static.value))}, which leaves nothing for the pools",
            hint=f"raise --mem-fraction-static above {least:g}, or split over more ranks with --tp"
            if least < 1
            else "split the model over more ranks with --tp, or take a larger GPU",
        )
    why = f"{float(static.value):g} of {hardware.name}'s memory, less the weights"
    return Value(rest, Source.DERIVED, why), parts


def memory_notes(ask: MemoryAsk, resolved: Resolved, architecture: str) -> tuple[str, ...]:
    """Say what of the memory's side has no effect, and what the bytes stand for.

    Args:
        ask: What is known of the memory.
        resolved: The settings.
        architecture: The model's class, as its config names it.

    Returns:
        One line each.
    """
    ranks = resolved.scheduling.tp * resolved.scheduling.pp
    static, chunk = (
        resolved.values[name].source.is_explicit
        for name in ("mem_fraction_static", "chunked_prefill_size")
    )
    notes = []
    if ask.after_weights_bytes is not None:
        has_weights = ask.weights is not None and ask.weights.source is Source.FLAG
        notes += [
            f"{name} has no effect: --memory-after-weights says what is left"
            for name, is_given in (
                ("mem_fraction_static", static),
                ("weights_bytes", has_weights),
                ("chunked_prefill_size", chunk),
            )
            if is_given
        ]
    elif static and chunk:
        notes.append("chunked_prefill_size has no effect: --mem-fraction-static is given")
    elif not static and architecture.endswith("ForConditionalGeneration"):
        notes.append(
            "the assumed static fraction leaves no room for a vision part, for which the reference "
            "engine lowers it by some 0.07: --mem-fraction-static sets it"
        )
    copies = (ask.num_gpus or ranks) // ranks
    if copies > 1:
        notes.append(
            f"{ask.num_gpus} GPUs hold {copies} copies of the model: every number is of one copy, "
            "and so is the workload"
        )
    return tuple(notes)


def default_fraction(total_bytes: int, resolved: Resolved) -> Value[Fraction]:
    """Guess the static fraction as the reference engine does when nobody gives it.

    Args:
        total_bytes: The GPU's memory.
        resolved: The settings; ranks, and the prefill chunk when it is given.

    Source: the reference engine's `memory_hook`: activations by the prefill chunk, decode graphs
    by the batch, at least 10 GiB on large GPUs. What backends reserve beyond that is left out.
    """
    tp, pp = resolved.scheduling.tp, resolved.scheduling.pp
    total_mib = total_bytes // MIB
    row = next(row for row in _ENGINE_DEFAULTS if row[0] is None or total_bytes < row[0] * GIB)
    chunk = resolved.values["chunked_prefill_size"]
    tokens = resolved.scheduling.chunked_prefill_size if chunk.source.is_explicit else row[1]
    batch = row[2] if tp < 4 else row[3]
    asked = resolved.scheduling.max_running_requests
    batch = batch if asked is None else min(batch, asked)
    reserved = 512 + Fraction(3, 2) * max(tokens, 2048) + Fraction(tp * pp, 8) * 1024 + 2 * batch
    if total_mib > 60 * 1024:
        reserved = max(reserved, Fraction(10 * 1024))
    exact = (total_mib - reserved) / total_mib
    return Value(
        max(Fraction(round(exact * 1000), 1000), Fraction(1, 1000)),
        Source.ASSUMED,
        "the reference engine's default for this much memory",
    )
