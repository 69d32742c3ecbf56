"""Length-prefixed frames over a local stream socket: the blocking side and the asyncio side.

A frame is four bytes of little-endian length and that many bytes of payload. Knows no message;
end of stream always means that the other process is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading

MAX_FRAME_BYTES = 256 * 2**20

_LENGTH = struct.Struct("<I")


class FrameError(Exception):
    """The other side sent something that is not a frame, or one beyond `MAX_FRAME_BYTES`."""


def pack_frame(payload: bytes) -> bytes:
    """Return the frame of a payload.

    Raises:
        FrameError: If it is larger than `MAX_FRAME_BYTES`.
    """
    _check_length(len(payload))
    return _LENGTH.pack(len(payload)) + payload


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Read one frame from an asyncio stream.

    Returns:
        The payload; None when the stream has ended or was reset, also inside a frame.

    Raises:
        FrameError: If the length is beyond `MAX_FRAME_BYTES`.
    """
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        _check_length(length)
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class BlockingChannel:
    """The engine's end: sends from any thread, reads from one.

    Args:
        sock: A connected stream socket in blocking mode; owned from here on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._stream = sock.makefile("rb")
        self._send_lock = threading.Lock()

    def send(self, payload: bytes) -> bool:
        """Send one frame; waits while the other side is slow to read.

        Returns:
            False when the other side is gone.
        """
        frame = pack_frame(payload)
        try:
            with self._send_lock:
                self._sock.sendall(frame)
        except OSError:
            return False
        return True

    def receive(self) -> bytes | None:
        """Wait for one frame.

        Returns:
            The payload; None when the other side is gone.

        Raises:
            FrameError: If the length is beyond `MAX_FRAME_BYTES`.
        """
        try:
            header = self._stream.read(_LENGTH.size)
            if len(header) < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack(header)
            _check_length(length)
            payload = self._stream.read(length)
        except (OSError, ValueError):
            return None
        return payload if len(payload) == length else None

    def close(self) -> None:
        """Close the socket; a reader in another thread wakes with None."""
        with contextlib.suppress(OSError):  # the other side may have been first
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def _check_length(length: int) -> None:
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of {length} bytes, at most {MAX_FRAME_BYTES} are allowed")
