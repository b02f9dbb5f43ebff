"""A line on another process's stderr: where it leads somewhere safe, and without waiting."""

from __future__ import annotations

import contextlib
import os
import pty
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haiprof.recorder.stderr_of import say_on_stderr_of

LINE = b"haiprof: the job hangs\n"


@contextlib.contextmanager
def running(stderr: Any) -> Iterator[int]:
    """Run a program with this stderr, which it waits with."""
    program = "import os, sys; os.write(1, b'.'); sys.stdin.read(); os.write(2, b'after')"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], stderr=stderr, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


def test_a_terminal_gets_it() -> None:
    ours, its = pty.openpty()
    with running(its) as pid:
        assert say_on_stderr_of(pid, LINE)
        assert os.read(ours, 100) == LINE.replace(b"\n", b"\r\n")
    os.close(ours)
    os.close(its)


def test_a_terminal_that_is_stopped_is_not_waited_for() -> None:
    ours, its = pty.openpty()
    with running(its) as pid:
        os.write(ours, b"\x13")  # Ctrl-S
        begun = time.monotonic()
        for _ in range(1000):
            say_on_stderr_of(pid, LINE * 100)
        assert time.monotonic() - begun < 10
        os.write(ours, b"\x11")
        os.set_blocking(ours, False)
        with contextlib.suppress(BlockingIOError):
            while os.read(ours, 1 << 16):
                pass
    os.close(ours)
    os.close(its)


def test_a_pipe_gets_it_unless_it_is_full_or_nobody_reads_it() -> None:
    ours, its = os.pipe()
    with running(its) as pid:
        assert say_on_stderr_of(pid, LINE)
        assert os.get_blocking(its), "the process's own descriptor is as it was"
        assert os.read(ours, 100) == LINE
        os.set_blocking(its, False)
        with contextlib.suppress(BlockingIOError):
            while os.write(its, bytes(4096)):
                pass
        os.set_blocking(its, True)
        assert not say_on_stderr_of(pid, LINE)
        os.close(its)
        os.close(ours)
        assert not say_on_stderr_of(pid, LINE)


def test_a_file_gets_it_only_where_the_process_appends(tmp_path: Path) -> None:
    for mode, written in (("ab", LINE + b"after"), ("wb", b"after")):
        with (tmp_path / mode).open(mode) as file, running(file) as pid:
            assert say_on_stderr_of(pid, LINE) == (mode == "ab")
        assert (tmp_path / mode).read_bytes() == written


def test_what_the_process_may_only_read_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fd = os.open(tmp_path / "file", os.O_RDONLY | os.O_APPEND)
    with running(fd) as pid:
        assert not say_on_stderr_of(pid, LINE)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_nothing_is_written_for_another_user(tmp_path: Path) -> None:
    shell = ["/bin/sh", "-c", "printf .; cat > /dev/null"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    for user, written in ((65534, False), (None, True)):
        with (
            (tmp_path / "file").open("ab") as file,
            subprocess.Popen(shell, stderr=file, user=user, **pipes) as process,
        ):
            assert process.stdout is not None
            assert process.stdout.read(1) == b"."
            assert say_on_stderr_of(process.pid, LINE) == written
            assert process.stdin is not None
            process.stdin.close()


def test_nothing_else_gets_it() -> None:
    ours, its = socket.socketpair()
    with ours, its, running(its) as pid:
        assert not say_on_stderr_of(pid, LINE)
    with running(subprocess.DEVNULL) as pid:
        assert not say_on_stderr_of(pid, LINE)
    assert not say_on_stderr_of(pid, LINE)
