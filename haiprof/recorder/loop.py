"""The recorder's loop: find rings, drain them, sample the node, leave when nothing is left.

Tests: tests/recorder/test_main.py.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from haiprof._core import BrokenRing, StackSampler, do_chores
from haiprof.common.control_folder import remove_dead
from haiprof.common.owned_files import Folder, private_folder
from haiprof.common.places import (
    CONTROL_FOLDER,
    DOORBELL_NAME,
    FIGURES_MARK,
    FIGURES_NAME,
    FINDINGS_NAME,
    HAIPROF_MARK,
    HANG_NAME,
    LOCK_NAME,
    PACE_NAME,
    RECORDER_LOG,
    TORCH_MARK,
    Access,
    node_name,
    removed,
)
from haiprof.common.process_life import Life, process_is_alive
from haiprof.common.wait_status import forget_statuses
from haiprof.recorder.closer_look import CloserLook
from haiprof.recorder.command import Command, remove_note
from haiprof.recorder.election import Election
from haiprof.recorder.figures import Figures
from haiprof.recorder.findings import Findings
from haiprof.recorder.hangs import Hangs
from haiprof.recorder.memory_kills import MemoryKills
from haiprof.recorder.node import NodeRecorder, has_been_recorded
from haiprof.recorder.on_finding import OnFinding
from haiprof.recorder.outside import OutsideProcess
from haiprof.recorder.process import WRITE_SECONDS, RecordedProcess
from haiprof.recorder.ring_folder import RingFolder
from haiprof.recorder.run_folder import open_run
from haiprof.recorder.storage import Storage, limit_of

if TYPE_CHECKING:
    from haiprof.recorder.metrics.exports import Exports

log = logging.getLogger(__name__)

#: A ring file that is still unfinished after this many seconds has lost its maker.
_UNFINISHED_SECONDS: Final = 10.0
#: How often it is looked whether there is more to do than to empty rings and to read sources, s,
#: unless rings are drained even more rarely or twenty times as often. A changed folder, the
#: doorbell and the end of a process do not wait for that.
_TURN_SECONDS: Final = 5.0
#: What was asked for at the doorbell is written this long after the last write, s.
_ASKED_SECONDS: Final = 1.0
#: Sources that are read this much later than a turn are read before it.
_SOON_NS: Final = 50_000_000
#: How often a full disk is tried again, s.
_RETRY_SECONDS: Final = 1.0
#: Most bytes of a log to keep; only deliberate flooding makes one that large.
_LOG_BYTES: Final = 16 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
#: How long to wait for the note of `haiprof run` on a command that has just ended, s.
_NOTED_SECONDS: Final = 5.0
#: With every process dead, a disk that stays full this long (s) is left to ``haiprof recover``.
_GIVE_UP_SECONDS: Final = 600.0

#: What is in the folder of rings beside rings and notes; the lock goes last.
_TIDIED: Final = (
    *(RECORDER_LOG, DOORBELL_NAME, PACE_NAME, HANG_NAME, FINDINGS_NAME),
    *(FIGURES_NAME, FIGURES_MARK),
    *(HAIPROF_MARK, TORCH_MARK, LOCK_NAME),
)


class Recorder:
    """Records one run on one node."""

    def __init__(
        self,
        run_dir: Path,
        *,
        intervals: Mapping[str, float],
        drain_hz: float,
        stack_hz: float,
        hang_after: float,
        on_finding: str = "",
        storage_limit: float = 0.0,
        metrics: str = "",
        peak_flops: float = 0.0,
        access: Access,
    ) -> None:
        """Prepare; nothing is touched before :meth:`run`."""
        self._rings: Folder
        self._seen: RingFolder
        self._run_dir = run_dir
        self._drain_seconds = 1.0 / drain_hz
        self._intervals = intervals
        self._access = access
        self._processes: dict[Path, RecordedProcess] = {}
        self._outside: dict[str, OutsideProcess] = {}
        #: Processes whose files are closed and which are about to end. We do not stay for them.
        self._lingering: list[RecordedProcess] = []
        self._refused: dict[Path, str] = {}
        self._watched: Life | None = None
        self._kills = MemoryKills()
        self._stack_hz = stack_hz
        self._hang_after, self._on_finding = hang_after, on_finding
        self._storage_limit = storage_limit
        self._metrics, self._peak_flops = metrics, peak_flops
        self._exports: Exports | None = None
        self._storage: Storage
        self._burst = 0.0, 0
        self._stacks = StackSampler(stack_hz)
        self._closer = CloserLook()
        #: How often the sources are read now, s.
        self._read_every = intervals
        self._somebody_ended = False
        #: How often to look at all else: hangs are seen by what was written.
        self._turn_seconds = min(_TURN_SECONDS, hang_after / 2 or _TURN_SECONDS)
        #: How long after the last write the next is due, s.
        self._write_after = min(WRITE_SECONDS, self._turn_seconds)
        self._paused_since: float | None = None
        self._pause_error = 0
        self._terminations = 0
        self._pace_read: tuple[int, int] | None = None

    def run(self, election: Election) -> None:
        """Record until the last ring is closed or dead and drained. The election must be won."""
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._use_rings(election.folder)
        self._run = self._open_run()
        doorbell = self._open_doorbell()
        try:
            while self._record(doorbell):
                tidy(self._rings, self._run)
                # Resign first, then look again: a ring or a note that was made meanwhile either
                # sees a free lock or is seen here.
                election.resign()
                if not self._anybody_asks() or not election.win(patience=0):
                    return
                self._use_rings(election.folder)
                os.close(doorbell)
                doorbell = self._open_doorbell()
        finally:
            os.close(doorbell)

    def _use_rings(self, folder: Folder) -> None:
        self._rings, self._seen = folder, RingFolder(folder)

    def _open_run(self) -> Folder:
        # Root may observe another user's process from outside, into a folder of theirs: whoever
        # started this recorder has checked the owner.
        return open_run(self._run_dir, make=True, owners=None if os.geteuid() == 0 else ())

    def _run_now(self) -> Folder:
        """Return the run's folder; a new one where somebody has removed it."""
        if removed(self._run_dir):
            self._run = self._open_run()
        return self._run

    def _record(self, doorbell: int) -> bool:
        """Record until nothing is left, and close all files; False if something is left."""
        if not self._anybody_asks() and has_been_recorded(self._run):
            # Each rank starts a recorder, and on a busy machine one may come when all is over: it
            # must not write that nothing was there over what the last one has closed.
            return True
        self._seen.look()
        self._look_at_pace()
        node = self._open_node()
        about = {"run": self._run.path.name, "run_dir": str(self._run.path), "node": node_name()}
        on_finding = OnFinding(self._on_finding, about)

        def tell(kind: str, text: str, attributes: dict[str, Any]) -> None:
            node.event(kind, text, attributes)
            on_finding.add(kind, text, attributes)
            if self._exports is not None:
                self._exports.note(kind, attributes)

        self._exports = self._begin_exports(node, about)
        hangs = Hangs(self._run, self._rings, tell, self._hang_after)
        findings = Findings(self._run, self._rings, tell, self._look_closer)
        figures = Figures(self._rings)
        try:
            while True:
                self._turn(node)
                hangs.turn(list(self._processes.values()), self._running_command())
                findings.turn(list(self._processes.values()))
                figures.turn(self._seen.names, list(self._processes.values()))
                on_finding.turn()
                if self._exports is not None:
                    self._exports.turn(node)
                if self._hopeless():
                    log.error("the disk stayed full; `haiprof recover` writes the rings later")
                    return False
                if not self._work_left():
                    return True
                if self._terminations > 1:
                    return not self._anybody_left()
                self._wait(doorbell, node)
        finally:
            hangs.close()
            findings.close()
            self._closer.end()
            on_finding.close()
            if self._exports is not None:
                self._exports.close(node)
                self._exports = None
            # While we have the lock: the next recorder opens the same files. The log comes first:
            # somebody who waits for the node's files may then remove the folder.
            keep_log(self._rings, self._run)
            with contextlib.suppress(OSError):
                self._look_at_lingering()
            with contextlib.suppress(OSError):
                self._leave_command(node)
                node.close(self._marks())

    def _begin_exports(self, node: NodeRecorder, about: Mapping[str, str]) -> Exports | None:
        if not self._metrics:
            return None
        # What nobody asks for is not even imported.
        from haiprof.common.metrics_targets import targets_of
        from haiprof.recorder.metrics.exports import Exports

        labels = {name: about[name] for name in ("run", "node")}
        targets, say = targets_of(self._metrics), functools.partial(node.event, "recorder")
        exports = Exports(targets, labels, say, self._peak_flops)
        node.hand_rows_to(exports.rows_of_node())
        return exports

    def _running_command(self) -> Command | None:
        if self._watched is None or self._watched.ended():
            return None
        return Command(self._watched.pid, self._watched.start_time)

    def _marks(self) -> dict[str, bool]:
        """Return what Pythons of the job have loaded, by the marks that they left."""
        self._seen.look()
        return {
            "haiprof": HAIPROF_MARK in self._seen.names,
            "torch": TORCH_MARK in self._seen.names,
        }

    def _leave_command(self, node: NodeRecorder) -> None:
        life, self._watched = self._watched, None
        if life is None:
            return
        command = Command(life.pid, life.start_time)
        if life.ended():
            asked = life.ask_parent(self._rings, _NOTED_SECONDS)
            self._kills.judge({command: life.killed})
            node.end_command(life, self._kills.verdict(*command), asked)
        remove_note(self._rings, command)

    def _look_at_lingering(self) -> None:
        for process in self._lingering:
            process.look_at_end()
        self._lingering = [process for process in self._lingering if process.lingers]

    def _judge_the_dead(self) -> None:
        """Check all that have ended together: only so it shows who was killed for memory."""
        if not self._somebody_ended:
            return
        self._somebody_ended = False
        lives = self._lives()
        if self._watched is not None:
            lives.append(self._watched)
        dead = [life for life in lives if life.ended()]
        for life in dead:
            if life.status is None:
                life.ask_parent(self._rings)
        self._kills.judge({(life.pid, life.start_time): life.killed for life in dead})

    def _open_node(self) -> NodeRecorder:
        """Make the node's folder; retry until that works."""
        since = time.monotonic()
        logged = False
        while True:
            try:
                self._read_every = self._intervals
                run = self._run_now()
                limit = limit_of(self._storage_limit, run)
                self._storage = Storage(run, node_name(), limit)
                return NodeRecorder(run, self._intervals, self._access, self._storage)
            except OSError as error:
                if self._terminations > 1 or time.monotonic() - since > _GIVE_UP_SECONDS:
                    raise
                if not logged:
                    logged = True
                    log.error(
                        "%s: %s; recording begins when it can be written, the rings are kept",
                        error.filename or self._run_dir,
                        os.strerror(error.errno or errno.EIO),
                    )
                time.sleep(_RETRY_SECONDS)

    # -- one turn --------------------------------------------------------------------------------

    def _turn(self, node: NodeRecorder) -> None:
        """Do all there is to do now."""
        self._seen.look()
        if self._paused_since is not None:
            for process in self._processes.values():
                process.refuse_flush(self._pause_error)
        failed: OSError | None = None
        for part in self._parts(node):
            try:
                part()
            except OSError as error:
                failed = failed or error
        if failed is not None:
            self._pause(node, failed)
        elif self._paused_since is not None:
            self._go_on(node)

    def _parts(self, node: NodeRecorder) -> list[Callable[[], None]]:
        """Return what a turn consists of: if one fails, the others are done."""
        return [
            lambda: self._find_rings(node),
            lambda: self._find_notes(node),
            lambda: self._find_command(node),
            lambda: self._keep_pace(node),
            self._judge_the_dead,
            self._look_at_lingering,
            *(functools.partial(self._drain, p, node) for p in list(self._processes.values())),
            *(functools.partial(self._check_outside, name, node) for name in list(self._outside)),
            lambda: self._sample(node),
            lambda: self._say(node),
        ]

    def _say(self, node: NodeRecorder) -> None:
        for text in self._storage.remarks():
            node.event("recorder", text)

    def _keep_pace(self, node: NodeRecorder) -> None:
        self._look_at_pace()
        self._closer.turn()
        self._pace_stacks()
        every = self._closer.intervals(self._intervals)
        if every != self._read_every:
            self._read_every = every
            node.change_pace(every, self._processes.values())

    def _pace_stacks(self) -> None:
        hz, until = self._burst
        if time.time_ns() >= until:
            hz = self._closer.stack_hz(self._stack_hz)
        if hz != self._stacks.hz:
            self._stacks.hz = hz

    def _look_closer(self) -> None:
        """Gather more evidence while steps are slower than they were, to see why."""
        self._closer.begin([one.pid for one in self._processes.values() if one.gpus])

    def _look_at_pace(self) -> None:
        """Adopt the pace that a session has asked for since the last call."""
        if PACE_NAME not in self._seen.names:
            return
        try:
            about = self._rings.stat(PACE_NAME)
            if (about.st_ino, about.st_mtime_ns) == self._pace_read:
                return
            self._pace_read = (about.st_ino, about.st_mtime_ns)
            pace = json.loads(self._rings.read(PACE_NAME))
            self._intervals = {str(n): float(s) for n, s in pace["intervals"].items()}
            self._drain_seconds = 1.0 / float(pace["drain_hz"])
            self._stack_hz = float(pace.get("stack_hz", self._stack_hz))
            hz, until = pace.get("burst", self._burst)
            self._burst = float(hz), int(until)
        except FileNotFoundError:
            return
        except (
            *(OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError),
            RecursionError,
        ) as e:
            log.error("%s: the pace stays as it is: %r", self._rings.path / PACE_NAME, e)

    def _drain(self, process: RecordedProcess, node: NodeRecorder) -> None:
        try:
            process.drain(self._write_after)
            node.use_gpus(process.folder, process.gpu_uuids)
        except OSError:
            raise
        except BrokenRing as error:
            size = process.bytes
            why = f"{self._as_known(str(error))}; what it still held is lost ({size} bytes)"
            self._set_aside(process, node, why)
            # Otherwise every later recorder would set it aside again.
            self._rings.remove(process.ring.name)
        except Exception as error:
            where = self._rings.path / process.ring.name
            log.exception("%s", where)
            self._set_aside(process, node, f"{where}: {error}")
        if process.ended:
            node.unuse_gpus(process.folder)
            node.unwatch_counters(process)
            node.unwatch(process.pid, process.folder)
            del self._processes[process.ring]
            if process.lingers:
                self._lingering.append(process)

    def _set_aside(self, process: RecordedProcess, node: NodeRecorder, why: str) -> None:
        """Stop reading a ring: it must not cost the others their recorder."""
        log.error("%s; this ring is set aside", why)
        node.event("recorder", f"a ring is set aside: {why}")
        self._refused[process.ring] = why
        process.abandon(why)

    def _sample(self, node: NodeRecorder) -> None:
        if self._paused_since is not None:
            node.write()  # waiting rows first; nothing is added until they are written
        node.sample(self._write_after)

    def _find_rings(self, node: NodeRecorder) -> None:
        failed: OSError | None = None
        found: list[RecordedProcess] = []
        for path in self._seen.rings:
            if path in self._processes or path in self._refused:
                continue
            try:
                process = RecordedProcess(
                    path, self._run_now(), self._kills, self._stacks, self._storage
                )
            except BlockingIOError:
                self._drop_if_unfinished(path)
                continue
            except OSError as error:
                if path.exists():  # else its process has removed it
                    failed = failed or error
                continue
            except Exception as error:
                # Not deleted: a newer haiprof may be able to read it.
                reason = self._refuse(path, error)
                node.event("recorder", f"a ring could not be read: {reason}")
                continue
            self._processes[path] = process
            found.append(process)
            # A fork or a helper is already in the tree of its rank.
            if process.role == "rank":
                node.watch(process.pid, process.folder)
                if self._exports is not None:
                    process.on_rows = self._exports.rows_of(process)
        for process in found:  # helpers count for their rank, which is watched by now
            node.watch_counters(process)
        if failed is not None:
            raise failed

    def _find_notes(self, node: NodeRecorder) -> None:
        for path in self._seen.notes:
            if path.stem in self._outside or path in self._refused:
                continue
            try:
                process = OutsideProcess(path, self._run_now(), self._kills)
            except FileNotFoundError:
                continue
            except ValueError as error:
                self._refuse(path, error)
                continue
            self._outside[path.stem] = process
            node.watch(process.pid, process.folder)
            node.event("attach", f"{process.label} is watched from outside: {process.why}")

    def _find_command(self, node: NodeRecorder) -> None:
        """Stay for a launched command; if there are several, for one after the other."""
        commands = list(self._seen.commands)
        if self._watched is not None:
            watched = Command(self._watched.pid, self._watched.start_time)
            for ended in [c for c in commands if c != watched and not process_is_alive(*c)]:
                commands.remove(ended)
                remove_note(self._rings, ended)
            if not self._watched.ended() or commands in ([], [watched]):
                return
            self._leave_command(node)
            commands = [c for c in commands if c != watched]
        if commands:
            self._watched = Life(*commands[0])
            self._kills.join(*commands[0])
            node.watch_command(self._watched.pid)

    def _as_known(self, text: str) -> str:
        """Replace paths through our descriptor by those that the user knows."""
        return text.replace(str(self._seen.path), str(self._rings.path))

    def _refuse(self, path: Path, error: Exception) -> str:
        reason = self._as_known(str(error))
        self._refused[path] = reason
        log.error("%s", reason)
        return reason

    def _check_outside(self, name: str, node: NodeRecorder) -> None:
        process = self._outside[name]
        if process.over():
            node.unwatch(process.pid, process.folder)
            process.close()
            del self._outside[name]

    def _drop_if_unfinished(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            age = time.time() - path.stat().st_mtime
            if age > _UNFINISHED_SECONDS:
                shown = self._rings.path / path.name
                log.warning("%s was never finished; its maker died while making it", shown)
                path.unlink()

    def _work_left(self) -> bool:
        if self._paused_since is not None or self._anybody_left():
            return True
        if self._watched is not None and not self._watched.ended():
            return True
        return len(self._seen.commands) > (0 if self._watched is None else 1)

    def _anybody_asks(self) -> bool:
        """Return whether somebody came while we had no lock."""
        return self._anybody_left() or bool(self._seen.commands)

    def _anybody_left(self) -> bool:
        if self._processes or self._outside:
            return True
        self._seen.look()  # somebody may have come since
        return any(path not in self._refused for path in (*self._seen.rings, *self._seen.notes))

    def _lives(self) -> list[Life]:
        return [p.life for p in self._processes.values()] + [p.life for p in self._outside.values()]

    def _hopeless(self) -> bool:
        """Return whether only a full disk has kept us here, for a long time."""
        return (
            self._paused_since is not None
            and time.monotonic() - self._paused_since > _GIVE_UP_SECONDS
            and all(life.ended() for life in self._lives())
        )

    # -- a disk that refuses writes ---------------------------------------------------------------

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
        self._rings.make_pipe(DOORBELL_NAME)
        return self._rings.open_pipe(DOORBELL_NAME, os.O_RDWR)

    def _wait(self, doorbell: int, node: NodeRecorder) -> None:
        """Empty rings and read sources until there is more to do."""
        lives = self._lives()
        if self._watched is not None:
            lives.append(self._watched)
        ends = [life.fd for life in lives if life.fd is not None and not life.ended()]
        paused = self._paused_since is not None
        woken = do_chores(
            [doorbell, *ends],
            until_ns=self._next_turn_ns(node),
            every_ns=int(self._drain_seconds * 1e9),
            folder=self._seen.fd,
            changed_ns=self._seen.changed_ns,
            often=[] if paused else [process.chore for process in self._processes.values()],
            when_due=[] if paused else [node.chore],
        )
        self._somebody_ended |= any(fd != doorbell for fd in woken)
        asked = doorbell in woken or self._closer.looks
        self._write_after = min(_ASKED_SECONDS if asked else WRITE_SECONDS, self._turn_seconds)
        if doorbell in woken:
            with contextlib.suppress(BlockingIOError):
                while len(os.read(doorbell, 4096)) == 4096:
                    pass

    def _next_turn_ns(self, node: NodeRecorder) -> int:
        now = time.monotonic_ns()
        if self._paused_since is not None:
            return now + int(_RETRY_SECONDS * 1e9)
        seconds = max(self._drain_seconds, min(self._turn_seconds, self._drain_seconds * 20))
        # What is sampled more often for a time begins and ends on time.
        seconds = min(seconds, _ASKED_SECONDS) if self._closer.looks else seconds
        at = now + int(seconds * 1e9)
        if time.time_ns() < self._burst[1]:
            at = min(at, now + self._burst[1] - time.time_ns())
        # Together with the last reading of sources before: to wake up once more costs more.
        due, every = node.next_due_ns, min(filter(None, self._read_every.values()), default=0.0)
        if not every or not now < due < at:
            return at
        every_ns = int(every * 1e9)
        return due + (at + _SOON_NS - due) // every_ns * every_ns

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        """Stay while there is a job to record; a second SIGTERM means leave at once."""
        self._terminations += 1


def keep_log(rings: Folder, run: Folder) -> None:
    """Move the log, if not empty, to the run."""
    with contextlib.suppress(OSError):
        log_file = rings.update(RECORDER_LOG, make=False)
        try:
            _move(log_file, run)
        finally:
            os.close(log_file)


def _move(log_file: int, run: Folder) -> None:
    text = os.pread(log_file, _LOG_BYTES, 0)
    if text:
        with os.fdopen(run.update(RECORDER_LOG, os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(text)
        os.truncate(log_file, 0)  # whoever writes it appends


def tidy(rings: Folder, run: Folder | None) -> None:
    """Leave nothing in shared memory; a log that is not empty goes to the run."""
    if run is not None:
        keep_log(rings, run)
    forget_statuses(rings)
    for name in _TIDIED:
        rings.remove(name)
    with contextlib.suppress(OSError):
        above = private_folder(rings.path.parent)
        above.remove_folder(rings.path.name)
    remove_dead(rings.path.parent / CONTROL_FOLDER)
