"""The physical pools: the memory of rows and slots, and each layer's view into it.

Knows no allocator and no request: units are addressed by index, and whoever owns an index may use
it. Rows `0 .. page_size - 1` and slot 0 are padding sinks, allocated and never handed out.

    KV pool     row:   | layer 3: keys, values | layer 7: keys, values | ...
    state pool  slot:  | recurrent, every linear layer | conv, every linear layer | to 64 bytes |

In an arena both pools are views of the same memory: slot `s` is the rows from `s * n` to
`(s + 1) * n - 1`, and rows `0 .. n - 1` are the padding sink of both.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from twinpool.errors import ConfigError
from twinpool.kernels.views import FloatOrBits, KvView, StateView
from twinpool.models.blocks import LayerView
from twinpool.scheduling.plan import CopyState, MemoryAction, MoveRows, ZeroState
from twinpool.spec.geometry import Geometry
from twinpool.spec.layer import GatedDeltaSpec, GqaSpec
from twinpool.spec.model import ModelSpec
from twinpool.units import DType, format_bytes

ALIGNMENT = 64
# All bits set is a NaN in float32 and in bfloat16.
_POISON = 0xFF

Bytes = npt.NDArray[np.uint8]


class Pools:
    """The memory of one model's KV pool and state pool.

    Args:
        spec: The model, with the dtype that its weights have in memory.
        geometry: Bytes of a row and a slot, of the same model on one rank.
        num_rows: Rows that can be handed out, without the padding page.
        num_slots: Slots that can be handed out, without slot 0.
        page_size: Rows of the padding page.
        poison: Fill all memory with NaN at first, and new rows and slots before they are written,
            so that a read before the write shows in the logits.
        rows_per_slot: Rows of an arena's frame, by which both kinds share memory; `num_rows` is
            then those of `num_slots` frames. None: each kind has its own memory.

    Raises:
        ConfigError: If a dtype is not one that the kernels read, a slot is no run of aligned rows,
            or there is not enough memory.
    """

    def __init__(
        self,
        spec: ModelSpec,
        geometry: Geometry,
        *,
        num_rows: int,
        num_slots: int,
        page_size: int = 1,
        poison: bool = False,
        rows_per_slot: int | None = None,
    ) -> None:
        _check_dtypes(spec, geometry)
        self.geometry = geometry
        self.num_rows = num_rows
        self.num_slots = num_slots
        self.page_size = page_size
        self.poison = poison
        if rows_per_slot is None:
            # Only the padding at a slot's end differs from `geometry.slot_bytes`: below 64 bytes.
            stride = -(-geometry.slot_bytes // ALIGNMENT) * ALIGNMENT
            self._rows = _allocate(num_rows + page_size, geometry.row_bytes, poison)
            self._slots = _allocate(num_slots + 1, stride, poison)
        else:
            _check_frames(geometry, num_rows, num_slots, page_size, rows_per_slot)
            self._slots = _allocate(num_slots + 1, rows_per_slot * geometry.row_bytes, poison)
            self._rows = self._slots.reshape(-1, geometry.row_bytes)
        self.views = _views(spec, geometry, self._rows, self._slots)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV pool, padding page included; of an arena, all of it."""
        return self._rows.nbytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the state pool, slot 0 included; of an arena, all of it, the same bytes."""
        return self._slots.nbytes

    def apply(self, actions: Iterable[MemoryAction]) -> None:
        """Carry out memory actions in order.

        Changes:
            The target slot or rows of each action; with `poison`, the source rows of a move.
        """
        for action in actions:
            match action:
                case ZeroState(slot):
                    self._slots[slot] = 0
                case CopyState(source, target):
                    self._slots[target] = self._slots[source]
                case MoveRows(sources, targets):
                    self._rows[targets] = self._rows[sources]
                    if self.poison:
                        self._rows[sources] = _POISON

    def poison_rows(self, rows: npt.NDArray[np.int32]) -> None:
        """Fill rows with NaN: whoever reads them before writing them shows."""
        self._rows[rows] = _POISON

    def poison_slots(self, slots: npt.NDArray[np.int32]) -> None:
        """Fill slots with NaN: whoever reads them before writing them shows."""
        self._slots[slots] = _POISON

    def row_bytes_of(self, row: int) -> Bytes:
        """Return a copy of the bytes of one row, for tests and for back-up."""
        row_bytes: Bytes = self._rows[row].copy()
        return row_bytes

    def slot_bytes_of(self, slot: int) -> Bytes:
        """Return a copy of the bytes of one slot without its padding, for tests and for back-up."""
        slot_bytes: Bytes = self._slots[slot, : self.geometry.slot_bytes].copy()
        return slot_bytes


def _check_dtypes(spec: ModelSpec, geometry: Geometry) -> None:
    if geometry.state_dtype is not DType.FLOAT32:
        raise ConfigError(
            f"recurrent states cannot be kept in {geometry.state_dtype.value}", hint="use float32"
        )
    for name, dtype in (("rows", geometry.kv_dtype), ("conv states", geometry.conv_dtype)):
        if dtype not in (DType.FLOAT32, DType.BFLOAT16):
            raise ConfigError(
                f"{name} cannot be kept in {dtype.value}", hint="use bfloat16 or float32"
            )


def _check_frames(
    geometry: Geometry, num_rows: int, num_slots: int, page_size: int, rows_per_slot: int
) -> None:
    """Check that a frame holds a slot, whole pages and whole cache lines, and the counts agree."""
    frame_bytes = rows_per_slot * geometry.row_bytes
    if (
        not 0 < geometry.slot_bytes <= frame_bytes
        or frame_bytes % ALIGNMENT
        or rows_per_slot % page_size
        or num_rows != num_slots * rows_per_slot
    ):
        raise ConfigError(
            f"{num_slots} frames of {rows_per_slot} rows, {geometry.row_bytes} bytes each, are no "
            f"arena for slots of {geometry.slot_bytes} bytes and {num_rows} rows in pages of "
            f"{page_size}",
            hint="take the rows of a frame from twinpool.memory.arena.rows_per_slot",
        )


def _allocate(num_units: int, unit_bytes: int, poison: bool) -> Bytes:
    """Return zeroed memory that the system commits page by page as it is touched."""
    size = num_units * unit_bytes
    if size == 0:
        return np.zeros((num_units, unit_bytes), np.uint8)
    try:
        # Private: shared anonymous memory gets no huge pages.
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"{format_bytes(size)} of pool memory cannot be had: {error}",
            hint="lower --pool-memory",
        ) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Scattered rows miss the TLB less with huge pages; a kernel without them says no.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    units = np.frombuffer(memory, np.uint8).reshape(num_units, unit_bytes)
    if poison:
        units.fill(_POISON)
    return units


def _views(spec: ModelSpec, geometry: Geometry, rows: Bytes, slots: Bytes) -> tuple[LayerView, ...]:
    """Return one view per layer, in the order of the layers."""
    kv = _typed(rows, geometry.kv_dtype)
    recurrent = slots.view(np.float32)
    conv = _typed(slots, geometry.conv_dtype)
    row_offset = recurrent_offset = 0
    conv_offset = geometry.recurrent_bytes // geometry.conv_dtype.itemsize
    views: list[LayerView] = []
    for layer in spec.layers:
        if isinstance(layer, GqaSpec):
            keys = layer.key_elements(geometry.tp)
            view: LayerView = KvView(
                pool=kv,
                k_offset=row_offset,
                v_offset=row_offset + keys,
                num_heads=keys // layer.key_width,
                key_width=layer.key_width,
                value_width=layer.value_width,
            )
            row_offset += keys + layer.value_elements(geometry.tp)
        else:
            assert isinstance(layer, GatedDeltaSpec)
            view = StateView(
                recurrent=recurrent,
                recurrent_offset=recurrent_offset,
                conv=conv,
                conv_offset=conv_offset,
                num_key_heads=layer.num_key_heads // geometry.tp,
                num_value_heads=layer.num_value_heads // geometry.tp,
                key_width=layer.key_width,
                value_width=layer.value_width,
                conv_width=layer.conv_width,
            )
            recurrent_offset += layer.recurrent_elements(geometry.tp)
            conv_offset += layer.conv_elements(geometry.tp)
        views.append(view)
    assert row_offset * geometry.kv_dtype.itemsize == geometry.row_bytes
    assert recurrent_offset * 4 == geometry.recurrent_bytes
    assert conv_offset * geometry.conv_dtype.itemsize == geometry.slot_bytes
    return tuple(views)


def _typed(units: Bytes, dtype: DType) -> FloatOrBits:
    """Return the same memory as float32, or as the bits of bfloat16."""
    return units.view(np.float32) if dtype is DType.FLOAT32 else units.view(np.uint16)
