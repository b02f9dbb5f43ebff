"""start / stop / flush in the profiled process.

Nothing here may raise into the job, block it or end it: whatever fails is told once on stderr and
the job goes on, unprofiled if need be.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from haiprof import _core
from haiprof.launcher import Placement, placement
from haiprof.options import ENABLED_VARIABLE, Options, resolve
from haiprof.places import (
    PACE_NAME,
    RING_SUFFIX,
    make_private,
    node_name,
    ring_dir,
    ring_root,
    room_for_ring,
)
from haiprof.recorder.election import recorder_running
from haiprof.recorder.launch import ring_doorbell, start_recorder
from haiprof.recorder.life import parent_of, start_time_of
from haiprof.run_folder import made_up_name, open_run_folder, why_not
from haiprof.schema import PROCESS_FILE

#: How long ``stop()`` waits for the files to be closed, s. The end of the job does not wait, unless
#: a container or a step of SLURM ends with it.
_STOP_SECONDS: Final = 10.0

#: How long CUPTI may take to hand over its last records, s.
_KERNELS_SECONDS: Final = 1.0

#: How long a recorder may take from its start to its lock, s.
_RECORDER_START_SECONDS: Final = 2.0

#: A fork server stands between a rank and its workers, a shell or a starter may, too.
_LEVELS_ABOVE: Final = 4

_lock = threading.RLock()
_active: Session | None = None
_told: set[str] = set()
_listening: list[list[str]] = []


def tell(text: str) -> None:
    """Show the user one line on stderr, the same one once."""
    for lines in _listening:
        lines.append(text)
    if text in _told or sys.stderr is None:
        return
    _told.add(text)
    with contextlib.suppress(Exception):
        print(f"haiprof: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def overheard() -> Iterator[list[str]]:
    """Collect what the user is told meanwhile, for one who asked from elsewhere."""
    lines: list[str] = []
    _listening.append(lines)
    try:
        yield lines
    finally:
        _listening.remove(lines)


class Session:
    """The recording of this process. ``start()`` makes it; it is the same until ``stop()``."""

    def __init__(self, options: Options, place: Placement) -> None:
        """Name the run and its folders; nothing is touched yet."""
        self.options = options
        self.run = options.run or made_up_name(_script(), place)
        self.run_dir = _absolute(options.log_dir) / self.run
        self._place = place
        self._ring_dir = ring_dir(self.run)
        self._ring: Path | None = None
        self._recorder_started = -math.inf
        self._pid = os.getpid()
        #: When it begins and ends (CLOCK_MONOTONIC, s); the end is known once it has begun.
        self._begins = time.monotonic() + options.warmup
        self._ends: float | None = None
        #: When the first record could be kept (UTC, ns); None until then.
        self.since_ns: int | None = None
        self._timer: threading.Timer | None = None

    @property
    def recording(self) -> bool:
        """Whether records of this process are being kept."""
        return self._ring is not None and self._pid == os.getpid() and _core.ring_open()

    @property
    def warming_up(self) -> bool:
        """Whether the recording is to begin later."""
        return time.monotonic() < self._begins

    @property
    def begins_in(self) -> float:
        """Seconds until the recording is to begin; 0 when that time has come."""
        return max(self._begins - time.monotonic(), 0.0)

    @property
    def ends_in(self) -> float | None:
        """Seconds until it ends; None: with the process, or it has not begun."""
        return None if self._ends is None else max(self._ends - time.monotonic(), 0.0)

    @property
    def ring(self) -> Path | None:
        """The ring, in a folder of the run's; None until there is one."""
        return self._ring

    @property
    def place(self) -> Placement:
        """What the launcher says of this process."""
        return self._place

    def end_after(self, seconds: float) -> None:
        """End it so many seconds from now, or from its beginning; 0: with the process."""
        with _lock:
            self.options = self.options._replace(time=seconds)
            if not self.recording:
                return
            self.forget_timer()
            self._ends = time.monotonic() + seconds if seconds else None
            if self._ends is not None:
                self.later(self._ends, _stop)

    def record_kernels(self, **changed: Any) -> None:
        """Record the GPU with these options from now on: ``kernels`` and what belongs to it."""
        with _lock:
            self.options = self.options._replace(**changed)
            if self.recording and _active is self:
                _stop_kernels()
                _install_kernels(self.options)

    def change_pace(self, **changed: Any) -> None:
        """Have the recorder read and drain as often as these options say, for the whole run.

        Raises:
            OSError: the recorder cannot be told.
        """
        import json

        with _lock:
            self.options = self.options._replace(**changed)
            if not self.recording:
                return
            told = {"intervals": self.options.intervals(), "drain_hz": self.options.drain_hz}
            partial = self._ring_dir / f"{PACE_NAME}.{os.getpid()}"
            partial.write_text(json.dumps(told), encoding="ascii")
            # For its successors, too, whichever rank starts them.
            partial.replace(self._ring_dir / PACE_NAME)
            self.see_to_recorder()

    def later(self, when: float, what: Callable[[Session], None]) -> None:
        """Call ``what(self)`` at a time (CLOCK_MONOTONIC, s), on a thread of its own."""
        self.forget_timer()
        self._timer = threading.Timer(max(0.0, when - time.monotonic()), what, (self,))
        self._timer.daemon = True
        try:
            self._timer.start()
        except RuntimeError as error:  # the process may have no more threads
            if not _python_ends(error):
                tell(f"warmup and time are not kept: {error}")

    def forget_timer(self) -> None:
        """Do not call what :meth:`later` was given."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wait_for_beginning(self, begin: Callable[[Session], None]) -> None:
        """Call ``begin(self)`` when the recording is to begin."""

        def begin_between_imports(session: Session) -> None:
            _wait_for_import("torch")
            begin(session)

        self.later(self._begins, begin_between_imports)

    def open(self) -> bool:
        """Make the ring and see to it that the run has a recorder. Tells what is in the way."""
        with _lock:
            if self.recording:
                return True
            if self._ends is not None and time.monotonic() >= self._ends:
                return False
            try:
                open_run_folder(self.run_dir, sys.orig_argv, self.options)
                self._open_ring()
            except OSError as error:
                tell(why_not(error))
                return False
            except Exception as error:  # a path that is no UTF-8, an options object of a newer kind
                tell(f"not recording: {error!r}. The job goes on without")
                return False
            self._pid = os.getpid()
            self.since_ns = self.since_ns or time.time_ns()
            if self.options.time:
                self._ends = self._ends or time.monotonic() + self.options.time
                self.later(self._ends, _stop)
            self.see_to_recorder()
            _be_asked()
            hooks = sys.modules.get("haiprof.hooks")
            if hooks is not None:
                hooks.report_kept()
            workload = sys.modules.get("haiprof.workload")
            if workload is not None:
                workload.say_again()
            return True

    def _open_ring(self) -> None:
        for n in range(1000):
            make_private(ring_root())
            make_private(self._ring_dir)
            name = f"{os.getpid()}{RING_SUFFIX}" if n == 0 else f"{os.getpid()}.{n}{RING_SUFFIX}"
            path = self._ring_dir / name
            try:
                _core.open_ring(
                    str(path),
                    bytes=self._ring_bytes(),
                    rank=self._place.rank,
                    local_rank=self._place.local_rank,
                    world_size=self._place.world_size,
                    attempt=self._place.attempt,
                    host=os.uname().nodename,
                    node=node_name(),
                    run=self.run,
                    run_dir=str(self.run_dir),
                )
            except (FileExistsError, FileNotFoundError):
                # An earlier ring of this process or of one that had its pid; or the last recorder
                # was just leaving and took the folder with it.
                continue
            self._ring = path
            return
        raise FileExistsError(17, "too many rings of one process", str(self._ring_dir))

    def _ring_bytes(self) -> int:
        wanted = self.options.ring_mib << 20
        room = room_for_ring(self._ring_dir, wanted)
        if room < _core.MIN_RING_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._ring_dir))
        if room < wanted:
            tell(
                f"{self._ring_dir} has {room >> 19} MiB left, so the ring takes {room >> 20} MiB "
                f"instead of {self.options.ring_mib}; a larger /dev/shm makes losses less likely"
            )
        return room

    def see_to_recorder(self, *, closed: bool = False) -> None:
        """Start a recorder when the run has none.

        Args:
            closed: the ring gets no more records.
        """
        try:
            if not recorder_running(self._ring_dir):
                # One that was just started may not have its lock yet.
                if time.monotonic() - self._recorder_started > _RECORDER_START_SECONDS:
                    self._recorder_started = time.monotonic()
                    start_recorder(self._ring_dir, self.run_dir, self.options)
            else:
                ring_doorbell(self._ring_dir)
        except OSError as error:
            if closed and self._ring is not None and not self._ring.exists():
                return  # the last one has written everything, and took the folder with it
            tell(
                f"no recorder could be started ({error}); records stay in {self._ring} until "
                "`haiprof recover` writes them"
            )

    def flush(self, timeout: float = 10.0) -> list[Path]:
        """Bring everything recorded so far to disk.

        Args:
            timeout: how long to wait for the recorder, s.

        Returns:
            The Arrow files of this process, complete up to this call; what is there anyway, with a
            line on stderr, when the recorder did not manage in time.
        """
        if not self.recording:
            return self.files()
        _core.gpu_flush(timeout)
        ticket = _core.request_flush()
        error: int | None = None
        until = time.monotonic() + timeout
        while error is None and (left := until - time.monotonic()) > 0:
            # Looked at again while waiting: a recorder that was just killed still holds its lock.
            self.see_to_recorder()
            error = _core.wait_flushed(ticket, min(left, 1.0))
        if error is None:
            tell(f"the recorder did not flush within {timeout:g} s; see {self._ring_dir}")
        elif error != 0:
            tell(f"flush: {self.run_dir}: {os.strerror(error)}; free some room there")
        return self.files()

    def files(self) -> list[Path]:
        """Return the Arrow files of this process, oldest first."""
        folder = self.folder()
        return sorted(folder.glob("*.arrow*")) if folder is not None else []

    def folder(self) -> Path | None:
        """Return the folder of this process; None until the recorder has made it."""
        import json

        me = {"pid": self._pid, "host": os.uname().nodename, "start_time": start_time_of(self._pid)}
        if self._ring is not None:
            me["ring"] = self._ring.name
        for known in sorted(self.run_dir.glob(f"{node_name()}#*/{PROCESS_FILE}")):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                content = json.loads(known.read_text(encoding="utf-8"))
                if all(content.get(key) == value for key, value in me.items()):
                    return known.parent
        return None

    def close(self, seconds: float) -> None:
        """Stop recording; wait up to ``seconds`` for the recorder to close the files."""
        with _lock:
            if self._pid != os.getpid():
                return
            with contextlib.suppress(Exception):
                _core.phases_finish()  # what it tells may have been timed on a GPU
            _stop_kernels()
            ring = self._ring
            if ring is None:
                return
            _core.close_ring()
        ring_doorbell(self._ring_dir)
        until = time.monotonic() + seconds
        look = 0.0
        while seconds > 0 and ring.exists() and (now := time.monotonic()) < until:
            # Once a second: a recorder that cannot run here must not be started in a circle.
            if now >= look:
                look = now + 1.0
                self.see_to_recorder(closed=True)
            time.sleep(0.005)

    def in_forked_child(self) -> Session:
        """Return what a child of fork has of it: the same run, a ring of its own to come."""
        child = Session(self.options, self._place)
        child.run, child.run_dir, child._ring_dir = self.run, self.run_dir, self._ring_dir
        child._begins, child._ends = self._begins, self._ends
        return child


def _wait_for_import(name: str) -> None:
    """Wait for another thread's import of a module: nobody is told of one that has begun."""
    if name in sys.modules:
        with contextlib.suppress(BaseException):  # a torch that is broken is the job's affair
            importlib.import_module(name)


def _absolute(path: Path) -> Path:
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError:  # the current folder is gone; making the run's says so
        return path


def _script() -> str:
    return Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"


# -- the module's state -------------------------------------------------------------------------


def start(
    log_dir: str | os.PathLike[str] | None = None,
    *,
    run: str | None = None,
    sample_hz: float | None = None,
    drain_hz: float | None = None,
    ring_mib: int | None = None,
    hooks: bool | None = None,
    kernels: str | None = None,
    kernels_period: float | None = None,
    budget: float | None = None,
    warmup: float | None = None,
    time: float | None = None,
    recorders: str | None = None,
    basic_interval: float | None = None,
    gpu_interval: float | None = None,
    io_interval: float | None = None,
    trace: bool | None = None,
    trace_steps: int | None = None,
    trace_seconds: float | None = None,
    trace_warmup: float | None = None,
    trace_mib: int | None = None,
    trace_with: str | None = None,
    trace_ranks: str | None = None,
    flops: bool | None = None,
    peak_flops: float | None = None,
) -> Session:
    """Begin to record this process. Calling it again returns the same session.

    Every argument falls back to ``HAIPROF_<NAME>`` and then to its default.

    Args:
        log_dir: folder that runs are written to; default ``haiprof-logs``.
        run: name of the run's folder in it; made up when not given.
        sample_hz: how often the host is sampled, per second; default 1.
        drain_hz: how often the ring is drained, per second; default 4.
        ring_mib: shared memory of this process, MiB; default 16.
        hooks: find steps and phases in torch, and record its allocator and the garbage
            collector; default true.
        kernels: which GPU activity is recorded: in ``windows`` of a few whole steps (the default),
            ``all``, or none (``off``).
        kernels_period: seconds from one window to the next; default 60.
        budget: share of the job's time that recording kernels may take before it is done less;
            default 0.005, 0 for any.
        warmup: seconds before the recording begins; default 0.
        time: seconds after which the recording of each process ends; default 0, with the process.
        recorders: what is sampled: ``all`` (the default) or names with commas between,
            ``basic``, ``gpu`` and ``io`` in this version.
        basic_interval: seconds between two samples of it; default 0, as ``sample_hz`` says.
        gpu_interval: the same for the GPUs that the job uses.
        io_interval: the same for block devices.
        trace: make a deep trace as soon as this process trains; see :func:`haiprof.trace`.
        trace_steps: its length in steps; default 3, or what ``trace_seconds`` or ``time`` say.
        trace_seconds: its length in seconds; default 0, any.
        trace_warmup: steps before it, seconds where only those are its length; default 5.
        trace_mib: memory that its events may take, MiB; default 128.
        trace_with: names with commas between of what it holds beside operators; default
            ``shapes,stacks,memory,modules``; there is ``callstacks``, too.
        trace_ranks: ranks that make deep traces, with commas between, as in ``0,3,8-15``; default
            all.
        flops: count the floating-point operations of one step of rank 0, for MFU; that step takes
            several times as long; default false. See :func:`haiprof.model` for another way.
        peak_flops: what each GPU could do at most, FLOP/s; default 0, what its maker says.

    Returns:
        The session. It records nothing, and stderr says why, when something is in the way.
    """
    given: dict[str, Any] = {
        "log_dir": log_dir,
        "run": run,
        "sample_hz": sample_hz,
        "drain_hz": drain_hz,
        "ring_mib": ring_mib,
        "hooks": hooks,
        "kernels": kernels,
        "kernels_period": kernels_period,
        "budget": budget,
        "warmup": warmup,
        "time": time,
        "recorders": recorders,
        "basic_interval": basic_interval,
        "gpu_interval": gpu_interval,
        "io_interval": io_interval,
        "trace": trace,
        "trace_steps": trace_steps,
        "trace_seconds": trace_seconds,
        "trace_warmup": trace_warmup,
        "trace_mib": trace_mib,
        "trace_with": trace_with,
        "trace_ranks": trace_ranks,
        "flops": flops,
        "peak_flops": peak_flops,
    }
    return _begin(given, lazily=False)


def start_beside_imports(**given: Any) -> Session:
    """:func:`start` from a thread that is not the program's, which may be importing torch."""
    _wait_for_import("torch")
    begins = _active is None
    session = _begin(given, lazily=False)
    if begins and session.recording:
        _report("attach", "recording began in a process that ran already")
    return session


def arm() -> Session:
    """Begin when there is something to record: the way of ``HAIPROF_ENABLED=1``."""
    return _begin({}, lazily=True)


def _begin(given: dict[str, Any], *, lazily: bool) -> Session:
    global _active
    with _lock:
        if _active is not None:
            if not lazily:
                _tell_ignored(given, _active.options)
                if _active.recording:
                    _active.see_to_recorder()
                elif not _active.warming_up:
                    _active.open()
            return _active
        options, problems = resolve(given)
        for problem in problems:
            tell(problem)
        session = _active = Session(options, placement())
        _register_once()
        if session.warming_up:
            _be_asked()
            session.wait_for_beginning(_record_lazily if lazily else _record)
        elif lazily:
            _record_lazily(session)
        else:
            _record(session)
        return session


def _record(session: Session) -> None:
    """Begin to record now. Where that is not possible a later start() may try again."""
    global _active
    with _lock:
        if _active is not session:
            return  # it was stopped before its time
        if not session.open():
            _active = None
            return
        _install_hooks(session.options)


def _record_lazily(session: Session) -> None:
    """Begin to record when there is something to record."""
    with _lock:
        if _active is not session:
            return
        _core.set_opener(_open_for_first_record)
        if session.options.hooks:
            with contextlib.suppress(Exception):
                _join_process_above()
        _install_hooks(session.options)


def _be_asked() -> None:
    """Let others ask what is recorded here; without that it is recorded all the same."""
    try:
        from haiprof.control import server

        server.open_socket(_answer)
    except Exception as error:
        if not _python_ends(error):
            tell(f"`haiprof ps` and `haiprof stop` do not reach this process: {error}")


def _python_ends(error: Exception) -> bool:
    """Whether a thread was refused because Python ends: before 3.13 that has no type of its own."""
    return "at interpreter shutdown" in str(error)


def _answer(request: str, arguments: dict[str, Any]) -> dict[str, Any]:
    from haiprof.control import requests

    return requests.answer(request, arguments)


def _tell_ignored(given: dict[str, Any], used: Options) -> None:
    ignored = [
        f"{name}={value!r}"
        for name, value in given.items()
        if value is not None and str(value) != str(getattr(used, name, value))
    ]
    if ignored:
        tell(
            f"start({', '.join(ignored)}) changes nothing: an earlier start(), `haiprof run` or "
            f"{ENABLED_VARIABLE} has begun this recording; give it there"
        )


def _install_hooks(options: Options) -> None:
    try:
        if options.hooks:
            from haiprof import hooks

            hooks.install(_report)
    except Exception as error:  # a torch that we do not know
        tell(f"steps and phases are not found by themselves: {error!r}; use haiprof.step()")
    _install_kernels(options)
    if options.traces:
        from haiprof import deep

        deep.arm(options)
    if options.flops and placement().rank == 0:
        from haiprof import flops

        flops.arm()


def _install_kernels(options: Options) -> None:
    if options.hooks or options.kernels != "off":
        from haiprof.hooks import cuda

        cuda.install(_report, options)


def _stop_kernels() -> None:
    """Take over what the GPU has done; the ring must still be open."""
    cuda = sys.modules.get("haiprof.hooks.cuda")
    if cuda is not None:
        with contextlib.suppress(Exception):
            cuda.uninstall(_KERNELS_SECONDS)


def _finish_trace(why: str) -> None:
    """End a deep trace, if one is being made, while its events still have a ring."""
    deep = sys.modules.get("haiprof.deep")
    if deep is not None:
        deep.finish(why, _STOP_SECONDS)


def _report(kind: str, text: str) -> None:
    with contextlib.suppress(Exception):
        _core.event(kind, text)


def _join_process_above() -> None:
    """Count what we submit in the ring of a process above us until we have one of our own.

    A DataLoader worker that is spawned never has.
    """
    pid = os.getppid()
    for _ in range(_LEVELS_ABOVE):
        started = start_time_of(pid)
        if started is None:
            return
        for ring in ring_root().glob(f"{ring_dir('*').name}/{pid}.*"):
            if _core.join_counters(str(ring), pid, started):
                return
        pid = parent_of(pid)


def _open_for_first_record() -> None:
    """Open the ring at the first record, unless this process is somebody's helper."""
    session = _active
    if session is None or _is_dataloader_worker():
        return
    if session.warming_up:  # a forked child has no timer of its own yet
        session.wait_for_beginning(_record_lazily)
        return
    session.open()


def _is_dataloader_worker() -> bool:
    torch_data = sys.modules.get("torch.utils.data")
    try:
        return torch_data is not None and torch_data.get_worker_info() is not None
    except Exception:
        return False


_registered = False


def _register_once() -> None:
    global _registered
    if not _registered:
        _registered = True
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    session = _active
    if session is not None:
        # With the first process of a pid namespace the kernel ends all others, the recorder too;
        # and SLURM what a step or a batch script leaves in its control group.
        last = 1 in (os.getpid(), os.getppid()) or "SLURM_JOB_ID" in os.environ
        _finish_trace("the job ended")
        with contextlib.suppress(Exception):
            session.close(_STOP_SECONDS if last else 0.0)
    server = sys.modules.get("haiprof.control.server")
    if server is not None:
        with contextlib.suppress(Exception):
            server.close_socket()


def _after_fork() -> None:
    """Give the child no ring until it records something itself."""
    global _active, _lock
    _lock = threading.RLock()  # the parent's may have been held by a thread that is not here
    session = _active
    if session is None:
        return
    with contextlib.suppress(Exception):
        _core.phases_reset()
        _active = session.in_forked_child()
        _core.set_opener(_open_for_first_record)


def stop() -> None:
    """End the recording and wait (up to 10 s) until the files are closed. Safe to call anytime."""
    session = _active
    if session is not None:
        _stop(session)


def _stop(session: Session) -> None:
    global _active
    if _active is session:
        _finish_trace("the recording ended")
    with _lock:
        if _active is not session:
            return
        _active = None
        _core.set_opener(None)
        session.forget_timer()
        with contextlib.suppress(Exception):
            hooks = sys.modules.get("haiprof.hooks")
            if hooks is not None:
                hooks.uninstall()
        flops = sys.modules.get("haiprof.flops")
        if flops is not None:
            flops.disarm()
    session.close(_STOP_SECONDS)


def flush(timeout: float = 10.0) -> list[Path]:
    """Bring everything recorded so far to disk and return this process's Arrow files.

    Args:
        timeout: how long to wait for the recorder, s.
    """
    session = _active
    return session.flush(timeout) if session is not None else []


def active() -> Session | None:
    """Return the session of this process, or None."""
    return _active
