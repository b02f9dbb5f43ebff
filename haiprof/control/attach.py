"""Records a running job for a while: each of its processes in the way that it can be reached.

One that has haiprof loaded is asked through its socket. Into another one haiprof is brought
(:mod:`haiprof.control.inject`). One that cannot be reached is looked at from outside: the host's
and the GPUs' samples of it and its children.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import haiprof
from haiprof.capture import bundle
from haiprof.capture.socket.entry import ANSWER_BYTES, BEGAN, RECORDED
from haiprof.capture.stderr import tell
from haiprof.common.places import in_ring_dir
from haiprof.control.client import ControlError, ask
from haiprof.control.find import Found
from haiprof.control.inject import (
    NotReachedError,
    Python,
    Ran,
    python_of,
    run_in,
    this_python,
    turn,
    why_not,
)
from haiprof.control.room import Room, sees
from haiprof.control.shared_file import SharedFile, shared_file
from haiprof.control.sockets import same_root, socket_of
from haiprof.errors import HaiprofError
from haiprof.options import resolve
from haiprof.recorder.launch import import_paths, ring_doorbell, start_recorder
from haiprof.recorder.outside import Note, end_note, write_note
from haiprof.recorder.run_folder import open_run_folder
from haiprof.recorder.run_folder import why_not as why_no_folder

#: How long a process may take until it runs what is brought into it, s.
_BEGIN_SECONDS: Final = 15.0
#: How long it may take from there until it records, s: of a thread that keeps the interpreter's
#: lock for a tenth of a second at a time ours gets little.
_RECORD_SECONDS: Final = 60.0
#: How long our thread in a process rests before it maps anything, s: the thread that was stopped is
#: stopped once more to take back what the code was in, and would wait for it.
_REST_SECONDS: Final = 0.01
#: How long after its end the recording of a process ends by itself if nobody ends it, s.
_SPARE_SECONDS: Final = 10.0
#: How long a process that records may take to say so, s.
_SAY_SECONDS: Final = 2.0
#: How often to reach for a process whose recording others begin or end just then.
_TRIES: Final = 3
#: How long closing the files may take, s.
_CLOSE_SECONDS: Final = 20.0
#: What the recorder of a run needs beside the standard library; haiprof itself comes first.
_MODULES: Final = ("haiprof", "pyarrow")
#: What of others' packages only building against them or testing them needs.
_UNNEEDED: Final = frozenset({"__pycache__", "include", "src", "tests"})
_LACKING: Final = "lacks "
_ENDED: Final = "it has ended"
#: Where a process and we may both write.
_FOLDERS: Final = ("tmp", "dev/shm", "var/tmp")

Way = Literal["socket", "remote_exec", "injector", "outside"]

# In a thread: the job's own goes on while modules are imported. What else lies beside our package
# is not for the job to find. The main thread itself may be in the middle of importing threading.
_CODE: Final = """\
def begin():
    import importlib.util, os, sys
    def there(name):
        spec = importlib.util.find_spec(name)
        return spec is not None and spec.origin is not None and os.path.exists(spec.origin)
    try:
        lacks = [name for name in {modules!r} if not there(name)]
        if "haiprof" in lacks:
            with open({told!r}, "r+") as file:
                file.write({lacking!r} + " ".join(lacks))
            return
        path = {path!r}
        if path and "haiprof" not in sys.modules:
            sys.path.insert(0, path)
            try:
                import haiprof
            finally:
                sys.path.remove(path)
        from haiprof.capture.socket import entry
    except BaseException as error:
        try:
            with open({told!r}, "r+") as file:
                file.write("haiprof cannot be imported there (%s)" % str(error)[:900])
        except OSError:
            pass  # who asked has gone
    else:
        entry.begin({given!r}, {told!r}, {python!r}, {bundle!r})

import sys
monkey = sys.modules.get("gevent.monkey")
def own(module, name):
    return monkey.get_original(module, name) if monkey else getattr(__import__(module), name)
def start(begin, sleep):
    sleep({rest!r})
    begin()
own("_thread", "start_new_thread")(start, (begin, own("time", "sleep")))
del begin, start, own, monkey
"""
_CODE_OF_END: Final = """\
from haiprof.common import threads
from haiprof.capture.socket import entry
threads.Background(lambda: entry.end({told!r}))
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

    def given(self, log_dir: str = "") -> dict[str, Any]:
        """Return it as options of ``haiprof.start``.

        Args:
            log_dir: the folder of runs, where the process has another.
        """
        made: dict[str, Any] = dict(self.options)
        made |= {"run": self.run, "log_dir": log_dir or str(self.log_dir), "warmup": self.warmup}
        made["time"] = _own_end(self.seconds)
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
        began: the recording began for us; else there was one, which goes on.
        frozen_ns: how long one thread of the process stood still, ns.
        why: of ``outside``: why there is no more, and how to fix it.
        room: of a process in a container: what it was given there, and where its run is until
            :func:`bring`.
    """

    process: Found
    way: Way
    run_dir: Path
    began: bool = True
    frozen_ns: int = 0
    why: str = ""
    room: Room | None = None
    _time: float | None = None  #: Its option, where we have set it.
    _leave: bool = True  #: Who ends it leaves nothing of haiprof there.
    _note: Path | None = None  #: Of ``outside``: has the recorder watch it.

    def end(self) -> None:
        """End what nobody else wants to go on, else have the files complete up to now.

        The process is as it was before.

        Raises:
            ControlError: it does not answer; its recording ends by itself a little later.
        """
        if self.way == "outside":
            self._end_outside()
            return
        with contextlib.ExitStack() as alone:
            with contextlib.suppress(NotReachedError):  # who is at it for so long joins nothing
                alone.enter_context(_alone(self.process.pid, _CLOSE_SECONDS))
            self._end()

    def _end(self) -> None:
        try:
            path = socket_of(self.process.pid)
            if self._ends_with_us(path):
                ask(path, "stop", {"leave": self._leave}, timeout=_CLOSE_SECONDS)
            else:
                ask(path, "flush", timeout=_CLOSE_SECONDS)
        except ControlError as error:
            if error.reason == "denied" and self.room is not None and self.way != "socket":
                # A container with users of its own does not know us.
                self._end_by_code()
            elif error.reason not in ("gone", "unloaded"):  # with the process all is closed
                raise

    def _ends_with_us(self, path: Path) -> bool:
        if self._time is None:
            return False
        if self.room is not None:  # what is in there has to be brought from there now
            return True
        status = ask(path, "status", timeout=_CLOSE_SECONDS)
        return bool(status["state"] == "idle" or status["options"]["time"] == self._time)

    def _end_by_code(self) -> None:
        pid = self.process.pid
        try:
            with _message(pid) as answer:
                run_in(pid, _CODE_OF_END.format(told=answer.seen_at), _CLOSE_SECONDS)
                said = _heard(answer, _CLOSE_SECONDS)
        except NotReachedError as error:
            if error.reason in ("gone", "zombie"):
                return
            raise ControlError("failed", str(error)) from None
        if said not in ("ok", _ENDED):
            why = said or f"it did not end its recording within {_CLOSE_SECONDS:g} s"
            raise ControlError("failed", f"process {pid}: {why}")

    def _end_outside(self) -> None:
        if self._note is not None:
            note, self._note = self._note, None
            end_note(note, _CLOSE_SECONDS)


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
        with _alone(process.pid, _BEGIN_SECONDS + _RECORD_SECONDS):
            return _from_inside(process, wanted)
    except ControlError as error:
        return _from_outside(process, wanted, str(error))
    except NotReachedError as error:
        if error.reason in ("gone", "zombie"):
            raise AttachError(str(error)) from None
        return _from_outside(process, wanted, str(error))


def _alone(pid: int, seconds: float) -> contextlib.AbstractContextManager[None]:
    """Say alone whether a process is recorded, and for how long: who comes next goes by that.

    Raises:
        NotReachedError: others are at it for so long.
    """
    return turn(pid, time.monotonic() + seconds, "environ")


def _from_inside(process: Found, wanted: Wanted) -> Attached:
    for _ in range(_TRIES):
        try:
            return _by_socket(process, wanted)
        except ControlError as error:
            if error.reason not in ("unloaded", "gone"):
                raise
        if (made := _by_code(process, wanted)) is not None:
            return made
    text = f"process {process.pid}: its recordings keep starting and stopping; try again"
    raise ControlError("failed", text)


def _own_end(seconds: float) -> float:
    """Return the option ``time`` of a recording that we end after so many seconds.

    Should nobody be there to do so, it ends by itself a little later. No two are the same, so that
    each knows whether somebody has moved its end since.
    """
    return seconds + _SPARE_SECONDS + time.monotonic_ns() % 1_000_000 / 1e9


def _by_socket(process: Found, wanted: Wanted) -> Attached:
    path = socket_of(process.pid)
    status = ask(path, "status")
    leave = bool(status.get("brought"))
    if status["state"] == "idle":
        try:
            room = _room_for(process.pid, wanted, ())
        except NotReachedError as error:
            raise ControlError("denied", str(error)) from None
        with _tidied(room) as log_dir:
            given = wanted.given(log_dir)
            status = ask(path, "start", given, timeout=_BEGIN_SECONDS)
        run_dir = wanted.run_dir if room else Path(status["run_dir"])
        return Attached(process, "socket", run_dir, room=room, _time=given["time"], _leave=leave)
    if wanted.trace:
        asked = {"seconds": wanted.seconds, "warmup": wanted.warmup}
        ask(path, "trace", asked, timeout=_BEGIN_SECONDS)
    run_dir = Path(status["run_dir"])
    if not sees(process.pid, run_dir):
        run_dir = Path(f"/proc/{process.pid}/root{run_dir}")
    moved = _lasting(path, status, wanted)
    return Attached(process, "socket", run_dir, began=False, _time=moved, _leave=leave)


def _lasting(path: Path, status: Mapping[str, Any], wanted: Wanted) -> float | None:
    """Have a recording go on for as long as is wanted; return its option ``time`` if it is ours."""
    before = status["options"]["time"]
    if not before:  # it goes on as long as the process
        return None
    begins_in = status["begins_in"]
    ends_in = status["ends_in"]
    left = begins_in + before if ends_in is None else ends_in
    whole = _own_end(wanted.warmup + wanted.seconds)
    # Who began it for a while ends it before it would end by itself.
    if left >= whole:
        return None
    moved: float = whole - begins_in
    try:
        ask(path, "set", {"time": moved})
    except ControlError as error:
        if error.reason == "refused":
            raise ControlError("gone", str(error)) from None  # it has just ended
        raise
    return moved


def _by_code(process: Found, wanted: Wanted) -> Attached | None:
    """Bring haiprof there and begin; None: somebody else had it record meanwhile."""
    pid = process.pid
    job = python_of(pid)
    package = Path(haiprof.__file__).parent
    room = _room_for(pid, wanted, (package,))
    # Who brings haiprof brings the Python of its recorder, too.
    mine = room is None and sees(pid, Path(sys.executable).resolve())
    python = (sys.executable, import_paths()) if mine else None
    with _tidied(room) as log_dir, _message(pid) as answer:
        given = wanted.given(log_dir)

        def run(path: str, modules: Sequence[str], bundle: str = "") -> str:
            code = _CODE.format(
                path=path,
                modules=modules,
                lacking=_LACKING,
                given=given,
                told=answer.seen_at,
                python=python if path else None,
                rest=_REST_SECONDS,
                bundle=bundle,
            )
            ran.append(run_in(pid, code, _BEGIN_SECONDS))
            said = _heard(answer, _RECORD_SECONDS)
            if not said and _records(pid, wanted.run):  # it is about to say so
                said = _heard(answer, _BEGIN_SECONDS)
            if not said:
                late = f"it did not begin to record within {_RECORD_SECONDS:g} s"
                raise NotReachedError(pid, "late", late)
            return said

        ran: list[Ran] = []
        if room is None:
            with _bundle(pid, job) as modules:
                said = run(_package_for(job), (), modules)
        else:
            said = run("", _MODULES)
            if said.startswith(_LACKING):
                # The job may name any module of ours, to have it imported here and copied there.
                lacking = [name for name in _MODULES if name in said.split()]
                _give(pid, room, lacking, job)
                answer.write(bytes(ANSWER_BYTES))
                said = run(room.package, ())
        if said == RECORDED:
            if room is not None:
                room.leave()
            return None
        if said != BEGAN:
            raise NotReachedError(
                pid,
                "refused",
                f"{said}; install haiprof for its Python, or attach with the haiprof of that "
                "Python",
            )
    frozen = sum(each.frozen_ns for each in ran)
    return Attached(
        process, ran[0].way, wanted.run_dir, frozen_ns=frozen, room=room, _time=given["time"]
    )


def _records(pid: int, run: str) -> bool:
    """Say whether a process that has not answered yet has begun to record."""
    try:
        status = ask(socket_of(pid), "status", timeout=_SAY_SECONDS)
    except ControlError as error:
        return error.reason == "busy"  # with just that
    return bool(status.get("run") == run)


def _room_for(pid: int, wanted: Wanted, packages: Sequence[Path]) -> Room | None:
    """Return a folder in the container of a process; None when it finds all that it needs here.

    Raises:
        NotReachedError: there can be none.
    """
    try:
        if same_root(pid):
            return None
        wanted.log_dir.mkdir(parents=True, exist_ok=True)
        seen = {f for f in (wanted.log_dir, *packages) if f == f.resolve() and sees(pid, f)}
        if seen >= {wanted.log_dir, *packages}:
            return None
        room = Room(pid, wanted.run)
        if wanted.log_dir in seen and _is_of(pid, wanted.log_dir):
            room.log_dir = str(wanted.log_dir)
        return room
    except OSError as error:
        raise NotReachedError(
            pid,
            "folder",
            "it runs in a container that does not see our files, and it can be given none: "
            f"{error.filename}: {error.strerror}; do this as root, or give it a /tmp",
        ) from None


def _is_of(pid: int, folder: Path) -> bool:
    """Say whether a process may write a folder as its owner, or as root."""
    return Path(f"/proc/{pid}").stat().st_uid in (0, folder.stat().st_uid)


@contextlib.contextmanager
def _tidied(room: Room | None) -> Iterator[str]:
    """Yield the folder of runs in a room; where it comes to nothing, nothing stays there."""
    try:
        yield room.log_dir if room is not None else ""
    except BaseException:
        if room is not None:
            room.leave()
        raise


def _give(pid: int, room: Room, modules: Sequence[str], job: Python) -> None:
    """Put modules into a room."""
    ours = this_python()
    if job != ours:
        raise NotReachedError(
            pid,
            "refused",
            f"its container has no haiprof, and this one is for Python {ours}, not for its {job}; "
            "install haiprof there, or attach with a haiprof for that Python",
        )

    def wanted(path: Path) -> bool:
        other = path.match("_core.*.so") and not path.match(_compiled_for(job))
        return path.name not in _UNNEEDED and not other

    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise NotReachedError(pid, "refused", f"{name} is missing there, and here")
        try:
            room.give(Path(spec.origin).parent, wanted)
        except OSError as error:
            raise NotReachedError(
                pid, "folder", f"{name} cannot be copied into its container: {error.strerror}"
            ) from None


def bring(attached: Sequence[Attached]) -> list[str]:
    """Bring here what was written in containers, when all have ended; remove what was ours there.

    Returns:
        A line for each run that could not be brought, with where it is.
    """
    rooms = {each.room.key: (each, each.room) for each in attached if each.room is not None}
    said = []
    for each, room in rooms.values():
        try:
            room.bring(each.run_dir, _CLOSE_SECONDS if alive([each]) else 1.0)
        except OSError as error:
            where = f"/proc/{each.process.pid}/root{room.log_dir}/{each.run_dir.name}"
            reason = error.strerror or str(error)
            said.append(f"{each.process.label}: its run stays in its container ({reason}): {where}")
    for each in attached:
        if each.room is not None:
            each.room.leave()
    return said


def _compiled_for(python: Python) -> str:
    """Return the pattern of our compiled module's name there; 3.13t has the prefix of 3.13, too."""
    return f"_core.cpython-{str(python).replace('.', '')}-*"


def _package_for(python: Python) -> str:
    """Return where our package lies, if it was built for that Python; else its own must serve."""
    package = Path(haiprof.__file__).parent
    built = list(package.glob(_compiled_for(python)))
    return str(package.parent) if built else ""


@contextlib.contextmanager
def _bundle(pid: int, job: Python) -> Iterator[str]:
    """Yield where the process finds our modules in one file; empty: it reads each from its own.

    A free-threaded Python could read what the same version with the GIL has compiled, but may have
    a haiprof of its own: the modules of ours would have its recorder look for the wrong package.
    """
    made = shared_file(pid, _FOLDERS, bundle.bundle()) if job == this_python() else None
    if made is None:
        yield ""
        return
    with made:
        yield made.seen_at


@contextlib.contextmanager
def _message(pid: int) -> Iterator[SharedFile]:
    """Make a file of zeros that the process can write over.

    It is gone as soon as nobody waits any more for what the process writes there.
    """
    made = shared_file(pid, _FOLDERS, bytes(ANSWER_BYTES))
    if made is None:
        raise NotReachedError(
            pid,
            "folder",
            "neither /tmp nor /dev/shm of it can be written from here, or they are full; do this "
            "as root, or make room",
        )
    with made:
        yield made


def _heard(message: SharedFile, seconds: float) -> str:
    """Return what is written there first; empty: nothing was in time."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while time.monotonic() < deadline:
        if said := message.read(ANSWER_BYTES).decode("utf-8", "replace").strip("\0"):
            return said.splitlines()[0]
        if not message.reachable():
            return _ENDED
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return ""


def _from_outside(process: Found, wanted: Wanted, why: str) -> Attached:
    options, _ = resolve({"run": wanted.run, "log_dir": wanted.log_dir, **dict(wanted.options)})
    try:
        user = Path(f"/proc/{process.pid}").stat().st_uid  # another rank of it may have made it
        open_run_folder(wanted.run_dir, process.command, options, owners=[user])
        until = time.monotonic() + wanted.warmup + _own_end(wanted.seconds)
        place = process.place
        told = Note(
            run_dir=str(wanted.run_dir),
            pid=process.pid,
            start_time=process.start_time,
            rank=place.rank,
            local_rank=place.local_rank,
            world_size=place.world_size,
            attempt=place.attempt,
            why=why,
            until=until,
            created_ns=time.time_ns(),
        )

        def watch(rings: Path) -> Path:
            note = write_note(rings, told)
            start_recorder(rings, wanted.run_dir, options)
            ring_doorbell(rings)
            return note

        note = in_ring_dir(wanted.run_dir, watch, tell)
    except OSError as error:
        raise AttachError(why_no_folder(error)) from None
    return Attached(process, "outside", wanted.run_dir, why=why, _note=note)


def alive(attached: Sequence[Attached]) -> bool:
    """Say whether any of the processes is still there."""
    from haiprof.common.process_life import process_is_alive

    return any(process_is_alive(a.process.pid, a.process.start_time) for a in attached)
