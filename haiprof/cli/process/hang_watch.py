"""Watches the ranks of the command that `haiprof run` has started, and says so when they hang.

Only how far their communication has come is looked at, in their rings, every few seconds; stacks
are read once ranks have waited for long.

Tests: tests/cli/test_run_hangs.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from haiprof._core import RingReader
from haiprof.common.owned_files import Folder
from haiprof.common.places import RING_SUFFIX, node_name, ring_dirs

if TYPE_CHECKING:
    from haiprof.control.hang import Hang

#: How often the rings are looked at, s; as long apart are two looks at who is to blame.
_EVERY_S: Final = 10.0
#: Whoever does something, or one of these, is late for this many times longer before that is a
#: hang: evaluation, checkpoints, compilation.
_PATIENCE: Final = 10
_LONG_WORK: Final = (
    "torch/serialization.py", "torch/distributed/checkpoint/", "torch/_dynamo/", "torch/_inductor/",
    "torch/_functorch/", "subprocess.py", "multiprocessing/", "concurrent/futures/", "socket.py",
    "ssl.py", "shutil.py",
)  # fmt: skip
#: In these no rank does anything that could take so long; all others may be late.
_CERTAIN: Final = ("collective_mismatch", "crossed_collectives", "unmatched_send", "stopped")
#: Ranks come and go apart, with all kinds of work between.
_NEVER: Final = ("rendezvous", "teardown_hang")
#: A wait is looked at again when it has lasted longer by this share of it.
_LATER: Final = 0.3
#: In the run's folder: of which node, which `haiprof run`, and a number from 1.
FILE: Final = "hang-{}-{}-{}.json"


class HangWatch:
    """A thread that watches until the process ends."""

    def __init__(self, pid: int, run_dir: Path, seconds: float, say: Callable[[str], None]) -> None:
        """Begin to watch.

        Args:
            pid: of the command.
            run_dir: where its ranks are recorded.
            seconds: that ranks wait for one before it is a hang; 0: it never is.
            say: takes the line for the user.
        """
        self._pid, self._run_dir, self._seconds, self._say = pid, run_dir, seconds, say
        self._over = threading.Event()
        #: For how long ranks must have waited before stacks are read, s.
        self._due = seconds
        self._reported: set[tuple[Any, ...]] = set()
        if seconds:
            with contextlib.suppress(RuntimeError):  # no more threads
                threading.Thread(target=self._watch, daemon=True).start()

    def end(self) -> None:
        """Watch no longer."""
        self._over.set()

    def _watch(self) -> None:
        every = min(_EVERY_S, self._seconds / 2)
        while not self._over.wait(every):
            # Whatever happens here, the command goes on.
            with contextlib.suppress(Exception):
                longest = self._longest()
                if longest < self._seconds:
                    self._due = self._seconds
                elif longest >= self._due:
                    # Whoever waits for an evaluation to end is not looked at all along.
                    self._due = longest + min(longest * _LATER, _PATIENCE * self._seconds)
                    self._look(every)

    def _longest(self) -> float:
        """Return for how long a rank has waited, s."""
        longest = 0.0
        for folder in ring_dirs(self._run_dir):
            for ring in folder.glob(f"*{RING_SUFFIX}"):
                with contextlib.suppress(OSError, ValueError):
                    groups, blocked = RingReader(ring).progress()
                    # Where ends are not seen, what was asked for last may have ended long ago.
                    pending = [one for one in groups if one["done"] not in (None, one["asked"])]
                    ages = [one["age_s"] for one in (*pending, *blocked)]
                    longest = max([longest, *ages])
        return longest

    def _hang(self) -> Hang | None:
        from haiprof.control.hang import by_run, look, verdict

        ranks = by_run(look(str(self._pid), self._seconds)).get(self._run_dir.name, ())
        return verdict(ranks, known=True).hang

    def _look(self, every: float) -> None:
        first = self._hang()
        # What is not on this node may be the cause, and is not known.
        if first is None or first.kind in _NEVER:
            return
        if not first.culprits and first.kind != "stalled_transfer":
            return
        key = first.kind, first.ranks, first.problem.partition(";")[0]
        if key in self._reported or self._over.wait(every):
            return
        again = self._hang()
        if again is None or (again.kind, again.ranks) != (first.kind, first.ranks):
            return
        stands = [one.stack for one in first.culprits] == [one.stack for one in again.culprits]
        stands &= all(one.state != "running" for one in (*first.culprits, *again.culprits))
        works = any(
            path in frame for one in again.culprits for frame in one.stack for path in _LONG_WORK
        )
        late = again.kind not in _CERTAIN and (works or not stands)
        if late and again.lasts_s < _PATIENCE * self._seconds:
            return
        self._reported.add(key)
        number = len(self._reported)
        document = {
            "format": "haiprof-hang",
            "version": "1.0",
            "seen_ns": time.time_ns(),
            "hang": again.as_json(),
        }
        with contextlib.suppress(OSError):
            name = FILE.format(node_name(), os.getpid(), number)
            with Folder.at(self._run_dir).replacing(name, f"{name}.new") as file:
                file.write(json.dumps(document, indent=1).encode())
        self._say(f"the job hangs. {again.problem}; to do: {again.advice}")
