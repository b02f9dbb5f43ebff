"""Runs a program on a terminal of a given size and reads what it draws there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Sequence

_HOME = "\x1b[H"
_ENTER, _LEAVE = "\x1b[?1049h", "\x1b[?1049l"
_CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """A program on a pseudo-terminal; frames begin where the cursor is sent home."""

    def __init__(
        self, words: Sequence[str], columns: int = 80, rows: int = 24, **environment: str
    ) -> None:
        variables = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment}
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            # The size must be there before the program looks at it.
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execvpe(words[0], list(words), variables)
        self.output = ""
        self.status: int | None = None

    def resize(self, columns: int, rows: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def modes(self) -> int:
        """Return the terminal's local modes: whether it echoes, and so on."""
        modes: int = termios.tcgetattr(self._terminal)[3]
        return modes

    def read(self, seconds: float) -> bool:
        """Read what is there or comes within ``seconds``; False once the program has ended."""
        if not select.select([self._terminal], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._terminal, 1 << 16)
        except OSError:
            return False
        self.output += data.decode("utf-8", "replace")
        return bool(data)

    @property
    def frames(self) -> list[list[str]]:
        """The whole frames so far, without colours."""
        parts = self.output.split(_HOME)[1:]
        whole = [part for part in parts if "\x1b[J" in part]
        texts = [_CONTROLS.sub("", part.split("\x1b[J")[0]) for part in whole]
        return [text.replace("\r", "").split("\n") for text in texts]

    def wait(self, found: Callable[[list[str]], object], seconds: float = 30) -> list[str]:
        """Wait for a frame of which ``found`` is true, and return it."""
        until = time.monotonic() + seconds
        seen = 0
        while True:
            frames = self.frames
            for frame in frames[seen:]:
                if found(frame):
                    return frame
            seen = len(frames)
            assert time.monotonic() < until, self.output[-4000:]
            assert self.read(0.1), f"it has ended: {self.output[-4000:]}"

    def wait_for(self, text: str, seconds: float = 30) -> list[str]:
        """Wait for a frame that holds ``text``."""
        return self.wait(lambda frame: any(text in line for line in frame), seconds)

    def end(self, seconds: float = 10) -> int:
        """Wait for the program's end; return its exit code."""
        until = time.monotonic() + seconds
        while self.read(0.1):
            assert time.monotonic() < until, self.output[-4000:]
        return self.exit_code()

    def exit_code(self) -> int:
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]
        return os.waitstatus_to_exitcode(self.status)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self.exit_code()
        os.close(self._terminal)

    @property
    def restored(self) -> bool:
        """Whether the last thing that was done to the screen is to leave it as it was."""
        entered, left = self.output.rfind(_ENTER), self.output.rfind(_LEAVE)
        return 0 <= entered < left and self.output.rfind("\x1b[?25h") > entered
