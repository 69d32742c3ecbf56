"""Frames arrive whole and in order, and the end of a stream is seen on both sides."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

import pytest

from twinpool.engine import channel
from twinpool.engine.channel import BlockingChannel, FrameError, pack_frame, read_frame


def test_frames_arrive_whole_and_in_order_across_a_full_socket_buffer() -> None:
    left, right = (BlockingChannel(sock) for sock in socket.socketpair())
    payloads = [b"", b"a", b"b" * 3_000_000, b"c" * 70_000]
    sender = threading.Thread(target=lambda: [left.send(p) for p in payloads])
    sender.start()
    assert [right.receive() for _ in payloads] == payloads
    sender.join()
    left.close()
    assert right.receive() is None
    right.close()


def test_sending_to_a_closed_end_says_so_and_does_not_raise() -> None:
    left, right = (BlockingChannel(sock) for sock in socket.socketpair())
    right.close()
    assert not left.send(b"x")
    left.close()


def test_closing_wakes_a_reader_in_another_thread() -> None:
    left, right = (BlockingChannel(sock) for sock in socket.socketpair())
    got: list[bytes | None] = []
    reader = threading.Thread(target=lambda: got.append(right.receive()))
    reader.start()
    right.close()
    reader.join(timeout=10)
    assert got == [None]
    left.close()


def test_an_end_inside_a_frame_is_an_end(subtests: pytest.Subtests) -> None:
    for cut in (2, 4, 6):
        with subtests.test(cut=cut):
            ours, theirs = socket.socketpair()
            ours.sendall(pack_frame(b"abcdef")[:cut])
            ours.close()
            blocking = BlockingChannel(theirs)
            assert blocking.receive() is None
            blocking.close()

            async def ends(cut: int = cut) -> bytes | None:
                reader = asyncio.StreamReader()
                reader.feed_data(pack_frame(b"abcdef")[:cut])
                reader.feed_eof()
                return await read_frame(reader)

            assert asyncio.run(ends()) is None


def test_async_side_reads_what_the_blocking_side_sends() -> None:
    async def talk() -> list[bytes | None]:
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        blocking = BlockingChannel(theirs)
        await asyncio.to_thread(blocking.send, b"hello")
        first = await read_frame(reader)
        writer.write(pack_frame(b"back"))
        second = await asyncio.to_thread(blocking.receive)
        blocking.close()
        third = await read_frame(reader)
        writer.close()
        await writer.wait_closed()
        return [first, second, third]

    assert asyncio.run(talk()) == [b"hello", b"back", None]


def test_a_length_beyond_the_limit_is_refused_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(struct.pack("<I", channel.MAX_FRAME_BYTES + 1))
    blocking = BlockingChannel(theirs)
    with pytest.raises(FrameError, match="bytes"):
        blocking.receive()
    blocking.close()
    ours.close()
    monkeypatch.setattr(channel, "MAX_FRAME_BYTES", 3)
    with pytest.raises(FrameError, match="at most 3"):
        pack_frame(b"four")
