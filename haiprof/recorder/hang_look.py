"""The process that says why ranks wait: the recorder starts it, and reads what it says.

Reading stacks takes seconds, and the recorder must not be late. So this is left to a process of its
own (:mod:`haiprof.control.hang_report`), which may fail, hang, or say anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

from haiprof.common.hang_files import hang_of
from haiprof.recorder.launch import import_paths

#: How long it may take beside the time between its two looks, s.
SECONDS: Final = 60.0
#: More than any answer has, bytes.
_MOST: Final = 4 << 20
_PIECE: Final = 1 << 16
_PROGRAM: Final = (
    "import sys; sys.path[:] = {paths!r}; from haiprof.control.hang_report import main; main()"
)


class Look:
    """One such process."""

    def __init__(self, run: str, pids: Sequence[int], hang_after: float, between: float) -> None:
        """Start it.

        Args:
            run: name of the run.
            pids: of the ranks, and of the command that has started them.
            hang_after: what lasts less is no hang, s.
            between: how far apart it looks twice, s.

        Raises:
            OSError: it cannot be started.
        """
        words = [sys.executable, "-c", _PROGRAM.format(paths=import_paths())]
        words += [run, repr(hang_after), repr(between), *map(str, pids)]
        self._start(words, SECONDS + between)

    def _start(self, words: list[str], seconds: float) -> None:
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
            pid, self._status = os.waitpid(self._pid, os.WNOHANG)
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

    def answer(self) -> dict[str, Any] | None:
        """Return why the job hangs, as :func:`hang_of` reads it; None: it does not. It is over.

        Raises:
            ValueError: it was ended, has failed, or has said something else.
        """
        if self._killed or self._status:
            raise ValueError(self._killed or f"ended with status {self._status:#x}")
        try:
            said = json.loads(self._said)
            if said["problem"] is not None:
                raise ValueError(str(said["problem"])[:200])
            hang: dict[str, Any] | None = said["hang"]
            if hang is not None:
                hang_of(hang, 0)
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"said something else: {error!r:.200}") from None
        return hang
