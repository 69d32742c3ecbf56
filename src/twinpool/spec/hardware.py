"""Accelerators known by name: memory, bandwidth, peak rates and the link to the host.

Knows no model and asks no driver; the facts are in `hardware.json`, each row with its source.
Rates are the vendors' peaks, dense, not sparse. Memory is what the driver reports as total where
that is established: for an H100 "80 GB" it is 81559 MiB. Elsewhere it is the nominal figure, read
as GiB: such memory is built in powers of two, and a driver keeps a little of it, so that figure is
an upper bound.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from twinpool.errors import ConfigError
from twinpool.units import GIB, MIB

_VENDORS = ("nvidia", "geforce", "amd", "instinct", "intel")
_NEAREST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One accelerator, or `cpu`. None stands for what must be measured or given.

    Attributes:
        name: The name that flags use, for example `H100-SXM`.
        aliases: Other names, those that drivers report included.
        memory_bytes: Memory of one device.
        reported_mib: Total memory that the driver reports, in MiB; None where `memory_bytes` is
            nominal.
        bandwidth_bytes_per_s: Peak memory bandwidth.
        peak_bf16_flops: Peak rate of dense bfloat16 products, in operations per second.
        peak_fp8_flops: Peak rate of dense fp8 products; None also where there are none.
        host_link_bytes_per_s: Peak rate to the host, one direction, per device; None also where
            the device shares the host's memory.
        source: Where the figures come from.
    """

    name: str
    aliases: tuple[str, ...] = ()
    memory_bytes: int | None = None
    reported_mib: int | None = None
    bandwidth_bytes_per_s: int | None = None
    peak_bf16_flops: int | None = None
    peak_fp8_flops: int | None = None
    host_link_bytes_per_s: int | None = None
    source: str


def find_hardware(name: str) -> Hardware:
    """Return an accelerator by name.

    Args:
        name: In any case, with or without the vendor, hyphens or blanks: `h100`, `H100 SXM`,
            `NVIDIA H100 80GB HBM3`.

    Raises:
        ConfigError: If it is not known; the hint gives the nearest names.
    """
    found = _BY_NAME.get(_key(name))
    if found is not None:
        return found
    close = difflib.get_close_matches(_key(name), _BY_NAME, n=4 * _NEAREST, cutoff=0.4)
    # Several spellings may lead to one device, which is to be named once.
    near = list(dict.fromkeys(_BY_NAME[spelling].name for spelling in close))[:_NEAREST]
    known = ", ".join(near or [device.name for device in HARDWARE])
    raise ConfigError(
        f"hardware {name[:80]!r} is not one of the {len(HARDWARE)} that are known",
        hint=f"{'nearest' if near else 'known'}: {known}; or give the memory in bytes",
    )


def _key(name: str) -> str:
    """Return a name's letters and digits, without the vendor's name before them."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    for vendor in _VENDORS:
        plain = plain.removeprefix(vendor)
    return plain


def _device(row: dict[str, Any]) -> Hardware:
    """Return the device of one row, which gives its memory as reported MiB or as nominal GiB."""
    facts = {name: value for name, value in row.items() if name != "nominal_gib"}
    facts["aliases"] = tuple(facts["aliases"])
    if "reported_mib" in row:
        facts["memory_bytes"] = row["reported_mib"] * MIB
    elif "nominal_gib" in row:
        facts["memory_bytes"] = row["nominal_gib"] * GIB
    return Hardware(**facts)


def _load() -> tuple[Hardware, ...]:
    table = resources.files(__package__).joinpath("hardware.json").read_text(encoding="utf-8")
    return tuple(_device(row) for row in json.loads(table))


HARDWARE = _load()
_BY_NAME = {
    _key(spelling): device for device in HARDWARE for spelling in (device.name, *device.aliases)
}
