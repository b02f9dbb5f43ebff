"""A process that the recorder asks something which takes long, and that answers in one text.

It may fail, hang, or say anything: the recorder neither waits for it nor believes it.

Tests: tests/recorder/test_hang_look.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final

#: More than any answer has, bytes.
_MOST: Final = 4 << 20
_PIECE: Final = 1 << 16


class Answering:
    """One such process."""

    #: CPU time that it took, s; 0 while it runs.
    cost = 0.0

    def __init__(self, words: list[str], seconds: float) -> None:
        """Start it.

        Args:
            words: the program and its arguments.
            seconds: how long it may take.

        Raises:
            OSError: it cannot be started.
        """
        self._said = bytearray()
        self._until = time.monotonic() + seconds
        self._killed = ""
        self._answers, its = os.pipe()
        os.set_blocking(self._answers, False)
        try:
            # All other descriptors are closed, that of the recorder's lock among them.
            self._pid = os.posix_spawn(
                words[0],
                words,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, its, 1),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
            )
        except BaseException:
            os.close(self._answers)
            raise
        finally:
            os.close(its)

    def over(self) -> bool:
        """Say whether it has ended; end it where it takes too long or says too much."""
        try:
            pid, self._status, used = os.wait4(self._pid, os.WNOHANG)
            self.cost = used.ru_utime + used.ru_stime
        except ChildProcessError:  # somebody else has taken its status
            pid, self._status = self._pid, 0
        with contextlib.suppress(BlockingIOError):
            while len(self._said) <= _MOST and (piece := os.read(self._answers, _PIECE)):
                self._said += piece
        if pid:
            os.close(self._answers)
            return True
        if len(self._said) > _MOST:
            self._kill("said too much")
        elif time.monotonic() > self._until:
            self._kill("took too long")
        return False

    def _kill(self, why: str) -> None:
        self._killed = self._killed or why
        os.kill(self._pid, signal.SIGKILL)

    def end(self) -> None:
        """End it without waiting for that; with us whoever takes our place takes its status."""
        self._kill("was ended")
        os.close(self._answers)

    def said(self) -> bytes:
        """Return what it said. It is over.

        Raises:
            ValueError: it was ended, or has failed.
        """
        if self._killed or self._status:
            raise ValueError(self._killed or f"ended with status {self._status:#x}")
        return bytes(self._said)
