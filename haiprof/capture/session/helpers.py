"""Decides which processes are helpers, and in whose ring their submissions count.

Tests: tests/capture/session/test_session.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from haiprof import _core
from haiprof.capture.after_import import imported
from haiprof.common.launcher import placement
from haiprof.common.owned_files import private_folder
from haiprof.common.places import node_name, of_this_namespace, ring_roots
from haiprof.common.process_life import parent_of, start_time_of
from haiprof.options import ENABLED_VARIABLE

#: A fork server stands between a rank and its workers, a shell or a starter may, too.
_LEVELS_ABOVE: Final = 4
#: Before multiprocessing waits for children and queues, which may take long.
_BEFORE_ALL: Final = 1000
#: Exceptions by which launchers pass on that something else has failed.
_OF_LAUNCHERS: Final = (
    "torch.distributed.elastic.",
    "torch.multiprocessing.spawn.",
    "subprocess.CalledProcessError",
)


def join_process_above() -> None:
    """Count what we submit in the ring of a process above us until we have one of our own.

    A DataLoader worker that is spawned never has.
    """
    pid = os.getppid()
    for _ in range(_LEVELS_ABOVE):
        started = start_time_of(pid)
        if started is None:
            return
        if any(_core.join_counters(str(ring), pid, started) for ring in _rings_of(pid)):
            return
        pid = parent_of(pid)


def _rings_of(pid: int) -> Iterator[Path]:
    """Yield the rings of a process of this user; not those that another user put in their place."""
    for root in ring_roots():
        for name in filter(of_this_namespace, root.names()):
            with contextlib.suppress(OSError):
                folder = private_folder(root.path / name, above=root)
                for ring in folder.names():
                    if ring.startswith(f"{pid}."):
                        yield folder.reached_at() / ring


def is_dataloader_worker() -> bool:
    """Say whether this process loads data for another one."""
    torch_data = sys.modules.get("torch.utils.data")
    try:
        return torch_data is not None and torch_data.get_worker_info() is not None
    except Exception:
        return False


def at_end_of_worker(then: Callable[[], None]) -> None:
    """Call ``then`` at the end of this process if it is a child of multiprocessing.

    Such a child handles an exception on its own and may leave by ``os._exit``: neither a hook nor
    ``atexit`` sees that. ``then`` is called while the exception is being handled.
    """
    processes, util = imported("multiprocessing.process"), imported("multiprocessing.util")
    if processes is None or util is None:
        return
    with contextlib.suppress(Exception):
        if processes.parent_process() is not None:
            util.Finalize(None, then, exitpriority=_BEFORE_ALL)


def trains_later(run_dir: Path) -> bool:
    """Say whether this process will most likely train, although it has not begun to.

    It runs a script of its user's, was started as a rank or alone, and has started nothing: a
    launcher is a program of an environment, or has children.

    Args:
        run_dir: folder of the run.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if not script or not is_first_of_rank(run_dir, ""):
        return False
    prefixes = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    inside = any(os.path.realpath(script).startswith(f"{prefix}/") for prefix in prefixes)
    return not inside and not _has_children()


def _has_children() -> bool:
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # a thread that has ended, or a kernel without it
            if Path(f"/proc/self/task/{task}/children").read_text("ascii").strip():
                return True
    return False


def is_first_of_rank(run_dir: Path, error: str) -> bool:
    """Say whether this process is the one that a launcher, or `haiprof run`, has started as a rank.

    Args:
        run_dir: folder of the run.
        error: what ends it, as in ``RuntimeError: no``: launchers report their ranks' ends by some.
    """
    place = placement()
    if error.startswith(_OF_LAUNCHERS):
        return False
    # Without a rank, but with children that have recorded, it is a launcher of its own kind.
    if not place.launched and (run_dir / f"{node_name()}#{place.rank}").exists():
        return False
    try:
        environment = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    above = dict(os.fsdecode(one).partition("=")[::2] for one in environment)
    # If equal, the parent is itself a rank of this run, or a helper of one.
    return (placement(above)[:4], above.get(ENABLED_VARIABLE)) != (
        place[:4],
        os.environ.get(ENABLED_VARIABLE),
    )
