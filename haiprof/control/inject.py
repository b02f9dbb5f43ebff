"""Runs Python code once in a running process that was not prepared for it.

Python from 3.14 on has a way of its own, :func:`sys.remote_exec`, between interpreters of one minor
version, both with the GIL or both without, that see the same files. All others are reached by our
injector (``src/attach``). Both have the main thread run the code between two of its Python
instructions: never in the middle of a C function, and not before the one that it is in returns.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeVar

from haiprof import _core
from haiprof.common.owned_files import Folder, private_folder
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError

_T = TypeVar("_T")

#: The oldest Python that haiprof works in.
_OLDEST: Final = (3, 10)
#: How often to check whether others are done, s.
_TURN_SECONDS: Final = 0.002
#: How long another tracer may stay before we take it for a permanent one, s.
_TRACED_SECONDS: Final = 1.0
#: A process younger than this (s) may still be loading its interpreter.
_YOUNG_SECONDS: Final = 5.0
#: Reasons that pass automatically in a process that is just starting.
_PASSING: Final = frozenset({"starting", "vfork"})
#: Folders for a script that the process is to read.
_FOLDERS: Final = ("/tmp", "/dev/shm", "/var/tmp")
_SCRIPT: Final = "run.py"

# The job's __main__ keeps its names. A child that the process forks meanwhile has what is queued
# too, but must not run it. Exceptions must not reach the job, but a Ctrl-C is the job's: it comes
# again when our code is done with. An interpreter that is ending runs nothing: what the code would
# load and start there can crash the process. While the interpreter still imports site, few modules
# are whole and sys.path is not complete: then the code runs at the first call or return after that,
# and until then the process keeps a descriptor open, which we see.
_AROUND: Final = """\
def run():
    try:
        exec(compile({code}, '<haiprof>', 'exec'), {{'__name__': '<haiprof>'}})
    except KeyboardInterrupt:
        import _thread
        _thread.start_new_thread(lambda: (time.sleep(0.05), _thread.interrupt_main()), ())
    except BaseException as error:
        name = type(error).__name__
        sys.stderr.write('haiprof: %s in injected code: %s\\n' % (name, error))

def starting():
    spec = getattr(sys.modules.get('site'), '__spec__', None)
    return getattr(spec, '_initializing', False)

def run_later(run, starting):
    pending = posix.memfd_create({name}, 1)
    until = time.monotonic() + {seconds}
    def later(frame, event, argument):
        late = time.monotonic() > until
        if late or not starting():
            sys.setprofile(None)
            if not late:
                run()
            posix.close(pending)
    sys.setprofile(later)

try:
    import posix, sys, time
    if posix.getpid() == {pid} and not sys.is_finalizing():
        run_later(run, starting) if starting() else run()
except BaseException:
    pass
del run, starting, run_later
"""
_LAST: Final = """\
try:
    posix.unlink({script})
except OSError:
    pass
"""

_FIXES: Final = {
    "stopped": "resume it: kill -CONT {pid}",
    "traced": "end that first",
    "seccomp": "start it with haiprof run",
    "vfork": "try again in a moment",
    "bits": "only its own architecture's haiprof can attach",
    "not_python": "name the process that runs Python",
    "old": "haiprof works with Python 3.10 and later",
    "starting": "try again in a moment",
    "memory": "start it with haiprof run",
    "busy": "try again, or see with py-spy what it does",
    "full": "try again in a moment",
    "disabled": "start it without PYTHON_DISABLE_REMOTE_DEBUG, or with haiprof run",
    "late": "wait until it is done with that, or allow more time",
}


class NotReachedError(HaiprofError):
    """A process that cannot be made to run code.

    ``str()`` is one line: the process, the reason, the fix.

    Attributes:
        reason: one word. ``gone``, ``zombie``, ``stopped``, ``traced``, ``permission``,
            ``seccomp``, ``vfork``, ``bits``, ``not_python``, ``starting``, ``memory`` and ``busy``
            are those of ``src/attach/refused.h``; ``old``: an older Python than 3.10; ``full``:
            Python's queue of pending calls; ``disabled``: remote debugging is switched off there;
            ``late``: the code did not run to its end in time.
    """

    def __init__(self, pid: int, reason: str, detail: str) -> None:
        """Compose the line."""
        self.reason = reason
        fix = _permission_fix(pid) if reason == "permission" else _FIXES.get(reason, "")
        line = f"process {pid}{_name(pid)}: {detail}"
        super().__init__(f"{line}; {fix.format(pid=pid)}" if fix else line)


@dataclass(frozen=True)
class Python:
    """Which Python a process runs: code compiled for one does not work in another.

    Attributes:
        version: major and minor.
        free_threaded: built without the global interpreter lock, whether it runs with one or not.
    """

    version: tuple[int, int]
    free_threaded: bool

    def __str__(self) -> str:
        """Return it as its program is called: ``3.13``, or ``3.13t``."""
        return f"{self.version[0]}.{self.version[1]}{'t' if self.free_threaded else ''}"


def this_python() -> Python:
    """Return the Python that runs this."""
    return Python(sys.version_info[:2], "t" in sys.abiflags)


@dataclass(frozen=True)
class Ran:
    """Code has run to its end in another process.

    Attributes:
        way: how it was injected.
        frozen_ns: how long one thread of the process was stopped for it, in all; ns.
    """

    way: Literal["remote_exec", "injector"]
    frozen_ns: int


def run_in(pid: int, code: str, timeout: float = 10.0) -> Ran:
    """Have the main thread of a process run Python code, once, and wait until it has.

    The code has a name space of its own. What it raises is reported in one line on the process's
    stderr and goes no further. Whatever is raised here, the code does not run later.

    Args:
        pid: the process, as this one numbers it.
        code: source text.
        timeout: seconds until the code has to have run to its end.

    Raises:
        NotReachedError: the process cannot be reached, or did not run the code in time.
    """
    deadline = time.monotonic() + timeout
    with turn(pid, deadline):  # else another haiprof would look like a debugger
        python = _python_when_there(pid, deadline)
        if python.version >= (3, 14) and python == this_python():
            with _folder_of_both(pid) as folder:
                if folder is not None:
                    return _by_remote_exec(pid, code, folder, deadline)
        return _by_injector(pid, code, deadline)


@contextlib.contextmanager
def turn(pid: int, deadline: float, file: str = "maps") -> Iterator[None]:
    """Lock a process against other haiprofs, of any user; wait until none is at it.

    A thread that is about to take what one has queued holds the lock of that queue for a moment.
    Stopping it just then and making it queue more would deadlock it.

    Args:
        pid: the process.
        deadline: how long to wait (CLOCK_MONOTONIC, s).
        file: the file in its folder of /proc that is locked.

    Raises:
        NotReachedError: others are at it for longer.
    """
    try:
        # Only a user who may read the process can open this, and so keep others waiting.
        process = os.open(f"/proc/{pid}/{file}", os.O_RDONLY)
    except OSError:  # reaching for it will say why
        yield
        return
    try:
        while True:
            try:
                fcntl.flock(process, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK:  # a kernel without locks there
                    break
            if time.monotonic() > deadline:
                raise NotReachedError(pid, "busy", "another haiprof is at it")
            time.sleep(_TURN_SECONDS)
        yield
    finally:
        with contextlib.suppress(OSError):  # a forked child of ours may have it open too
            fcntl.flock(process, fcntl.LOCK_UN)
        os.close(process)


def why_not(pid: int) -> str | None:
    """Say in one line why code cannot be run in a process; None when nothing is in the way.

    Read-only: nothing runs in the process and none of its threads is stopped.
    """
    try:
        python_of(pid)
    except NotReachedError as error:
        return str(error)
    return None


def python_of(pid: int) -> Python:
    """Return which Python a process runs, from its memory.

    Raises:
        NotReachedError: it runs none that can be reached.
    """
    library, version, free_threaded = _untraced(pid, lambda: _core.interpreter(pid))
    if version != 0:
        found = (version >> 24, version >> 16 & 0xFF)
    else:
        # Before 3.11 no symbol says; the name of the library or of the program does.
        named = re.search(r"python(\d)\.(\d+)", Path(library).name)
        if named is None:
            named = re.search(r"python(\d)\.(\d+)", _mapped(pid))
        found = (int(named[1]), int(named[2])) if named else _OLDEST
    if found < _OLDEST:
        raise NotReachedError(pid, "old", f"it runs Python {found[0]}.{found[1]}")
    return Python(found, free_threaded)


def _by_injector(pid: int, code: str, deadline: float) -> Ran:
    name = _unique_name()
    text = _alone(_around(pid, code, name, deadline))
    injection = _untraced(pid, lambda: _core.Injection(pid, text))
    try:
        try:
            _queue(pid, injection, deadline)
            pause = 0.0005
            while not injection.ran():
                if time.monotonic() > deadline:
                    break
                time.sleep(pause)
                pause = min(2 * pause, 0.01)
        finally:
            # Whatever comes in between, code that has not run by now does not run later.
            ran = injection.close()
    except _core.InjectError as error:
        _refuse(pid, error)
    if not ran:
        raise NotReachedError(pid, "late", _where_it_is(pid))
    _wait_for_start(pid, name, deadline)
    return Ran("injector", injection.frozen_ns)


def _untraced(pid: int, look: Callable[[], _T]) -> _T:
    """Inspect a process, between two stops by another tracer such as py-spy."""
    until = time.monotonic() + _TRACED_SECONDS
    while True:
        try:
            return look()
        except _core.InjectError as error:
            if error.args[0] != "traced" or time.monotonic() > until:
                _refuse(pid, error)
        time.sleep(_TURN_SECONDS)


def _queue(pid: int, injection: _core.Injection, deadline: float) -> None:
    pause = 0.002
    while (state := injection.queue()) != "queued":
        if time.monotonic() + pause > deadline:
            if state == "full":
                raise NotReachedError(pid, "full", "its queue of pending calls is full")
            raise NotReachedError(pid, "starting", "its interpreter is starting or ending")
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def _by_remote_exec(pid: int, code: str, folder: Folder, deadline: float) -> Ran:
    # The script removes itself when it has run, which we see.
    name = _unique_name()
    script = folder.path / _SCRIPT
    text = _around(pid, code, name, deadline) + _LAST.format(script=ascii(str(script)))
    _write_script(pid, folder, _alone(text))
    _remote_exec_when_there(pid, str(script), deadline)
    pause = 0.0005
    try:
        while script.exists():
            if not Path(f"/proc/{pid}").exists():
                raise NotReachedError(pid, "gone", "it has ended")
            if time.monotonic() > deadline:
                raise NotReachedError(pid, "late", _where_it_is(pid))
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
    except BaseException:
        # An empty script takes the place of the one that waits there.
        with contextlib.suppress(NotReachedError):
            _remote_exec(pid, os.devnull)
        raise
    _wait_for_start(pid, name, deadline)
    return Ran("remote_exec", 0)


def _remote_exec_when_there(pid: int, script: str, deadline: float) -> None:
    """Wait for an interpreter that has just begun to have its main thread."""
    while True:
        try:
            return _remote_exec(pid, script)
        except NotReachedError as error:
            if error.reason not in _PASSING or time.monotonic() + 0.01 > deadline:
                raise
        time.sleep(0.01)


def _remote_exec(pid: int, script: str) -> None:
    remote_exec: Any = getattr(sys, "remote_exec")  # noqa: B009 - unknown to older Pythons' types
    try:
        remote_exec(pid, script)
    except ProcessLookupError:
        raise NotReachedError(pid, "gone", "it has ended") from None
    except PermissionError as error:
        raise NotReachedError(pid, "permission", f"its memory cannot be written: {error}") from None
    except (RuntimeError, OSError) as error:
        python_of(pid)  # raises if it has ended
        if any(what in str(error) for what in ("main thread", "running interpreter")):
            text = "its interpreter is starting or ending"
            raise NotReachedError(pid, "starting", text) from None
        raise NotReachedError(pid, "disabled", f"Python refuses: {error}") from None


@contextlib.contextmanager
def _folder_of_both(pid: int) -> Iterator[Folder | None]:
    """Make a folder that both see at the same path, and remove it afterwards; None: no such one."""
    for parent in _FOLDERS:
        try:
            theirs = Path(f"/proc/{pid}/root{parent}").stat()
            ours = Path(parent).stat()
            if not os.path.samestat(theirs, ours):
                continue
            path = Path(tempfile.mkdtemp(prefix="haiprof-", dir=parent))
        except OSError:
            continue
        try:
            yield private_folder(path)
        finally:
            shutil.rmtree(path, ignore_errors=True)
        return
    yield None


def _write_script(pid: int, folder: Folder, text: str) -> None:
    """Write what the process is to run. From here on the folder is the process's, not ours."""
    with os.fdopen(folder.create(_SCRIPT), "w", encoding="ascii") as file:
        file.write(text)
        _give(pid, file.fileno())
    _give(pid, folder.fd)


def _give(pid: int, descriptor: int) -> None:
    """Let the user of the process own what it has to read and remove."""
    owner = Path(f"/proc/{pid}").stat()
    if owner.st_uid != os.geteuid():
        with contextlib.suppress(OSError):
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _unique_name() -> str:
    return f"haiprof-{os.getpid()}-{time.monotonic_ns()}"


def _wait_for_start(pid: int, name: str, deadline: float) -> None:
    """Wait until a process that was still starting has run the code."""
    while any(name in target for target in _descriptors(pid)):
        if time.monotonic() > deadline + 0.05:
            raise NotReachedError(pid, "starting", "its interpreter is still starting")
        time.sleep(0.002)


def _descriptors(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(descriptor.readlink())


def _around(pid: int, code: str, name: str, deadline: float) -> str:
    inner = pid
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        if (line := re.search(r"^NSpid:.*?(\d+)$", status, re.MULTILINE)) is not None:
            inner = int(line[1])
    seconds = max(0.0, deadline - time.monotonic())
    return _AROUND.format(pid=inner, code=ascii(code), name=ascii(name), seconds=seconds)


def _alone(text: str) -> str:
    """Return one statement that runs the text in a name space of its own."""
    return f"exec({text!a}, {{}})\n"


def _python_when_there(pid: int, deadline: float) -> Python:
    """Wait for a process that has just begun to have its interpreter."""
    while True:
        try:
            return python_of(pid)
        except NotReachedError as error:
            passing = error.reason in _PASSING or (
                error.reason == "not_python" and _age(pid) < _YOUNG_SECONDS
            )
            if not passing or time.monotonic() + 0.01 > deadline:
                raise
        time.sleep(0.01)


def _age(pid: int) -> float:
    """Return the seconds since a process began; a large number when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return float("inf")
    begun = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - begun


def _mapped(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    return ""


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
        return f" ({printable(name)})"
    return ""


def _where_it_is(pid: int) -> str:
    """Say what keeps the main thread from running Python code."""
    state = ""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
        state = text.split()[0].decode("ascii")
    doing = "runs C code" if state == "R" else "waits in a system call"
    return f"its main thread does not reach Python code: it {doing}"


def _permission_fix(pid: int) -> str:
    """Say who may trace the process."""
    with contextlib.suppress(OSError):
        owner = Path(f"/proc/{pid}").stat().st_uid
        if os.geteuid() not in (0, owner):
            try:
                name = pwd.getpwuid(owner).pw_name
            except KeyError:
                name = str(owner)
            as_whom = "root" if owner == 0 else f"{name} or as root"
            return f"it belongs to user {name}: do this as {as_whom}"
    scope = "0"
    with contextlib.suppress(OSError):
        scope = Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii").strip()
    if scope == "3":
        return "kernel.yama.ptrace_scope is 3: start it with haiprof run"
    if scope != "0" and os.geteuid() != 0:
        return f"do this as root, or set kernel.yama.ptrace_scope to 0 (it is {scope})"
    return (
        "the capability CAP_SYS_PTRACE is needed (docker run --cap-add SYS_PTRACE; in Kubernetes "
        "securityContext.capabilities.add: [SYS_PTRACE])"
    )


def _refuse(pid: int, error: _core.InjectError) -> NoReturn:
    reason, detail = error.args
    raise NotReachedError(pid, reason, detail) from None
