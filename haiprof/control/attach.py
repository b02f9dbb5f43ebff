"""Records a running job for a while: each of its processes in the way that it can be reached.

One that has haiprof loaded is asked through its socket. Into another one haiprof is brought
(:mod:`haiprof.control.inject`). One that cannot be reached is looked at from outside: the host's
and the GPUs' samples of it and its children.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import haiprof
from haiprof.control.client import ControlError, ask
from haiprof.control.find import Found
from haiprof.control.inject import NotReachedError, python_version, run_in, why_not
from haiprof.control.sockets import socket_of
from haiprof.errors import HaiprofError
from haiprof.options import resolve
from haiprof.places import make_private, ring_dir, ring_root
from haiprof.recorder.launch import import_paths, start_recorder
from haiprof.run_folder import open_run_folder
from haiprof.run_folder import why_not as why_no_folder

#: How long a process may take until it records, s.
_BEGIN_SECONDS: Final = 15.0
#: How long after its end the recording of a process ends by itself if nobody ends it, s.
_SPARE_SECONDS: Final = 10.0
#: How long closing the files may take, s.
_CLOSE_SECONDS: Final = 20.0
#: Where a process and we may both write.
_FOLDERS: Final = ("tmp", "dev/shm", "var/tmp")

Way = Literal["socket", "remote_exec", "injector", "outside"]

# In a thread: the job's own goes on while modules are imported. What else lies beside our package
# is not for the job to find. The main thread itself may be in the middle of importing threading.
_CODE: Final = """\
def begin():
    import sys
    try:
        path = {path!r}
        if path and "haiprof" not in sys.modules:
            sys.path.insert(0, path)
            try:
                import haiprof
            finally:
                sys.path.remove(path)
        from haiprof.control import entry
    except BaseException as error:
        try:
            with open({told!r}, "w") as file:
                file.write("haiprof cannot be imported there (%s)" % error)
        except OSError:
            pass  # who asked has gone
    else:
        entry.begin({given!r}, {told!r}, {python!r})

def start():
    import threading
    threading.Thread(target=begin, name="haiprof-attach", daemon=True).start()

import _thread
_thread.start_new_thread(start, ())
"""


class AttachError(HaiprofError):
    """A process could not be recorded in any way; ``str()`` of it is one line."""


@dataclass(frozen=True)
class Wanted:
    """What is to be recorded of each process.

    Attributes:
        run: name of the run's folder.
        log_dir: the folder of runs, absolute.
        seconds: how long.
        warmup: seconds to let pass before.
        trace: a deep trace, too.
        options: further options, as of ``haiprof.start``.
    """

    run: str
    log_dir: Path
    seconds: float
    warmup: float = 0.0
    trace: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return self.log_dir / self.run

    def given(self) -> dict[str, Any]:
        """Return it as options of ``haiprof.start``."""
        made: dict[str, Any] = dict(self.options)
        made |= {"run": self.run, "log_dir": str(self.log_dir), "warmup": self.warmup}
        # Should nobody be there to end it, it ends by itself.
        made["time"] = self.seconds + _SPARE_SECONDS
        if self.trace:
            made |= {"trace": True, "trace_seconds": self.seconds, "trace_warmup": 0.0}
        return made


@dataclass
class Attached:
    """A process that is being recorded.

    Attributes:
        process: which.
        way: how it was reached.
        run_dir: where the recording is.
        began: the recording began for us, and ends with us; else it goes on as it did before.
        frozen_ns: how long one thread of the process stood still, ns.
        why: of ``outside``: why there is no more, and the mend.
    """

    process: Found
    way: Way
    run_dir: Path
    began: bool = True
    frozen_ns: int = 0
    why: str = ""
    _recorder: int | None = None

    def end(self) -> None:
        """End what began for us and have the files complete; the process is as it was before.

        Raises:
            ControlError: it does not answer; its recording ends by itself a little later.
        """
        if self.way == "outside":
            self._end_outside()
            return
        try:
            path = socket_of(self.process.pid)
            if not self.began:
                ask(path, "flush", timeout=_CLOSE_SECONDS)
            else:
                leave = self.way != "socket"
                ask(path, "stop", {"leave": leave}, timeout=_CLOSE_SECONDS)
        except ControlError as error:
            if error.reason not in ("gone", "unloaded"):  # with the process all is closed
                raise

    def _end_outside(self) -> None:
        if self._recorder is None:
            return
        with contextlib.suppress(OSError):
            gone = os.pidfd_open(self._recorder)
            try:
                until = time.monotonic() + _CLOSE_SECONDS
                # The second is an order; two that come at once are one.
                while time.monotonic() < until:
                    os.kill(self._recorder, signal.SIGTERM)
                    if select.select([gone], [], [], 0.3)[0]:
                        break
            finally:
                os.close(gone)


def way_to(process: Found) -> tuple[Way, str]:
    """Say how a process would be reached, without touching it; of ``outside``, why."""
    try:
        socket_of(process.pid)
        return "socket", ""
    except ControlError as error:
        if error.reason not in ("unloaded", "gone"):
            return "outside", str(error)
    why = why_not(process.pid)
    return ("injector", "") if why is None else ("outside", why)


def attach(process: Found, wanted: Wanted) -> Attached:
    """Begin to record a process.

    Raises:
        AttachError: it has ended, or cannot even be looked at from outside.
    """
    try:
        return _by_socket(process, wanted)
    except ControlError as error:
        if error.reason not in ("unloaded", "gone"):
            return _from_outside(process, wanted, str(error))
    try:
        return _by_code(process, wanted)
    except NotReachedError as error:
        if error.reason in ("gone", "zombie"):
            raise AttachError(str(error)) from None
        return _from_outside(process, wanted, str(error))


def _by_socket(process: Found, wanted: Wanted) -> Attached:
    path = socket_of(process.pid)
    status = ask(path, "status")
    if status["state"] == "idle":
        status = ask(path, "start", wanted.given(), timeout=_BEGIN_SECONDS)
        return Attached(process, "socket", Path(status["run_dir"]))
    if wanted.trace:
        asked = {"seconds": wanted.seconds, "warmup": wanted.warmup}
        ask(path, "trace", asked, timeout=_BEGIN_SECONDS)
    return Attached(process, "socket", Path(status["run_dir"]), began=False)


def _by_code(process: Found, wanted: Wanted) -> Attached:
    with _message(process.pid) as (here, there):
        path = _package_for(python_version(process.pid))
        python = (sys.executable, import_paths()) if path else None
        code = _CODE.format(path=path, given=wanted.given(), told=there, python=python)
        ran = run_in(process.pid, code, _BEGIN_SECONDS)
        said = _heard(here, process)
    if said != "ok":
        raise NotReachedError(
            process.pid,
            "refused",
            f"{said}; install haiprof for its Python, or attach with the haiprof of that Python",
        )
    return Attached(process, ran.way, wanted.run_dir, frozen_ns=ran.frozen_ns)


def _package_for(version: tuple[int, int]) -> str:
    """Return where our package lies, if it was built for that Python; else its own must serve."""
    package = Path(haiprof.__file__).parent
    built = list(package.glob(f"_core.cpython-{version[0]}{version[1]}-*"))
    return str(package.parent) if built else ""


@contextlib.contextmanager
def _message(pid: int) -> Iterator[tuple[Path, str]]:
    """Make an empty file that the process can write; yield where it is for us and for it."""
    owner = Path(f"/proc/{pid}").stat()
    for folder in _FOLDERS:
        root = Path(f"/proc/{pid}/root/{folder}")
        try:
            descriptor, name = tempfile.mkstemp(prefix="haiprof-", dir=root)
            if owner.st_uid != os.geteuid():
                os.chown(descriptor, owner.st_uid, owner.st_gid)
            os.close(descriptor)
        except OSError:
            continue
        try:
            yield Path(name), f"/{folder}/{Path(name).name}"
        finally:
            with contextlib.suppress(OSError):
                Path(name).unlink()
        return
    raise NotReachedError(
        pid, "folder", "neither /tmp nor /dev/shm of it can be written from here; do this as root"
    )


def _heard(message: Path, process: Found) -> str:
    deadline = time.monotonic() + _BEGIN_SECONDS
    pause = 0.001
    while time.monotonic() < deadline:
        try:
            if said := message.read_text("utf-8", "replace"):
                return said.splitlines()[0]
        except OSError:
            return "it has ended"
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return f"it did not begin to record within {_BEGIN_SECONDS:g} s"


def _from_outside(process: Found, wanted: Wanted, why: str) -> Attached:
    options, _ = resolve({"run": wanted.run, "log_dir": wanted.log_dir, **dict(wanted.options)})
    rings = ring_dir(wanted.run)
    try:
        open_run_folder(wanted.run_dir, process.command, options)
        make_private(ring_root())
        make_private(rings)
        watch = f"{process.pid}:{process.start_time}"
        recorder = start_recorder(rings, wanted.run_dir, options, watch)
    except OSError as error:
        raise AttachError(why_no_folder(error)) from None
    return Attached(process, "outside", wanted.run_dir, why=why, _recorder=recorder)


def alive(attached: Sequence[Attached]) -> bool:
    """Say whether any of the processes is still there."""
    from haiprof.recorder.life import process_is_alive

    return any(process_is_alive(a.process.pid, a.process.start_time) for a in attached)
