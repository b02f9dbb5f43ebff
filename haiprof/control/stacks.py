"""What the threads of running processes do now: read from outside, with haiprof loaded or without.

No process is stopped, gets a signal, or has to give up its GIL: a hung one answers as any other.
Only native frames, which nobody gets unasked, need a stop.
The memory of a process with a thread in uninterruptible sleep is not read, since the kernel may
keep whoever reads it waiting, too.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from haiprof import _core
from haiprof.common.frame_texts import OUR_THREADS
from haiprof.common.places import RING_SUFFIX
from haiprof.common.process_life import start_time_of
from haiprof.control.find import Found, find, python_below
from haiprof.control.jobs import at_once, processes
from haiprof.control.native_frames import native_frames
from haiprof.control.sockets import users_folders

#: How long one process may take, s.
SECONDS: Final = 5.0
#: A thread that is in uninterruptible sleep that often, so many seconds apart, stays there.
_LOOKS: Final = 3
_BETWEEN: Final = 0.05
_ASLEEP: Final = "uninterruptible"
#: Processes that are unwound at once.
_NATIVE_AT_ONCE: Final = 4


class Frame(NamedTuple):
    """One frame of a stack; ``line`` 0: not known."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread that runs Python; with native frames, any thread.

    Attributes:
        thread: the kernel's number, as this node has it.
        name: as the kernel has it.
        state: ``running``, ``waiting``, ``uninterruptible``, ``stopped``.
        waits_in: kernel function or system call that it waits in; None: none, or unknown.
        gil: whether it has the GIL.
        frames: the innermost first.
        cut: whether there are more.
    """

    thread: int
    name: str
    state: str
    waits_in: str | None
    gil: bool
    frames: tuple[Frame, ...]
    cut: bool = False


@dataclass(slots=True)
class Looked:
    """One process, and what its threads do.

    Attributes:
        pid: in our namespace.
        label: its rank, if a launcher gave it one, and its pid.
        rank: None without a launcher.
        command: that it was started with.
        forked_by: the process that forked it as a worker; None: it is none.
        threads: whose stacks are known; the main thread comes first.
        others: how many others there are, by state and what they wait in.
        problem: why its stacks are not known; empty: they are.
        native_problem: why they have no native frames, if these were asked for; empty: they have.
    """

    pid: int
    label: str
    rank: int | None
    command: tuple[str, ...]
    forked_by: int | None = None
    threads: list[Thread] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)
    problem: str = ""
    native_problem: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON takes it."""
        threads = [
            {**asdict(thread), "frames": [frame._asdict() for frame in thread.frames]}
            for thread in self.threads
        ]
        return {**asdict(self), "threads": threads}

    @classmethod
    def from_json(cls, process: dict[str, Any]) -> Looked:
        """Return a process as :meth:`as_json` has it.

        Raises:
            TypeError: it is not one.
            KeyError: neither.
        """
        threads = [
            Thread(**{**thread, "frames": tuple(Frame(**frame) for frame in thread["frames"])})
            for thread in process["threads"]
        ]
        return cls(**{**process, "command": tuple(process["command"]), "threads": threads})


def chosen(target: str | None) -> list[tuple[Found, int | None]]:
    """Return the processes of a job and the Python workers below them, each with its parent there.

    Args:
        target: see :func:`haiprof.control.find.find`; None: all that haiprof is loaded in.
    """
    if target is None:
        pids = dict.fromkeys(process.pid for process in processes())
        found = [each for pid in pids for each in find(str(pid))]
    else:
        found = find(target)
    return [*((process, None) for process in found), *python_below(p.pid for p in found)]


def look_at(
    those: Sequence[tuple[Found, int | None]], seconds: float = SECONDS, *, native: bool = False
) -> list[Looked]:
    """Look at processes, many at a time.

    Args:
        those: processes, and who has forked them, as :func:`chosen` gives them.
        seconds: how long each may take, native frames not included.
        native: stop each for a moment, to have its native frames as well.
    """
    looked = list(at_once(lambda one: _in_time(*one, seconds), those))
    if native:
        # Each takes hundreds of MB.
        at_once(_add_native, [each for each in looked if not each.problem], _NATIVE_AT_ONCE)
    return looked


def _add_native(looked: Looked) -> None:
    stacks, looked.native_problem = native_frames(looked.pid)
    numbers = _threads(looked.pid)
    known = {thread.thread: thread for thread in looked.threads}
    for number, frames in stacks.items():
        thread = numbers.get(number)
        if thread is None or not frames or frames[-1][1].endswith(OUR_THREADS):
            continue
        before = known.get(thread)
        named = tuple(Frame(*frame) for frame in frames)
        if before is not None:
            known[thread] = replace(before, frames=named)
            continue
        state, waits_in = _core.thread_state(looked.pid, thread)
        known[thread] = Thread(
            thread, _name(looked.pid, thread), state, waits_in, gil=False, frames=named
        )
        kind = _kind(state, waits_in)
        if looked.others.get(kind):
            looked.others[kind] -= 1
    looked.others = {kind: count for kind, count in looked.others.items() if count}
    looked.threads = sorted(known.values(), key=lambda t: (t.thread != looked.pid, t.thread))


def _in_time(process: Found, forked_by: int | None, seconds: float) -> Looked:
    placed = process.place.launched
    worker = f", worker of pid {forked_by}" if forked_by is not None else ""
    looked = Looked(
        process.pid,
        f"{process.label}{worker}",
        process.place.rank if placed else None,
        process.command,
        forked_by,
    )
    # In a thread of its own: nothing ends a read that the kernel keeps waiting.
    thread = threading.Thread(target=_look, args=(process, looked), daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        return Looked(
            looked.pid, looked.label, looked.rank, looked.command, forked_by,
            problem=f"reading its memory took more than {seconds:g} s",
        )  # fmt: skip
    return looked


def _look(process: Found, looked: Looked) -> None:
    pid = process.pid
    numbers = _threads(pid)
    if start_time_of(pid) != process.start_time or not numbers:
        looked.problem = "it has ended"
        return
    if (asleep := _asleep(pid, numbers.values())) is not None:
        looked.problem = f"not read: thread {asleep} is in uninterruptible sleep"
        _, waits_in = _core.thread_state(pid, asleep)
        looked.problem += f", in {waits_in}" if waits_in else ""
        return
    try:
        stacks = _core.PythonStacks(pid, _layout(process)).take()
    except (OSError, RuntimeError, ValueError) as error:
        looked.problem = _reason(error)
        return
    with_python = set()
    for number, gil, cut, frames in stacks:
        known = numbers.get(number)
        if known is None:
            continue  # it has just ended
        with_python.add(known)
        if not frames or frames[-1][1].endswith(OUR_THREADS):
            continue
        state, waits_in = _core.thread_state(pid, known)
        named = tuple(Frame(*frame) for frame in frames)
        looked.threads.append(Thread(known, _name(pid, known), state, waits_in, gil, named, cut))
    looked.threads.sort(key=lambda thread: (thread.thread != pid, thread.thread))
    others = Counter(
        _kind(*_core.thread_state(pid, thread))
        for thread in numbers.values()
        if thread not in with_python
    )
    looked.others = dict(others)


def _kind(state: str, waits_in: str | None) -> str:
    return f"{state} in {waits_in}" if waits_in else state


def _reason(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return (
            "its memory may not be read: do this as its user or as root, with the right to ptrace"
        )
    if isinstance(error, ProcessLookupError):
        return "it has ended"
    return str(error)


def _layout(process: Found) -> bytes:
    """Return where a process keeps its frames: by its ring, or by the symbols of its Python.

    Raises:
        RuntimeError: it runs no Python that is known here.
        PermissionError: it may not be read.
    """
    try:
        return _core.layout_of(process.pid)
    except RuntimeError:
        for reader in rings_of(process):
            if reader.header["python"] is not None:
                layout: bytes = reader.header["python"]
                return layout
        raise


def rings_of(process: Found) -> Iterator[_core.RingReader]:
    """Yield the rings of a process, and not those that another user put in their place."""
    for ring in _rings(process.pid):
        with contextlib.suppress(OSError, ValueError):
            reader = _core.RingReader(ring)
            header = reader.header
            same = (header["pid"], header["start_time"]) == (process.pid, process.start_time)
            if same and ring.stat().st_uid == process.uid:
                yield reader


def _rings(pid: int) -> Iterable[Path]:
    for user_folder in users_folders(Path("/")):
        with contextlib.suppress(OSError):
            yield from user_folder.glob(f"*/{pid}{RING_SUFFIX}")


def _threads(pid: int) -> dict[int, int]:
    """Return the threads of a process: by their number in its namespace, that in ours."""
    try:
        numbers = [int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return {}
    if _own_number(pid, pid) == pid:
        return {number: number for number in numbers}
    return {_own_number(pid, number): number for number in numbers}


def _own_number(pid: int, thread: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        status = Path(f"/proc/{pid}/task/{thread}/status").read_text("utf-8", "replace")
        for line in status.splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return thread


def _asleep(pid: int, threads: Iterable[int]) -> int | None:
    """Return a thread that stays in uninterruptible sleep; a read of a file does not take long."""
    found = set(threads)
    for look in range(_LOOKS):
        if look:
            time.sleep(_BETWEEN)
        found = {thread for thread in found if _core.thread_state(pid, thread)[0] == _ASLEEP}
        if not found:
            return None
    return min(found)


def _name(pid: int, thread: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text("utf-8", "replace").strip()
    return ""


class _Kind(NamedTuple):
    """What is compared with each other, in the order in which it is shown."""

    other: bool
    worker: bool
    name: str


class Group(NamedTuple):
    """Threads at the same place."""

    frames: tuple[Frame, ...]
    cut: bool
    #: Of the threads; empty of main threads.
    name: str
    #: Whether these are the main threads of their processes.
    main: bool
    #: Whether their processes are workers.
    worker: bool
    #: Each with its process.
    members: list[tuple[Looked, Thread]]
    #: How many threads there are of this kind: main ones, or others of this name.
    of: int


def grouped(processes: Iterable[Looked]) -> list[Group]:
    """Put threads with equal stacks together: main threads first, of each kind the fewest first."""
    groups: dict[tuple[_Kind, tuple[Frame, ...], bool], list[tuple[Looked, Thread]]] = {}
    of_kind: Counter[_Kind] = Counter()
    for process in processes:
        for thread in process.threads:
            main = thread.thread == process.pid
            kind = _Kind(not main, process.forked_by is not None, "" if main else thread.name)
            of_kind[kind] += 1
            groups.setdefault((kind, thread.frames, thread.cut), []).append((process, thread))
    ordered = sorted(groups.items(), key=lambda each: (each[0][0], len(each[1])))
    return [
        Group(frames, cut, kind.name, not kind.other, kind.worker, members, of_kind[kind])
        for (kind, frames, cut), members in ordered
    ]
