"""Starts the recorder of a run, from the job or from a command. Imports nothing heavy.

Tests: tests/recorder/test_command.py.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from haiprof._core import spawn_detached
from haiprof.common.owned_files import Folder
from haiprof.common.places import DOORBELL_NAME, RECORDER_LOG, Access, open_rings
from haiprof.options import ENABLED_VARIABLE, Options

# The recorder must find the very haiprof and pyarrow that the job would, and nothing of the job's
# own folder: a `queue.py` beside train.py is not the standard library's.
_PROGRAM = "import sys; sys.path[:] = {paths!r}; from haiprof.recorder.__main__ import main; main()"


# Memory of a closed segment goes back to the system, so that the recorder's size does not depend on
# how long the job runs. glibc raises both thresholds automatically unless they are set.
MEMORY: Final = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
}


#: How long a recorder may take from its start to its lock, s.
RECORDER_START_SECONDS: Final = 2.0

#: Where haiprof was injected from: the Python of the injector, and its import paths.
_injector: tuple[str, tuple[str, ...]] | None = None


def use_python_of_injector(executable: str, paths: Sequence[str]) -> None:
    """Run recorders in the Python that injected haiprof here.

    The job's own may lack what the recorder needs.

    Args:
        executable: that Python; if it cannot be run, the job's own is used.
        paths: its :func:`import_paths`.
    """
    global _injector
    _injector = (executable, tuple(paths))


def import_paths() -> list[str]:
    """Return the import paths of a recorder in this Python."""
    unwanted = {"", "."}
    with contextlib.suppress(OSError):  # the working folder has been removed
        unwanted.add(os.getcwd())
        if sys.argv and sys.argv[0]:
            unwanted.add(os.path.dirname(os.path.abspath(sys.argv[0])))
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    kept = [p for p in sys.path if p not in unwanted and os.path.isabs(p)]
    return kept if package in kept else [package, *kept]


def start_recorder(ring_dir: Path, run_dir: Path, options: Options) -> int:
    """Start a detached recorder; it exits at once if the run has one.

    Args:
        ring_dir: where the run's rings lie.
        run_dir: where it writes.
        options: the run's options.

    Returns:
        Its pid.

    Raises:
        OSError: the interpreter cannot be started.
    """
    executable, paths = sys.executable, import_paths()
    if _injector is not None and os.access(_injector[0], os.X_OK):
        executable, paths = _injector[0], list(_injector[1])
    if not executable:
        raise FileNotFoundError(2, "this Python does not know its own executable", "sys.executable")
    arguments = [
        executable,
        "-c",
        _PROGRAM.format(paths=paths),
        f"--ring-dir={ring_dir}",
        f"--run-dir={run_dir}",
        *(f"--interval={name}={seconds!r}" for name, seconds in options.intervals().items()),
        f"--drain-hz={options.drain_hz!r}",
        f"--stack-hz={options.stack_hz!r}",
        f"--hang-after={options.hang_after!r}",
        f"--on-finding={options.on_finding}",
        f"--storage-limit={options.storage_limit!r}",
        f"--metrics={options.metrics}",
        f"--peak-flops={options.peak_flops!r}",
    ]
    try:
        access = options.access()
    except ValueError:  # a mount disappeared since it was checked: use this container's own
        access = Access(perfd=options.perfd, resctrl=options.resctrl)
    arguments += [f"--procfs={access.procfs}", f"--sysfs={access.sysfs}", f"--perfd={access.perfd}"]
    if access.resctrl:
        arguments.append("--resctrl")
    inherited = {
        variable: value
        for variable, value in os.environ.items()
        if variable not in (ENABLED_VARIABLE, "LD_PRELOAD", "CUDA_INJECTION64_PATH")
    }
    environment = [f"{variable}={value}" for variable, value in (inherited | MEMORY).items()]
    log = open_rings(ring_dir).update(RECORDER_LOG, os.O_WRONLY | os.O_APPEND)
    try:
        # As bytes: the environment and paths of a job need not be UTF-8.
        return spawn_detached(
            [os.fsencode(a) for a in arguments], [os.fsencode(e) for e in environment], log
        )
    finally:
        os.close(log)


def ring_doorbell(ring_dir: Path) -> None:
    """Wake the recorder now rather than at its next turn. Never blocks, never raises."""
    try:
        fd = Folder.at(ring_dir).open_pipe(DOORBELL_NAME, os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(fd, b"!")
    except OSError:
        pass
    finally:
        os.close(fd)
