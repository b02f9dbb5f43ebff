"""The ring of this process, the recorder beside it, and the files that it writes.

Tests: tests/capture/session/test_session.py.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path
from typing import Final

from haiprof import _core
from haiprof.capture.stderr import say_once
from haiprof.common import threads
from haiprof.common.launcher import Placement
from haiprof.common.owned_files import Folder
from haiprof.common.places import (
    PACE_NAME,
    RING_SUFFIX,
    in_ring_dir,
    node_name,
    open_rings,
    require_room,
    ring_dir,
    room_for_ring,
)
from haiprof.common.process_life import start_time_of
from haiprof.options import Options
from haiprof.recorder.election import recorder_pid, recorder_running
from haiprof.recorder.launch import RECORDER_START_SECONDS, ring_doorbell, start_recorder
from haiprof.schema import PROCESS_FILE

#: How long recorders of a node may take to settle which of them stays, s.
_ELECTION_SECONDS: Final = 10.0


class JobRing:
    """The ring of this process in a run, the recorder that drains it, and the files it writes."""

    def __init__(self, run: str, run_dir: Path, options: Options, place: Placement) -> None:
        """Nothing is touched yet."""
        self.run, self.run_dir, self.dir = run, run_dir, ring_dir(run_dir)
        #: The current ones; a change is for the next ring or recorder.
        self.options = options
        #: The file; None until there is one.
        self.path: Path | None = None
        #: A higher rate of stacks, per second, and until when: ns UTC.
        self.burst: tuple[float, int] = (0.0, 0)
        self._place = place
        self._recorder_started = -math.inf
        self._pid = os.getpid()
        self._right = threads.lock()
        self._may_let_read, self._reader_may = True, False  # under _right

    @property
    def mine(self) -> bool:
        """Whether it is of this very process and not of the one that forked it."""
        return self._pid == os.getpid()

    @property
    def kept(self) -> bool:
        """Whether records of this process are being kept."""
        return self.path is not None and self.mine and _core.ring_open()

    def leave_mark(self, name: str) -> None:
        """Leave an empty file beside the rings of a run, for the recorder that is there already."""
        with contextlib.suppress(OSError):
            os.close(open_rings(self.dir).update(name))

    def open(self) -> None:
        """Make the ring, beside those of the run or, if it cannot be there, in a second place.

        Raises:
            OSError: it cannot be made.
        """
        in_ring_dir(self.run_dir, self._open_in, say_once)

    def _open_in(self, folder: Path) -> None:
        self.dir = folder
        for n in range(1000):
            open_rings(self.dir, make=True)
            name = f"{os.getpid()}{RING_SUFFIX}" if n == 0 else f"{os.getpid()}.{n}{RING_SUFFIX}"
            path = self.dir / name
            try:
                _core.open_ring(
                    path,
                    bytes=self._bytes(),
                    rank=self._place.rank,
                    local_rank=self._place.local_rank,
                    world_size=self._place.world_size,
                    attempt=self._place.attempt,
                    host=os.uname().nodename,
                    node=node_name(),
                    run=self.run,
                    run_dir=self.run_dir,
                )
            except (FileExistsError, FileNotFoundError):
                # An earlier ring of this process or of one that had its pid; or the last recorder
                # was just leaving and removed the folder.
                continue
            self.path = path
            self._pid = os.getpid()
            return
        raise FileExistsError(17, "too many rings of one process", str(self.dir))

    def _bytes(self) -> int:
        wanted = self.options.ring_mib << 20
        require_room(self.dir, _core.MIN_RING_BYTES)
        room = room_for_ring(self.dir, wanted)
        if room < wanted:
            say_once(
                f"{self.dir} has {room >> 19} MiB left, so the ring takes {room >> 20} MiB "
                f"instead of {self.options.ring_mib}; a larger /dev/shm makes losses less likely"
            )
        return room

    def ensure_recorder(self, *, closed: bool = False) -> None:
        """Start a recorder when the run has none.

        Args:
            closed: the ring gets no more records.
        """
        try:
            if not recorder_running(self.dir):
                # One that was just started may not have its lock yet.
                if time.monotonic() - self._recorder_started > RECORDER_START_SECONDS:
                    self._recorder_started = time.monotonic()
                    start_recorder(self.dir, self.run_dir, self.options)
            else:
                ring_doorbell(self.dir)
            self._let_recorder_read()
        except OSError as error:
            if closed and self.path is not None and not self.path.exists():
                return  # the last one has written everything and removed the folder
            say_once(
                f"no recorder could be started ({error}); records stay in {self.path} until "
                "`haiprof recover` writes them"
            )

    def _let_recorder_read(self) -> None:
        """Let the recorder read this process's memory, for its stacks, where that needs a right.

        What the recorder starts to look at them in a hang may then read it, too.
        """
        wanted = self.options.stack_hz or self.options.hang_after
        if not wanted or not _core.reading_is_restricted():
            return

        # Each rank of a node starts a recorder. Which one stays shows in its lock a little later.
        def allow() -> None:
            until = time.monotonic() + _ELECTION_SECONDS
            while (pid := recorder_pid(self.dir)) is None and time.monotonic() < until:
                threads.sleep(0.1)
            with self._right:
                if pid is not None and self._may_let_read:
                    _core.let_read(pid)
                    self._reader_may = True

        with contextlib.suppress(RuntimeError):  # no more threads: stacks say why there are none
            threads.Background(allow)

    def let_nobody_read(self) -> None:
        """Take back what :meth:`ensure_recorder` lets the recorder do: recording has ended.

        Nothing is taken back from whom the job itself lets read it.
        """
        with self._right:
            if self._reader_may:
                _core.let_read(0)
            self._may_let_read = self._reader_may = False

    def write_pace(self) -> None:
        """Make the recorder and its successors read and drain at the rates in the options.

        Raises:
            OSError: the pace cannot be written.
        """
        import json

        pace = {
            "intervals": self.options.intervals(),
            "drain_hz": self.options.drain_hz,
            "stack_hz": self.options.stack_hz,
            "burst": self.burst,
        }
        # A file, for successors too, whichever rank starts them.
        with open_rings(self.dir).replacing(PACE_NAME, f"{PACE_NAME}.{os.getpid()}") as file:
            file.write(json.dumps(pace).encode())
        self.ensure_recorder()

    def flush(self, timeout: float = 10.0) -> list[Path]:
        """Write everything recorded so far to disk.

        Args:
            timeout: how long to wait for the recorder, s.

        Returns:
            The Arrow files of this process, complete up to this call; or the existing ones, with a
            line on stderr, when the recorder did not manage in time.
        """
        if not self.kept:
            return self.files()
        _core.gpu_flush(timeout)
        ticket = _core.request_flush()
        error: int | None = None
        until = time.monotonic() + timeout
        while error is None and (left := until - time.monotonic()) > 0:
            # Checked again while waiting: a recorder that was just killed still has its lock.
            self.ensure_recorder()
            error = _core.wait_flushed(ticket, min(left, 1.0))
        if error is None:
            say_once(f"the recorder did not flush within {timeout:g} s; see {self.dir}")
        elif error != 0:
            say_once(f"flush: {self.run_dir}: {os.strerror(error)}; free some room there")
        return self.files()

    def files(self) -> list[Path]:
        """Return the Arrow files of this process, oldest first."""
        folder = self.folder()
        return sorted(folder.glob("*.arrow*")) if folder is not None else []

    def folder(self) -> Path | None:
        """Return the folder of this process; None until the recorder has made it."""
        import json

        me = {"pid": self._pid, "host": os.uname().nodename, "start_time": start_time_of(self._pid)}
        if self.path is not None:
            me["ring"] = self.path.name
        for known in sorted(self.run_dir.glob(f"{node_name()}#*/{PROCESS_FILE}")):
            with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
                content = json.loads(Folder.at(known.parent).read(known.name))
                if all(content.get(key) == value for key, value in me.items()):
                    return known.parent
        return None

    def wait_closed(self, path: Path, seconds: float) -> None:
        """Wait up to ``seconds`` for the recorder to close the files of a ring that is closed."""
        ring_doorbell(self.dir)
        until = time.monotonic() + seconds
        look = 0.0
        while seconds > 0 and path.exists() and (now := time.monotonic()) < until:
            # Once a second: a recorder that cannot run here must not be started in a tight loop.
            if now >= look:
                look = now + 1.0
                self.ensure_recorder(closed=True)
            time.sleep(0.005)
