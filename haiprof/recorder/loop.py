"""The recorder's loop: find rings, drain them, sample the node, leave when nothing is left."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from haiprof.control.sockets import remove_dead
from haiprof.places import (
    CONTROL_FOLDER,
    DOORBELL_NAME,
    LOCK_NAME,
    PACE_NAME,
    RECORDER_LOG,
    Access,
)
from haiprof.recorder.election import Election
from haiprof.recorder.life import Life
from haiprof.recorder.node import NodeRecorder
from haiprof.recorder.outside import OutsideProcess, notes_in
from haiprof.recorder.process import RecordedProcess, rings_in

log = logging.getLogger(__name__)

#: A ring file that is still unfinished after this many seconds has lost its maker.
_UNFINISHED_SECONDS: Final = 10.0
#: How often a full disk is tried again, s.
_RETRY_SECONDS: Final = 1.0
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
#: With every process dead, a disk that stays full this long (s) is left to ``haiprof recover``.
_GIVE_UP_SECONDS: Final = 600.0


class Recorder:
    """Records one run on one node."""

    def __init__(
        self,
        ring_dir: Path,
        run_dir: Path,
        *,
        intervals: Mapping[str, float],
        drain_hz: float,
        access: Access,
    ) -> None:
        """Prepare; nothing is touched before :meth:`run`."""
        self._ring_dir = ring_dir
        self._run_dir = run_dir
        self._drain_seconds = 1.0 / drain_hz
        self._intervals = intervals
        self._access = access
        self._processes: dict[Path, RecordedProcess] = {}
        self._outside: dict[str, OutsideProcess] = {}
        self._refused: dict[Path, str] = {}
        self._watched: Life | None = None
        self._paused_since: float | None = None
        self._pause_error = 0
        self._terminations = 0
        self._pace_read: tuple[int, int] | None = None

    def watch_command(self, pid: int, start_time: int) -> None:
        """Stay until that process has ended, rings or not."""
        self._watched = Life(pid, start_time)

    def run(self, election: Election) -> None:
        """Record until the last ring is closed or dead and drained. The lock must be held."""
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        doorbell = self._open_doorbell()
        try:
            while self._record(doorbell):
                tidy(self._ring_dir, self._run_dir)
                # Let go first, then look again: a ring or a note that was made meanwhile either
                # sees a free lock or is seen here.
                election.resign()
                if not self._anybody_left() or not election.win(patience=0):
                    return
                os.close(doorbell)
                doorbell = self._open_doorbell()
        finally:
            os.close(doorbell)

    def _record(self, doorbell: int) -> bool:
        """Record until nothing is left, and close all files; False when something had to stay."""
        self._look_at_pace()
        node = self._open_node()
        if self._watched is not None:
            node.watch_command(self._watched.pid)
        try:
            while True:
                self._turn(node)
                if self._terminations > 1:
                    return not self._anybody_left()
                if self._hopeless():
                    log.error("the disk stayed full; `haiprof recover` writes the rings later")
                    return False
                if not self._work_left():
                    return True
                self._sleep(doorbell, node)
        finally:
            # While the lock is held: the next recorder opens the same files. The log before: who
            # waits until the node's are closed may take the folder then.
            keep_log(self._ring_dir, self._run_dir)
            with contextlib.suppress(OSError):
                node.close()

    def _open_node(self) -> NodeRecorder:
        """Make the node's folder; where it cannot be had now, try until it can."""
        since = time.monotonic()
        told = False
        while True:
            try:
                return NodeRecorder(self._run_dir, self._intervals, self._access)
            except OSError as error:
                if self._terminations > 1 or time.monotonic() - since > _GIVE_UP_SECONDS:
                    raise
                if not told:
                    told = True
                    log.error(
                        "%s: %s; recording begins when it can be written, the rings are kept",
                        error.filename or self._run_dir,
                        os.strerror(error.errno or errno.EIO),
                    )
                time.sleep(_RETRY_SECONDS)

    # -- one turn --------------------------------------------------------------------------------

    def _turn(self, node: NodeRecorder) -> None:
        if self._paused_since is not None:
            for process in self._processes.values():
                process.refuse_flush(self._pause_error)
        failed: OSError | None = None
        parts: list[Callable[[], None]] = [
            lambda: self._find_rings(node),
            lambda: self._find_notes(node),
            lambda: self._keep_pace(node),
            *(functools.partial(self._drain, p, node) for p in list(self._processes.values())),
            *(functools.partial(self._see_to, name, node) for name in list(self._outside)),
            lambda: self._sample(node),
        ]
        for part in parts:
            try:
                part()
            except OSError as error:
                failed = failed or error
        if failed is not None:
            self._pause(node, failed)
        elif self._paused_since is not None:
            self._go_on(node)

    def _keep_pace(self, node: NodeRecorder) -> None:
        before = self._intervals
        if self._look_at_pace() and self._intervals != before:
            node.change_pace(self._intervals, self._processes.values())

    def _look_at_pace(self) -> bool:
        """Take over the pace that a session has asked for since the last look; False: none has."""
        path = self._ring_dir / PACE_NAME
        try:
            about = path.stat()
            if (about.st_ino, about.st_mtime_ns) == self._pace_read:
                return False
            self._pace_read = (about.st_ino, about.st_mtime_ns)
            told = json.loads(path.read_text(encoding="ascii"))
            self._intervals = {str(n): float(s) for n, s in told["intervals"].items()}
            self._drain_seconds = 1.0 / float(told["drain_hz"])
        except FileNotFoundError:
            return False
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as e:
            log.error("%s: the pace stays as it is: %r", path, e)
            return False
        return True

    def _drain(self, process: RecordedProcess, node: NodeRecorder) -> None:
        try:
            process.drain()
            node.use_gpus(process.folder, process.gpu_uuids)
        except OSError:
            raise
        except Exception as error:
            # One ring that we cannot digest must not cost the others their recorder.
            log.exception("%s is left alone from here on", process.ring)
            node.event("recorder", f"{process.ring.name} is left alone: {error}")
            self._refused[process.ring] = str(error)
            process.ended = True
        if process.ended:
            node.unuse_gpus(process.folder)
            node.unwatch_counters(process)
            node.unwatch(process.pid, process.folder)
            del self._processes[process.ring]

    def _sample(self, node: NodeRecorder) -> None:
        if self._paused_since is not None:
            node.write()  # what waits comes first; until it is written nothing is added
        node.sample()

    def _find_rings(self, node: NodeRecorder) -> None:
        failed: OSError | None = None
        found: list[RecordedProcess] = []
        for path in rings_in(self._ring_dir):
            if path in self._processes or path in self._refused:
                continue
            try:
                process = RecordedProcess(path, self._run_dir)
            except BlockingIOError:
                self._drop_if_unfinished(path)
                continue
            except ValueError as error:
                # Not ours to delete: a newer haiprof may be able to read it.
                self._refused[path] = str(error)
                log.error("%s", error)
                node.event("recorder", f"a ring could not be read: {error}")
                continue
            except OSError as error:
                if path.exists():  # else its process has taken it away
                    failed = failed or error
                continue
            self._processes[path] = process
            found.append(process)
            # A fork or a helper is already in the tree of its rank.
            if process.role == "rank":
                node.watch(process.pid, process.folder)
        for process in found:  # a helper's count at its rank, which is watched now
            node.watch_counters(process)
        if failed is not None:
            raise failed

    def _find_notes(self, node: NodeRecorder) -> None:
        for path in notes_in(self._ring_dir):
            if path.stem in self._outside or path in self._refused:
                continue
            try:
                process = OutsideProcess(path, self._run_dir)
            except FileNotFoundError:
                continue
            except ValueError as error:
                self._refused[path] = str(error)
                log.error("%s", error)
                continue
            self._outside[path.stem] = process
            node.watch(process.pid, process.folder)
            node.event("attach", f"{process.label} is watched from outside: {process.why}")

    def _see_to(self, name: str, node: NodeRecorder) -> None:
        process = self._outside[name]
        if process.over():
            node.unwatch(process.pid, process.folder)
            process.close()
            del self._outside[name]

    @staticmethod
    def _drop_if_unfinished(path: Path) -> None:
        with contextlib.suppress(OSError):
            age = time.time() - path.stat().st_mtime
            if age > _UNFINISHED_SECONDS:
                log.warning("%s was never finished; its maker died while making it", path)
                path.unlink()

    def _work_left(self) -> bool:
        if self._paused_since is not None or self._anybody_left():
            return True
        return self._watched is not None and not self._watched.ended()

    def _anybody_left(self) -> bool:
        there = (*rings_in(self._ring_dir), *notes_in(self._ring_dir))
        return bool(self._processes or self._outside) or any(p not in self._refused for p in there)

    def _lives(self) -> list[Life]:
        return [p.life for p in self._processes.values()] + [p.life for p in self._outside.values()]

    def _hopeless(self) -> bool:
        """Return whether only a full disk keeps us here, and has for long."""
        return (
            self._paused_since is not None
            and time.monotonic() - self._paused_since > _GIVE_UP_SECONDS
            and all(life.ended() for life in self._lives())
        )

    # -- a disk that does not take it ------------------------------------------------------------

    def _pause(self, node: NodeRecorder, error: OSError) -> None:
        self._pause_error = error.errno or errno.EIO
        if self._paused_since is not None:
            return
        self._paused_since = time.monotonic()
        until = "until there is room" if self._pause_error in _FULL else "and tried again"
        text = (
            f"{error.filename or self._run_dir}: {os.strerror(self._pause_error)}; writing is "
            f"paused {until}, the job is not affected"
        )
        log.error("%s", text)
        node.event("disk", text, {"errno": self._pause_error})

    def _go_on(self, node: NodeRecorder) -> None:
        assert self._paused_since is not None
        seconds = time.monotonic() - self._paused_since
        self._paused_since = None
        log.warning("writing goes on after %.1f s", seconds)
        node.event("disk", f"writing goes on after a pause of {seconds:.1f} s", {"s": seconds})

    # -- waiting ---------------------------------------------------------------------------------

    def _open_doorbell(self) -> int:
        path = self._ring_dir / DOORBELL_NAME
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def _sleep(self, doorbell: int, node: NodeRecorder) -> None:
        seconds = self._drain_seconds
        if self._paused_since is not None:
            seconds = _RETRY_SECONDS
        else:
            due = (node.next_due_ns - time.monotonic_ns()) / 1e9
            seconds = max(0.001, min(seconds, due))
        poll = select.poll()
        poll.register(doorbell, select.POLLIN)
        lives = self._lives()
        if self._watched is not None:
            lives.append(self._watched)
        for life in lives:
            if life.fd is not None and not life.ended():
                poll.register(life.fd, select.POLLIN)
        poll.poll(seconds * 1000)
        with contextlib.suppress(BlockingIOError):
            while len(os.read(doorbell, 4096)) == 4096:
                pass

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """Stay while there is a job to record; a second SIGTERM is an order to leave at once."""
        self._terminations += 1


def keep_log(ring_dir: Path, run_dir: Path) -> None:
    """Move what the log says, if anything, to the run."""
    with contextlib.suppress(OSError):
        log_file = ring_dir / RECORDER_LOG
        text = log_file.read_bytes()
        if text:
            with (run_dir / RECORDER_LOG).open("ab") as file:
                file.write(text)
            os.truncate(log_file, 0)  # whoever writes it appends


def tidy(ring_dir: Path, run_dir: Path) -> None:
    """Leave nothing in shared memory; a log that says anything goes to the run."""
    keep_log(ring_dir, run_dir)
    for name in (RECORDER_LOG, DOORBELL_NAME, PACE_NAME, LOCK_NAME):
        (ring_dir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        ring_dir.rmdir()
    remove_dead(ring_dir.parent / CONTROL_FOLDER)
