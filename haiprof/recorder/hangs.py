"""The hangs of one run on this node: seen, and made known to whoever wants to know.

A hang is a file in the run's folder, a row of the node's ``events``, a line on stderr, and while it
lasts a file beside the rings, for ``haiprof ps``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
from collections.abc import Sequence
from typing import Any, Final

from haiprof.common.hang_files import NAME, Hang, document, file_name, hang_of
from haiprof.common.owned_files import Folder
from haiprof.common.places import HANG_NAME, node_name
from haiprof.common.printable import printable
from haiprof.recorder.command import Command, say_in_note
from haiprof.recorder.hang_watch import HangWatch
from haiprof.recorder.process import RecordedProcess
from haiprof.recorder.stderr_of import say_on_stderr_of
from haiprof.recorder.watching import Tell, Watching

log = logging.getLogger(__name__)

#: Bytes of a line: with what comes around it a pipe takes it in one piece.
_MOST: Final = select.PIPE_BUF - 64


class Hangs(Watching[HangWatch]):
    """Watches for hangs, and makes them known."""

    kind = "hang"
    file = HANG_NAME
    looks = "whether the job hangs"

    def __init__(self, run: Folder, rings: Folder, tell: Tell, hang_after: float) -> None:
        """Begin to watch.

        Args:
            run: its folder.
            rings: the folder of its rings.
            tell: takes events.
            hang_after: what lasts less is no hang, s; 0: nothing is.
        """
        self._files = run
        self._ranks: Sequence[RecordedProcess] = ()
        self._command: Command | None = None
        watch = HangWatch(run.path.name, hang_after, on_hang=self._begins, on_end=self._ends)
        super().__init__(rings, tell, watch)

    def turn(self, processes: Sequence[RecordedProcess], command: Command | None) -> None:
        """Look at the processes if it is time to. Never raises.

        Args:
            processes: those that are recorded.
            command: what ``haiprof run`` has started, if that runs.
        """
        self._ranks = sorted(
            (one for one in processes if one.role == "rank"), key=lambda one: one.rank or 0
        )
        self._command = command
        pid = None if command is None else command.pid
        self._turn(lambda watch: watch.turn(self._ranks, pid))

    def _begins(self, hang: Hang, found: dict[str, Any]) -> None:
        since_ns = hang.seen_ns - int(hang.lasts_s * 1e9)
        self._keep({"problem": hang.problem, "since_ns": since_ns})
        about = {"kind": hang.kind, "ranks": hang.ranks, "waiting": hang.waiting}
        attributes = {**about, "line": hang.line, "s": hang.lasts_s, "over": False}
        self._tell(self.kind, f"the job hangs. {hang.problem}", attributes)
        try:
            if not _report(self._files, hang, found, since_ns):
                return  # a recorder before us has said it
        except OSError as error:
            log.error("%s: %s; the hang is not kept", error.filename, error.strerror)
        self._say(printable(f"the job hangs. {hang.problem}; to do: {hang.advice}"))

    def _ends(self, text: str, seconds: float) -> None:
        self._tell(self.kind, text, {"s": seconds, "over": True})
        self._forget()

    def _say(self, line: str) -> None:
        """Say a line once: by ``haiprof run``, else on the stderr of the first rank."""
        short = line.encode("utf-8", "replace")[:_MOST].decode("utf-8", "ignore")
        if self._command is not None:
            with contextlib.suppress(OSError):
                say_in_note(self._rings, self._command, short)
                return
        if self._ranks:
            say_on_stderr_of(self._ranks[0].pid, f"haiprof: {short}\n".encode())


def _report(run: Folder, hang: Hang, found: dict[str, Any], since_ns: int) -> bool:
    """Write a hang into the run's folder.

    Returns:
        Whether it is new there.

    Raises:
        OSError: it cannot be written.
    """
    node = node_name()
    names = [name for name in run.names() if NAME.fullmatch(name)]
    if any(_is_same(run, name, hang, since_ns) for name in names if f"-{node}-" in name):
        return False
    number = 1
    while (name := file_name(node, os.getpid(), number)) in names:
        number += 1
    with run.replacing(name, f"{name}.new") as file:
        file.write(json.dumps(document(found, hang.seen_ns), indent=1).encode())
    return True


def _is_same(run: Folder, name: str, hang: Hang, since_ns: int) -> bool:
    """Say whether a file reports this hang: the same was seen while its waits lasted already."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        kept = json.loads(run.read(name))
        other = hang_of(kept["hang"], kept["seen_ns"])
        return (other.kind, other.ranks) == (hang.kind, hang.ranks) and since_ns < other.seen_ns
    return False
