"""A terminal that frames are drawn on repeatedly, and that is restored afterwards.

Tests: tests/show/test_live.py.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Final

from rich.console import Console
from rich.text import Text

#: Keys that quit; and that show or hide where each rank is.
_LEAVE: Final = frozenset(b"qQ\x03\x04")
_PLACES: Final = frozenset(b"sS")
_SIGNALS: Final = (
    signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP, signal.SIGCONT,
)  # fmt: skip
_ENTER_SCREEN: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE_SCREEN: Final = "\x1b[?25h\x1b[?1049l"
#: Characters in frames, and their replacements on a terminal that has only ASCII.
_ASCII: Final = str.maketrans("▁▂▃▄▅▆▇█·…─µ°≤", "_.-=+*%#.~-u'<")


def render(console: Console, lines: Sequence[Text]) -> list[str]:
    """Encode lines for the console's terminal, cut to its width."""
    rendered = []
    ascii_only = not console.encoding.lower().startswith("utf")
    for line in lines:
        with console.capture() as drawn:
            console.print(line, end="", no_wrap=True, overflow="crop", crop=True, soft_wrap=False)
        text = drawn.get()
        rendered.append(text.translate(_ASCII) if ascii_only else text)
    return rendered


class Terminal:
    """The whole screen, keys without echo, and a wake-up when its size changes."""

    def __init__(self, console: Console) -> None:
        """Prepare; nothing is changed before entering."""
        self._console = console
        self._keys = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._left = False
        #: Whether to show where each rank is, as somebody has pressed.
        self.places = False

    def __enter__(self) -> Terminal:
        """Take the screen over."""
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_write = wake
        # By the handler in C: one of Python's would run only after the poll that it is to end.
        self._wake_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in _SIGNALS:
            self._handlers[number] = signal.signal(number, self._signalled)
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Restore it, whatever happened."""
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wake_before)
        os.close(self._wake)
        os.close(self._wake_write)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._console.file.write(_LEAVE_SCREEN)
            self._console.file.flush()
        if self._keys is not None and self._modes is not None:
            with contextlib.suppress(termios.error, OSError):
                termios.tcsetattr(self._keys, termios.TCSANOW, self._modes)

    def _enter(self) -> None:
        if self._keys is not None:
            with contextlib.suppress(termios.error, OSError):
                modes = termios.tcgetattr(self._keys)
                self._modes = self._modes or modes
                changed = [*modes[:3], modes[3] & ~(termios.ICANON | termios.ECHO), *modes[4:]]
                # In the background that would stop us; then the keys are not ours anyway.
                if os.tcgetpgrp(self._keys) == os.getpgrp():
                    termios.tcsetattr(self._keys, termios.TCSANOW, changed)
        self._console.file.write(_ENTER_SCREEN)
        self._console.file.flush()

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTSTP:
            self._give_back()
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)  # stops here until we are continued
            signal.signal(number, self._signalled)
        if number in (signal.SIGTSTP, signal.SIGCONT):
            self._enter()
        if number in (signal.SIGTERM, signal.SIGHUP):
            self._left = True

    def draw(self, lines: Sequence[Text]) -> None:
        """Draw a frame over the one before.

        Raises:
            OSError: the terminal disappeared.
        """
        # Row by row, so that a slow line never shows an empty screen.
        body = "\x1b[K\r\n".join(render(self._console, lines))
        self._console.file.write(f"\x1b[H{body}\x1b[K\x1b[J")
        self._console.file.flush()

    def wait(self, seconds: float) -> bool:
        """Wait that long, or until the size changes; return False to quit."""
        until = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._keys is not None:
            poll.register(self._keys, select.POLLIN)
        while not self._left:
            ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                return not self._left
            if self._keys is not None and self._keys in ready:
                try:
                    pressed = os.read(self._keys, 256)
                except OSError:
                    return False
                if not pressed or _LEAVE & set(pressed):
                    return False
                if _PLACES & set(pressed):
                    self.places = not self.places
                    return True
                continue
            if not ready:
                return True
        return False
