"""What a rank does, in words: from the stacks of its threads, and of its DataLoader's workers.

Tests: tests/control/test_hang.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from haiprof.common.frame_texts import frame_text, in_package
from haiprof.common.process_life import process_is_alive, tracer_of
from haiprof.control.find import Found, python_below
from haiprof.control.rests import rests
from haiprof.control.stacks import Looked as Stacks
from haiprof.control.stacks import Thread, look_at

#: In these the main thread of a process that ends waits for its threads and processes.
_AT_EXIT: Final = ("_shutdown", "_python_exit", "_exit_function")
_LOADER: Final = "torch/utils/data/dataloader.py"
_WORKER: Final = "torch/utils/data/_utils/worker.py"
_LOCKS: Final = ("threading.py", "multiprocessing/synchronize.py", "queue.py")
_DEBUGGERS: Final = ("/pdb.py", "/bdb.py", "/pydevd.py", "/pydevd_frame.py", "/debugpy/")
DEBUGGED: Final = "debugged"
#: What takes long where nothing is wrong: evaluation, checkpoints, compilation.
_LONG_WORK: Final = (
    "torch/serialization.py", "torch/distributed/checkpoint/", "torch/_dynamo/", "torch/_inductor/",
    "torch/_functorch/", "subprocess.py", "multiprocessing/", "concurrent/futures/", "socket.py",
    "ssl.py", "shutil.py", "<frozen importlib",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Doing:
    """What the main thread of one rank does.

    Attributes:
        rank: its number.
        pid: of its process.
        state: ``running``, ``waiting``, ``uninterruptible``, ``stopped``, ``debugged`` (it is at a
            breakpoint, or a debugger has stopped it); empty: not known.
        does: in words, after "it".
        line: of the job's own code, ``function (file:line)``; None: none is on its stack.
        stack: of its main thread, the innermost frame first.
        worker: where it waits for its DataLoader: the same of a worker that loads, down to what
            torch calls; where it ends: of a thread that does not; empty: there is none.
        lasts: whether it was there a second before, too.
        host: where it runs; empty: here.
        leaves: whether it has ended its program, and waits for its threads and processes.
        rests: whether it sleeps, or waits for its user, where no loop leads back to its training.
        busy_thread: process and thread of these frames: of the worker's, else of its own.
        native: the same frames with those of C and C++ between; empty: nobody asked for them.
    """

    rank: int
    pid: int
    state: str
    does: str
    line: str | None
    stack: tuple[str, ...]
    lasts: bool = False
    host: str = ""
    worker: tuple[str, ...] = ()
    leaves: bool = False
    rests: bool = False
    busy_thread: tuple[int, int] = (0, 0)
    native: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        """Whether it does something that may take long."""
        return self.state == "running" or any(
            path in frame for frame in self.busy_in for path in _LONG_WORK
        )

    @property
    def busy_in(self) -> tuple[str, ...]:
        """The frames that it waits for to end: the worker's, else its own."""
        return self.worker or self.stack


def _main(one: Stacks) -> Thread | None:
    return next((thread for thread in one.threads if thread.thread == one.pid), None)


def stack_of(one: Stacks) -> tuple[str, ...]:
    """Return the frames of its main thread, the innermost first."""
    main = _main(one)
    return () if main is None else tuple(frame_text(*frame) for frame in main.frames)


def doing_of(process: Found, rank: int, one: Stacks, *, lasts: bool) -> Doing:
    """Return what a rank does by itself; see :func:`waiting_for`."""
    main = _main(one)
    if main is None:
        state = "uninterruptible" if "uninterruptible" in one.problem else ""
        alive = process_is_alive(one.pid, process.start_time)
        does = (one.problem or "runs no Python") if alive else "has ended"
        return Doing(rank, one.pid, state, does, None, ())
    state, (does, line) = main.state, _words(main)
    held = _held_by(main)
    if held:
        state, does = DEBUGGED, held + ("" if line is None else f", at {line}")
    doing = Doing(rank, one.pid, state, does, line, stack_of(one), lasts)
    at = (one.pid, one.pid)
    return replace(doing, leaves=_leaves(main), rests=rests(one.pid, main), busy_thread=at)


def _held_by(main: Thread) -> str:
    """Say which debugger holds a process; empty: none does."""
    above = itertools.takewhile(lambda f: in_package(f.function, f.file) is not None, main.frames)
    if any(path in frame.file for frame in above for path in _DEBUGGERS):
        return "is at a breakpoint"
    tracer = tracer_of(main.thread) if main.state == "stopped" else 0
    return f"is stopped by a debugger (pid {tracer})" if tracer else ""


def _leaves(main: Thread) -> bool:
    return not main.cut and bool(main.frames) and main.frames[-1].function in _AT_EXIT


def loading(processes: Sequence[Found], looked: Sequence[Stacks]) -> dict[int, Thread]:
    """Return a worker that loads of each process that waits for its DataLoader, by its pid."""
    waiting = [
        process.pid
        for process, one in zip(processes, looked, strict=True)
        if (main := _main(one)) is not None and _in_loader(main) and main.state == "waiting"
    ]
    if not waiting:
        return {}
    found: dict[int, Thread] = {}
    for one in look_at(python_below(waiting)):
        thread = _loads(one)
        if one.forked_by is not None and thread is not None:
            found.setdefault(one.forked_by, thread)
    return found


def _loads(worker: Stacks) -> Thread | None:
    """Return what loads in a worker, down to where torch calls it; None: it waits for more."""
    main = _main(worker)
    if main is None:
        return None
    if main.state == "stopped":
        return main
    # Below that are the frames of whoever forked it.
    frames = itertools.takewhile(lambda frame: not frame.file.endswith(_WORKER), main.frames)
    loads = replace(main, frames=tuple(frames))
    return None if _line(loads) is None else loads


def waiting_for(doing: Doing, one: Stacks, worker: Thread | None) -> Doing:
    """Return what a rank does with what it waits for: its loader's worker, or a thread at its end.

    Args:
        doing: what its main thread does.
        one: its threads.
        worker: that loads, if it waits for its DataLoader.
    """
    process = one.pid
    if worker is not None:
        process = worker.thread
        waits = f"waits for its DataLoader, whose worker (pid {process})"
    elif doing.leaves:
        others = (thread for thread in one.threads if thread.thread != one.pid)
        worker = next((thread for thread in others if _line(thread) is not None), None)
        waits = "waits at its end for a thread that"
    if worker is None:
        return replace(doing, does="waits at its end") if doing.leaves else doing
    does, line = _words(worker)
    return replace(
        doing,
        state=worker.state,
        does=f"{waits} {does}",
        line=line,
        worker=tuple(frame_text(*frame) for frame in worker.frames),
        busy_thread=(process, worker.thread),
    )


def _in_loader(thread: Thread) -> bool:
    return any(frame.file.endswith(_LOADER) for frame in thread.frames)


def _line(thread: Thread) -> str | None:
    """Return the innermost line of the job's own code."""
    own = next((f for f in thread.frames if in_package(f.function, f.file) is None), None)
    return None if own is None else frame_text(*own)


def _words(thread: Thread) -> tuple[str, str | None]:
    """Return what a thread does, after "it", and the line of the job that it is at."""
    line = _line(thread)
    at = "" if line is None else f", at {line}"
    if thread.state == "stopped":
        return f"is stopped by a signal or a debugger{at}", line
    files = [frame.file for frame in thread.frames]
    functions = [frame.function.rpartition(".")[2] for frame in thread.frames]
    waits = f" in {thread.waits_in}" if thread.waits_in else ""
    if thread.state == "uninterruptible":
        return f"waits for a device or a file system{waits}{at}", line
    if _in_loader(thread):
        return f"waits for its DataLoader{at}", line
    if any("torch/distributed/" in file for file in files):
        call = next((n for f, n in zip(files, functions, strict=True) if "distributed" in f), "")
        return f"is in {call} of torch.distributed{at}", line
    if thread.frames and thread.frames[0].file.endswith(_LOCKS):
        return f"waits for a lock or another thread{at}", line
    does = {"running": "is busy", "waiting": f"sleeps or waits{waits}"}.get(thread.state, "is")
    return f"{does}{at}", line
