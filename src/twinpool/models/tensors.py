"""Where a family takes its tensors from: a manifest that notes them, then the checkpoint.

Knows no family. A family's reading code runs twice: once against `Manifest`, so that everything
missing, misshapen or left over is told before a single byte is read, then against `TensorReader`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from typing import Protocol

import torch

from twinpool.errors import ConfigError
from twinpool.models.checkpoint import Checkpoint
from twinpool.units import format_bytes

_log = logging.getLogger(__name__)
_SHOWN = 5

# What serving text does not need: draft layers, the vision tower, buffers that are recomputed.
SKIPPED_PREFIXES = ("mtp.", "model.mtp.", "visual.", "model.visual.")
SKIPPED_SUFFIXES = (".rotary_emb.inv_freq",)

Progress = Callable[[int, int], None]


class TensorSource(Protocol):
    """Gives tensors by name."""

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return one tensor of the given shape; each is taken once."""
        ...

    def has(self, name: str) -> bool:
        """Return whether the checkpoint holds a tensor."""
        ...


class Manifest:
    """Notes the tensors that are asked for and gives shapes without data.

    Args:
        held: Names that are there, for families that take one of two forms.

    Attributes:
        shapes: What was asked for so far, by name.
    """

    def __init__(self, held: Container[str] = ()) -> None:
        self._held = held
        self.shapes: dict[str, tuple[int, ...]] = {}

    def has(self, name: str) -> bool:
        """Return whether a tensor is there."""
        return name in self._held

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Note a name and its shape.

        Returns:
            A tensor without data, on torch's meta device.
        """
        self.shapes[name] = shape
        return torch.empty(shape, device="meta")

    def check(self, held: Checkpoint, also_skipped: Iterable[str] = ()) -> int:
        """Compare what was asked for with what a checkpoint holds.

        Args:
            held: The checkpoint.
            also_skipped: Names that may be there and are not needed.

        Returns:
            Bytes of the tensors that will be read.

        Raises:
            ConfigError: If tensors are missing, have other shapes, or are there and not known.
        """
        missing = [name for name in self.shapes if name not in held]
        if missing:
            raise ConfigError(
                f"the checkpoint lacks {len(missing)} of {len(self.shapes)} tensors: "
                f"{_names(missing)}",
                hint="config.json and the weights do not belong together, or the download is "
                "incomplete",
            )
        self._check_shapes(held)
        rest = [name for name in held if name not in self.shapes]
        skipped = [name for name in rest if _is_skipped(name) or name in set(also_skipped)]
        unknown = sorted(set(rest) - set(skipped))
        if unknown:
            raise ConfigError(
                f"the checkpoint holds {len(unknown)} tensors that the model has no place for: "
                f"{_names(unknown)}",
                hint="config.json and the weights do not belong together",
            )
        if skipped:
            num_bytes = sum(held.entry(name).num_bytes for name in skipped)
            _log.info(
                "skipped %d tensors (%s) that serving text does not need: %s",
                len(skipped),
                format_bytes(num_bytes),
                _names(sorted(skipped)),
            )
        return sum(held.entry(name).num_bytes for name in self.shapes)

    def _check_shapes(self, held: Checkpoint) -> None:
        wrong = [
            f"{name} is {list(held.entry(name).shape)} instead of {list(shape)}"
            for name, shape in self.shapes.items()
            if held.entry(name).shape != shape
        ]
        if wrong:
            raise ConfigError(
                f"{len(wrong)} tensors have another shape than config.json says: {_names(wrong)}",
                hint="config.json and the weights do not belong together",
            )


class TensorReader:
    """Reads the tensors of a checkpoint that a manifest has checked.

    Args:
        checkpoint: Where they are.
        total_bytes: What `Manifest.check` returned.
        progress: Called with bytes read so far and in all, after each tensor.
    """

    def __init__(
        self, checkpoint: Checkpoint, total_bytes: int, progress: Progress | None = None
    ) -> None:
        self._checkpoint = checkpoint
        self._total_bytes = total_bytes
        self._read_bytes = 0
        self._progress = progress

    def has(self, name: str) -> bool:
        """Return whether the checkpoint holds a tensor."""
        return name in self._checkpoint

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Read one tensor.

        Returns:
            The tensor in the dtype of the file; it may map the file and is not to be written.

        Raises:
            ConfigError: If the file cannot be read.
        """
        tensor = self._checkpoint.read(name)
        assert tuple(tensor.shape) == shape
        self._read_bytes += self._checkpoint.entry(name).num_bytes
        if self._progress is not None:
            self._progress(self._read_bytes, self._total_bytes)
        return tensor


def _is_skipped(name: str) -> bool:
    return name.startswith(SKIPPED_PREFIXES) or name.endswith(SKIPPED_SUFFIXES)


def _names(names: list[str]) -> str:
    """List the first few names, and how many more there are."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown}, and {len(names) - _SHOWN} more"
