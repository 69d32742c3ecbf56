"""A folder of safetensors files, checked before use and read one tensor at a time.

Knows nothing of model families: names, shapes and bytes only. It never runs code from a checkpoint,
never leaves its folder, and holds no tensor after handing it out.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from twinpool.errors import ConfigError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_MAX_HEADER_BYTES = 100 * 2**20


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor stands.

    Attributes:
        shape: Its sizes.
        dtype: The name that safetensors uses: `F32`, `BF16`, `F16`, others cannot be read.
        num_bytes: Its bytes in the file.
        file: Path of the file that holds it.
    """

    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    file: Path


class Checkpoint:
    """The tensors of one Hugging Face folder: a single file, or shards behind an index.

    Args:
        folder: The folder.

    Raises:
        ConfigError: If there are no weights, an index names a file that is missing or lies outside
            the folder, a file is damaged or shorter than its header says, or the index and the
            files disagree.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: dict[str, TensorEntry] = {}
        self._open_name: Path | None = None
        self._open_file: Any = None
        index = folder / INDEX_NAME
        if index.is_file():
            self._read_index(index)
        elif (folder / SINGLE_NAME).is_file():
            self._entries = read_header(folder / SINGLE_NAME)
        else:
            raise ConfigError(
                f"{folder} holds neither {SINGLE_NAME} nor {INDEX_NAME}",
                hint="pass a folder in Hugging Face layout with safetensors weights",
            )

    def _read_index(self, index: Path) -> None:
        """Fill the entries from the index, after checking that every shard holds what it should."""
        files = _weight_map(index)
        shards = {
            name: read_header(_inside(self.folder, name)) for name in sorted(set(files.values()))
        }
        for tensor, file in files.items():
            entry = shards[file].pop(tensor, None)
            if entry is None:
                raise ConfigError(
                    f"{index.name} says that {file} holds {tensor!r}, and it does not",
                    hint="the download is incomplete or mixed; fetch the folder again",
                )
            self._entries[tensor] = entry
        for name, rest in shards.items():
            if rest:
                raise ConfigError(
                    f"{name} holds {len(rest)} tensors that {index.name} does not list, "
                    f"the first is {min(rest)!r}",
                    hint="the download is incomplete or mixed; fetch the folder again",
                )

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, name: str) -> TensorEntry:
        """Return shape, dtype and place of a tensor that is there."""
        return self._entries[name]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.num_bytes for entry in self._entries.values())

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor into memory.

        Args:
            name: A tensor that is there.

        Returns:
            A tensor in the dtype of the file; it may map the file and is not to be written.

        Raises:
            ConfigError: If its dtype is not float32, bfloat16 or float16, or the file is damaged.
        """
        entry = self._entries[name]
        if entry.dtype not in _DTYPES:
            raise ConfigError(
                f"{name} in {entry.file.name} has dtype {entry.dtype}",
                hint="F32, BF16 and F16 can be read; quantized checkpoints are not supported",
            )
        try:
            if self._open_name != entry.file:
                self.close()
                self._open_file = _open(entry.file)
                self._open_name = entry.file
            tensor: torch.Tensor = self._open_file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{entry.file.name} cannot be read: {error}") from error
        return tensor

    def close(self) -> None:
        """Close the file that is open, if one is; reading opens it again."""
        if self._open_file is not None:
            self._open_file.__exit__(None, None, None)
        self._open_file = self._open_name = None


def _open(path: Path) -> Any:
    """Open a safetensors file; safetensors carries no types for its context manager."""
    file: Any = safe_open(path, framework="pt", device="cpu")
    return file.__enter__()


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Read the header of one safetensors file and check it against the file's size.

    Args:
        path: The file.

    Returns:
        Its tensors by name.

    Raises:
        ConfigError: If the file is missing, damaged or shorter than its header says.
    """
    again = "the file is damaged or its download stopped early; fetch it again"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            if len(prefix) < 8:
                raise ConfigError(f"{path.name} has {size} bytes, too few for a header", hint=again)
            (length,) = struct.unpack("<Q", prefix)
            if length > min(size - 8, _MAX_HEADER_BYTES):
                raise ConfigError(
                    f"{path.name} announces a header of {length} bytes and has {size} in all",
                    hint=again,
                )
            header = json.loads(file.read(length))
    except OSError as error:
        raise ConfigError(f"{path.name} cannot be opened: {error.strerror}", hint=again) from error
    except ValueError as error:
        raise ConfigError(f"the header of {path.name} is not JSON: {error}", hint=again) from error
    return _entries(path, header, size - 8 - length, again)


def _entries(path: Path, header: Any, data_bytes: int, again: str) -> dict[str, TensorEntry]:
    """Turn a parsed header into entries; every extent must lie within the file."""
    entries: dict[str, TensorEntry] = {}
    try:
        for name, fields in header.items():
            if name == "__metadata__":
                continue
            low, high = (int(offset) for offset in fields["data_offsets"])
            if not 0 <= low <= high <= data_bytes:
                raise ConfigError(
                    f"{path.name} is truncated: {name} ends at byte {high} of {data_bytes}",
                    hint=again,
                )
            shape = tuple(int(size) for size in fields["shape"])
            entries[name] = TensorEntry(shape, str(fields["dtype"]), high - low, path)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the header of {path.name} is malformed: {error!r}", hint=again
        ) from error
    return entries


def _weight_map(index: Path) -> dict[str, str]:
    """Return tensor name to file name from an index file."""
    try:
        loaded = json.loads(index.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{index.name} cannot be read: {error}") from error
    files = loaded.get("weight_map") if isinstance(loaded, dict) else None
    if not isinstance(files, dict) or not files:
        raise ConfigError(f"{index.name} has no weight_map")
    for tensor, file in files.items():
        if not isinstance(file, str):
            raise ConfigError(f"{index.name} gives {file!r} as the file of {tensor!r}")
    return files


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a shard, refusing names that lead out of the folder."""
    # Hugging Face caches link each file to a blob elsewhere, so the name is judged, not its target.
    if Path(name).name != name or name in ("", ".", ".."):
        raise ConfigError(
            f"{INDEX_NAME} names {name!r}, which is not a plain file name in the folder",
            hint="an index may only name files beside it",
        )
    path = folder / name
    if not path.is_file():
        raise ConfigError(
            f"{INDEX_NAME} names {name}, and {folder} does not hold it",
            hint="the download is incomplete; fetch the missing shard",
        )
    return path
