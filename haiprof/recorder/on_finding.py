"""Gives hangs and findings to a command of the user's: one at a time, one a minute, never waiting.

The command comes from the options of whoever records, never from a file. It gets JSON on its stdin.
What it says, how it ends and whether it does is of no consequence to the recording.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from haiprof.recorder.launch import MEMORY

log = logging.getLogger(__name__)

FORMAT: Final = "haiprof-on-finding"
VERSION: Final = "1.0"
#: From one start to the next, s. What happens meanwhile is given to the next one.
_EVERY_S: Final = 60.0
#: How long it may take, s; at the end of the recording, how long it is waited for.
_LONGEST_S: Final = 30.0
_LAST_S: Final = 5.0
#: How long, s, and how often it is looked whether one that was ended has.
_TURN_S: Final = 0.02
_TURNS: Final = 5
#: Of more events that wait, the oldest are left out.
_MOST: Final = 20
#: Python ignores the first two, the recorder the others.
_IGNORED: Final = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP)


class OnFinding:
    """Runs one command for what happens."""

    def __init__(
        self, command: str, about: dict[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Keep the command; nothing is started yet.

        Args:
            command: its words, as a shell has them; empty: there is none.
            about: what each JSON object says of the run.
            clock: returns the time, s.
        """
        self._words, self._about, self._clock = shlex.split(command), about, clock
        self._waiting: list[dict[str, Any]] = []
        self._left_out = 0
        self._pid = 0
        self._killed = False
        self._until = self._next = 0.0

    def add(self, kind: str, text: str, attributes: dict[str, Any]) -> None:
        """Have an event given to the command."""
        if self._words:
            event = {"time_ns": time.time_ns(), "event": kind, "text": text, **attributes}
            self._waiting.append(event)
            self._left_out += max(0, len(self._waiting) - _MOST)
            del self._waiting[:-_MOST]

    def turn(self) -> None:
        """Start the command if there is something for it; end it if it takes too long."""
        now = self._clock()
        if self._pid:
            if self._over() or now < self._until or self._killed:
                return
            log.warning("%s: ended after %.0f s", self._words[0], _LONGEST_S)
            self._kill()
        elif self._waiting and now >= self._next:
            self._next, self._until = now + _EVERY_S, now + _LONGEST_S
            self._start()

    def close(self) -> None:
        """Give what waits to the command, wait for it a little, and end it."""
        self._next = 0.0
        until = self._clock() + _LAST_S
        while self._waiting or self._pid:
            self.turn()
            if self._clock() >= until or (self._killed and self._pid):
                self._kill()
                return
            time.sleep(_TURN_S)

    def _start(self) -> None:
        said = {"format": FORMAT, "version": VERSION, **self._about, "left_out": self._left_out,
                "events": self._waiting}  # fmt: skip
        self._waiting, self._left_out = [], 0
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HAIPROF_") and name not in MEMORY
        }
        try:
            # A file, since a pipe that nobody reads is full at some point.
            given = os.memfd_create("haiprof-on-finding")
            try:
                os.write(given, json.dumps(said).encode())
                os.lseek(given, 0, os.SEEK_SET)
                self._killed = False
                self._pid = os.posix_spawnp(
                    self._words[0],
                    self._words,
                    environment,
                    file_actions=[
                        (os.POSIX_SPAWN_DUP2, given, 0),
                        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                    ],
                    setpgroup=0,
                    setsigdef=_IGNORED,
                )
            finally:
                os.close(given)
        except OSError as error:
            log.warning("%s: cannot be started: %s", self._words[0], error.strerror)

    def _over(self) -> bool:
        try:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has taken its status
            pid, status = self._pid, 0
        if pid:
            self._pid = 0
            if status and not self._killed:
                log.warning("%s: ended with status %#x", self._words[0], status)
        return bool(pid)

    def _kill(self) -> None:
        """End it, with whatever it has started: nobody waits for one that cannot be ended.

        It may have become another user's, as by sudo, or wait for a device.
        """
        if self._pid:
            self._killed = True
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            for _ in range(_TURNS):
                if self._over():
                    return
                time.sleep(_TURN_S)
