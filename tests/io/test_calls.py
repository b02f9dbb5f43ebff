"""What the kernel counts of calls that move data without ``read()``: as docs/metrics.md has it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MB = 1 << 20
SIZE = 16 * MB
PIECE = 1 << 16


def counted() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}


def grown(work: Callable[[], None]) -> tuple[float, float]:
    """Return what ``work`` adds to ``rchar`` and to ``wchar``, as shares of what it moves."""
    before = counted()
    work()
    after = counted()
    read, written = (after[name] - before[name] for name in ("rchar", "wchar"))
    return read / SIZE, written / SIZE


@pytest.fixture
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


def both(write: Callable[[], None], read: Callable[[], int]) -> None:
    """Write on a thread of its own, and read all of it."""
    writer = threading.Thread(target=write)
    writer.start()
    left = SIZE
    while left:
        left -= read()
    writer.join()


def test_send_and_recv_are_not_counted(connected: tuple[socket.socket, socket.socket]) -> None:
    here, there = connected
    share = grown(lambda: both(lambda: here.sendall(bytes(SIZE)), lambda: len(there.recv(PIECE))))
    assert share == pytest.approx((0, 0), abs=0.02)


def test_read_and_write_on_sockets_are(connected: tuple[socket.socket, socket.socket]) -> None:
    here, there = (end.fileno() for end in connected)

    def write() -> None:
        for _ in range(SIZE // PIECE):
            assert os.write(here, bytes(PIECE)) == PIECE

    share = grown(lambda: both(write, lambda: len(os.read(there, PIECE))))
    assert share == pytest.approx((1, 1), abs=0.02)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "data").write_bytes(bytes(SIZE))
    descriptor = os.open(tmp_path / "data", os.O_RDWR)
    yield descriptor
    os.close(descriptor)


def test_splice_between_a_file_and_a_pipe_is_not_counted(file: int) -> None:
    end, start = os.pipe()
    sink = os.open(os.devnull, os.O_WRONLY)

    def move() -> None:
        left = SIZE
        while left:
            held = os.splice(file, start, min(left, PIECE))
            left -= held
            while held:
                held -= os.splice(end, sink, held)

    try:
        assert grown(move) == pytest.approx((0, 0), abs=0.02)
    finally:
        for descriptor in (end, start, sink):
            os.close(descriptor)


def test_sendfile_and_copy_file_range_are_read_and_written(
    file: int, tmp_path: Path, connected: tuple[socket.socket, socket.socket]
) -> None:
    here, there = connected

    def send() -> None:
        sent = 0
        while sent < SIZE:
            sent += os.sendfile(here.fileno(), file, sent, SIZE - sent)

    share = grown(lambda: both(send, lambda: len(there.recv(PIECE))))
    assert share == pytest.approx((1, 1), abs=0.02)
    copy = os.open(tmp_path / "copy", os.O_WRONLY | os.O_CREAT)

    def duplicate() -> None:
        left = SIZE
        while left:
            left -= os.copy_file_range(file, copy, left)

    os.lseek(file, 0, os.SEEK_SET)
    assert grown(duplicate) == pytest.approx((1, 1), abs=0.02)
    os.close(copy)
