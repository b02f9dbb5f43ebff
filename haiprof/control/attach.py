"""Records a running job for a while: each of its processes in whichever way it can be reached.

One that has haiprof loaded is asked through its socket. Otherwise haiprof is injected into it
(:mod:`haiprof.control.inject`). One that cannot be reached is observed from outside: the host's
and the GPUs' samples of it and its children.
"""

from __future__ import annotations

import contextlib
import pkgutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import haiprof
from haiprof.capture import bundle
from haiprof.capture.socket.entry import ANSWER_BYTES, BEGAN, RECORDED
from haiprof.capture.stderr import say_once
from haiprof.common.places import in_ring_dir
from haiprof.control.client import ControlError, ask
from haiprof.control.container_folder import ContainerFolder, sees
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
from haiprof.control.shared_file import SharedFile, shared_file
from haiprof.control.sockets import same_root, socket_of
from haiprof.errors import HaiprofError
from haiprof.options import resolve
from haiprof.recorder.launch import import_paths, ring_doorbell, start_recorder
from haiprof.recorder.outside import Note, end_note, write_note
from haiprof.recorder.run_folder import open_run_folder
from haiprof.recorder.run_folder import why_not as why_no_folder
from haiprof.recorder.segments import close_ended

#: How long a process may take to start running injected code, s.
_BEGIN_SECONDS: Final = 15.0
#: How long it may take from there until it records, s: beside a thread that keeps the interpreter's
#: lock for a tenth of a second at a time ours runs little.
_RECORD_SECONDS: Final = 60.0
#: How long our thread in a process rests before it maps anything, s: the thread that was stopped is
#: stopped once more to free the memory of the code, and would wait for it.
_REST_SECONDS: Final = 0.01
#: How long after its planned end a recording ends automatically if nobody ends it, s.
_SPARE_SECONDS: Final = 10.0
#: How long a recording process may take to say so, s.
_SAY_SECONDS: Final = 2.0
#: How often to try to reach a process whose recording others just begin or end.
_TRIES: Final = 3
#: How long closing the files may take, s.
_CLOSE_SECONDS: Final = 20.0
#: What a process records with, of our package: pyarrow only compresses files, and can do so here.
_RECORDING: Final = frozenset(
    {"__init__.py", "capture", "common", "control", "errors.py", "options.py", "recorder"}
    | {"schema.py"}
)
_LACKING: Final = "lacks "
_ENDED: Final = "it has ended"
#: Folders that a process and we may both write.
_FOLDERS: Final = ("tmp", "dev/shm", "var/tmp")

Way = Literal["socket", "remote_exec", "injector", "outside"]

_CODE_OF_END: Final = """\
from haiprof.common import threads
from haiprof.capture.socket import entry
threads.Background(lambda: entry.end({answer!r}))
"""


class AttachError(HaiprofError):
    """A process could not be recorded in any way; ``str()`` of it is one line."""


def _code(arguments: Mapping[str, object]) -> str:
    """Return :mod:`haiprof.control.attach_stub` as text that begins with these arguments."""
    source = pkgutil.get_data("haiprof.control", "attach_stub.py")
    assert source is not None
    # A function and the names around it are a circle, left to the job's garbage collector.
    return f"{source.decode()}\nstart({_REST_SECONDS!r}, {arguments!r})\ndel begin, start\n"


@dataclass(frozen=True)
class RecordingPlan:
    """What to record of each process.

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

    def start_options(self, log_dir: str = "") -> dict[str, Any]:
        """Return the options of ``haiprof.start``.

        Args:
            log_dir: the folder of runs, where the process has another.
        """
        options: dict[str, Any] = dict(self.options)
        options |= {"run": self.run, "log_dir": log_dir or str(self.log_dir), "warmup": self.warmup}
        options["time"] = _own_end(self.seconds)
        if self.trace:
            options |= {"trace": True, "trace_seconds": self.seconds, "trace_warmup": 0.0}
        return options


@dataclass
class Attached:
    """A process that is being recorded.

    Attributes:
        process: which.
        way: how it was reached.
        run_dir: where the recording is.
        began: the recording began for us; else there was one already, which continues.
        frozen_ns: how long one thread of the process stood still, ns.
        why: of ``outside``: why it was not reached, and how to fix it.
        container: of a process in a container: our folder there, which has its run until
            :func:`bring`.
    """

    process: Found
    way: Way
    run_dir: Path
    began: bool = True
    frozen_ns: int = 0
    why: str = ""
    container: ContainerFolder | None = None
    _time: float | None = None  #: Its option, where we have set it.
    _leave: bool = True  #: Ending it removes all of haiprof there.
    _note: Path | None = None  #: Of ``outside``: makes the recorder watch it.

    def end(self) -> None:
        """End the recording unless somebody else still wants it; else flush its files.

        The process is as it was before.

        Raises:
            ControlError: it does not answer; its recording ends automatically a little later.
        """
        if self.way == "outside":
            self._end_outside()
            return
        with contextlib.ExitStack() as alone:
            with contextlib.suppress(NotReachedError):  # who takes that long starts no recording
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
            if error.reason == "denied" and self.container is not None and self.way != "socket":
                # A container with its own user namespace does not know us.
                self._end_by_code()
            elif error.reason not in ("gone", "unloaded"):  # the end of a process closes all
                raise

    def _ends_with_us(self, path: Path) -> bool:
        if self._time is None:
            return False
        if self.container is not None:  # its files have to be copied out now
            return True
        status = ask(path, "status", timeout=_CLOSE_SECONDS)
        return bool(status["state"] == "idle" or status["options"]["time"] == self._time)

    def _end_by_code(self) -> None:
        pid = self.process.pid
        try:
            with _message(pid) as answer:
                run_in(pid, _CODE_OF_END.format(answer=answer.seen_at), _CLOSE_SECONDS)
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


def attach(process: Found, plan: RecordingPlan) -> Attached:
    """Begin to record a process.

    Raises:
        AttachError: it has ended, or cannot even be observed from outside.
    """
    try:
        with _alone(process.pid, _BEGIN_SECONDS + _RECORD_SECONDS):
            return _from_inside(process, plan)
    except ControlError as error:
        return _from_outside(process, plan, str(error))
    except NotReachedError as error:
        if error.reason in ("gone", "zombie"):
            raise AttachError(str(error)) from None
        return _from_outside(process, plan, str(error))


def _alone(pid: int, seconds: float) -> contextlib.AbstractContextManager[None]:
    """Lock a process against other haiprofs that would start, move or end its recording.

    Raises:
        NotReachedError: others kept it locked for that long.
    """
    return turn(pid, time.monotonic() + seconds, "environ")


def _from_inside(process: Found, plan: RecordingPlan) -> Attached:
    for _ in range(_TRIES):
        try:
            return _by_socket(process, plan)
        except ControlError as error:
            if error.reason not in ("unloaded", "gone"):
                raise
        if (made := _by_code(process, plan)) is not None:
            return made
    text = f"process {process.pid}: its recordings keep starting and stopping; try again"
    raise ControlError("failed", text)


def _own_end(seconds: float) -> float:
    """Return the option ``time`` of a recording that we end after ``seconds``.

    If nobody is there to do so, it ends automatically a little later. No two values are the same,
    so that each caller knows whether somebody has moved the end since.
    """
    return seconds + _SPARE_SECONDS + time.monotonic_ns() % 1_000_000 / 1e9


def _by_socket(process: Found, plan: RecordingPlan) -> Attached:
    path = socket_of(process.pid)
    status = ask(path, "status")
    leave = bool(status.get("brought"))
    if status["state"] == "idle":
        try:
            container = _container_folder_for(process.pid, plan, ())
        except NotReachedError as error:
            raise ControlError("denied", str(error)) from None
        with _tidied(container) as log_dir:
            options = plan.start_options(log_dir)
            status = ask(path, "start", options, timeout=_BEGIN_SECONDS)
        run_dir = plan.run_dir if container else Path(status["run_dir"])
        return Attached(
            process, "socket", run_dir, container=container, _time=options["time"], _leave=leave
        )
    if plan.trace:
        arguments = {"seconds": plan.seconds, "warmup": plan.warmup}
        ask(path, "trace", arguments, timeout=_BEGIN_SECONDS)
    run_dir = Path(status["run_dir"])
    if not sees(process.pid, run_dir):
        run_dir = Path(f"/proc/{process.pid}/root{run_dir}")
    moved = _lasting(path, status, plan)
    return Attached(process, "socket", run_dir, began=False, _time=moved, _leave=leave)


def _lasting(path: Path, status: Mapping[str, Any], plan: RecordingPlan) -> float | None:
    """Extend a recording to the planned end; return its option ``time`` if that is ours."""
    before = status["options"]["time"]
    if not before:  # it lasts as long as the process
        return None
    begins_in = status["begins_in"]
    ends_in = status["ends_in"]
    left = begins_in + before if ends_in is None else ends_in
    whole = _own_end(plan.warmup + plan.seconds)
    # Whoever began it for a while ends it before it would end automatically.
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


def _by_code(process: Found, plan: RecordingPlan) -> Attached | None:
    """Inject haiprof and begin; None: somebody else made it record meanwhile."""
    pid = process.pid
    job = python_of(pid)
    package = Path(haiprof.__file__).parent
    container = _container_folder_for(pid, plan, (package,))
    # With haiprof comes the Python of its recorder, too.
    mine = container is None and sees(pid, Path(sys.executable).resolve())
    python = (sys.executable, import_paths()) if mine else None
    with _tidied(container) as log_dir, _message(pid) as answer:
        options = plan.start_options(log_dir)

        def run(path: str, modules: Sequence[str], bundle: str = "") -> str:
            arguments = {
                "path": path,
                "modules": list(modules),
                "lacking": _LACKING,
                "answer": answer.seen_at,
                "options": options,
                "python": python if path else None,
                "bundle": bundle,
            }
            code = _code(arguments)
            ran.append(run_in(pid, code, _BEGIN_SECONDS))
            said = _heard(answer, _RECORD_SECONDS)
            if not said and _records(pid, plan.run):  # it is about to say so
                said = _heard(answer, _BEGIN_SECONDS)
            if not said:
                late = f"it did not begin to record within {_RECORD_SECONDS:g} s"
                raise NotReachedError(pid, "late", late)
            return said

        ran: list[Ran] = []
        if container is None:
            with _bundle(pid, job) as modules:
                said = run(_package_for(job), (), modules)
        else:
            said = run("", ["haiprof"])
            if said.startswith(_LACKING):
                _give(pid, container, package, job)
                answer.write(bytes(ANSWER_BYTES))
                said = run(container.package, ())
        if said == RECORDED:
            if container is not None:
                container.leave()
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
        process,
        ran[0].way,
        plan.run_dir,
        frozen_ns=frozen,
        container=container,
        _time=options["time"],
    )


def _records(pid: int, run: str) -> bool:
    """Say whether a process that has not answered yet has begun to record."""
    try:
        status = ask(socket_of(pid), "status", timeout=_SAY_SECONDS)
    except ControlError as error:
        return error.reason == "busy"  # just because of that
    return bool(status.get("run") == run)


def _container_folder_for(
    pid: int, plan: RecordingPlan, packages: Sequence[Path]
) -> ContainerFolder | None:
    """Make a folder in the container of a process; None when it sees all that it needs here.

    Raises:
        NotReachedError: there can be none.
    """
    try:
        if same_root(pid):
            return None
        plan.log_dir.mkdir(parents=True, exist_ok=True)
        seen = {f for f in (plan.log_dir, *packages) if f == f.resolve() and sees(pid, f)}
        if seen >= {plan.log_dir, *packages}:
            return None
        container = ContainerFolder(pid, plan.run)
        if plan.log_dir in seen and _is_of(pid, plan.log_dir):
            container.log_dir = str(plan.log_dir)
        return container
    except OSError as error:
        raise NotReachedError(
            pid,
            "folder",
            "it runs in a container that does not see our files, and none can be copied there: "
            f"{error.filename}: {error.strerror}; do this as root, or give it a /tmp",
        ) from None


def _is_of(pid: int, folder: Path) -> bool:
    """Say whether a process may write a folder as its owner, or as root."""
    return Path(f"/proc/{pid}").stat().st_uid in (0, folder.stat().st_uid)


@contextlib.contextmanager
def _tidied(container: ContainerFolder | None) -> Iterator[str]:
    """Yield the folder of runs in a container; after a failure nothing stays there."""
    try:
        yield container.log_dir if container is not None else ""
    except BaseException:
        if container is not None:
            container.leave()
        raise


def _give(pid: int, container: ContainerFolder, package: Path, job: Python) -> None:
    """Copy what records into a container."""
    ours = this_python()
    if job != ours:
        raise NotReachedError(
            pid,
            "refused",
            f"its container has no haiprof, and this one is for Python {ours}, not for its {job}; "
            "install haiprof there, or attach with a haiprof for that Python",
        )

    def wanted(path: Path) -> bool:
        if path.parent != package:
            return path.name != "__pycache__"
        return path.name in _RECORDING or path.match(_compiled_for(job))

    try:
        container.give(package, wanted)
    except OSError as error:
        raise NotReachedError(
            pid, "folder", f"haiprof cannot be copied into its container: {error.strerror}"
        ) from None


def bring(attached: Sequence[Attached]) -> list[str]:
    """Copy here what was written in containers, when all have ended; remove our files there.

    Returns:
        A line for each run that could not be copied, with its place.
    """
    rooms = {
        each.container.key: (each, each.container)
        for each in attached
        if each.container is not None
    }
    said = []
    for each, container in rooms.values():
        try:
            container.bring(each.run_dir, _CLOSE_SECONDS if alive([each]) else 1.0)
            close_ended(each.run_dir)
        except OSError as error:
            where = f"/proc/{each.process.pid}/root{container.log_dir}/{each.run_dir.name}"
            reason = error.strerror or str(error)
            said.append(f"{each.process.label}: its run stays in its container ({reason}): {where}")
    for each in attached:
        if each.container is not None:
            each.container.leave()
    return said


def _compiled_for(python: Python) -> str:
    """Return the pattern of our compiled module's name there; 3.13t has the prefix of 3.13, too."""
    return f"_core.cpython-{str(python).replace('.', '')}-*"


def _package_for(python: Python) -> str:
    """Return where our package lies, if it was built for that Python; empty: its own must do."""
    package = Path(haiprof.__file__).parent
    built = list(package.glob(_compiled_for(python)))
    return str(package.parent) if built else ""


@contextlib.contextmanager
def _bundle(pid: int, job: Python) -> Iterator[str]:
    """Yield the path of a bundle of our modules; empty: the process reads each from its own file.

    A free-threaded Python could read what the same version with the GIL has compiled, but may have
    a haiprof of its own: with our modules its recorder would look for the wrong package.
    """
    file = shared_file(pid, _FOLDERS, bundle.bundle()) if job == this_python() else None
    if file is None:
        yield ""
        return
    with file:
        yield file.seen_at


@contextlib.contextmanager
def _message(pid: int) -> Iterator[SharedFile]:
    """Make a file of zeros that the process can overwrite.

    It is removed as soon as nobody waits any more for what the process writes there.
    """
    file = shared_file(pid, _FOLDERS, bytes(ANSWER_BYTES))
    if file is None:
        raise NotReachedError(
            pid,
            "folder",
            "neither /tmp nor /dev/shm of it can be written from here, or they are full; do this "
            "as root, or make room",
        )
    with file:
        yield file


def _heard(message: SharedFile, seconds: float) -> str:
    """Return the first line written there; empty: none was in time."""
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


def _from_outside(process: Found, plan: RecordingPlan, why: str) -> Attached:
    options, _ = resolve({"run": plan.run, "log_dir": plan.log_dir, **dict(plan.options)})
    try:
        user = Path(f"/proc/{process.pid}").stat().st_uid  # another rank of it may have made it
        open_run_folder(plan.run_dir, process.command, options, owners=[user])
        until = time.monotonic() + plan.warmup + _own_end(plan.seconds)
        place = process.place
        note = Note(
            run_dir=str(plan.run_dir),
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
            path = write_note(rings, note)
            start_recorder(rings, plan.run_dir, options)
            ring_doorbell(rings)
            return path

        path = in_ring_dir(plan.run_dir, watch, say_once)
    except OSError as error:
        raise AttachError(why_no_folder(error)) from None
    return Attached(process, "outside", plan.run_dir, why=why, _note=path)


def alive(attached: Sequence[Attached]) -> bool:
    """Say whether any of the processes is still there."""
    from haiprof.common.process_life import process_is_alive

    return any(process_is_alive(a.process.pid, a.process.start_time) for a in attached)
