"""The folder of one run: its name, its ``run.json``, and what to say when it cannot be had."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from haiprof import schema
from haiprof.launcher import Placement, placement
from haiprof.options import Options
from haiprof.places import RING_SUFFIX, safe_name
from haiprof.recorder.life import start_time_of


def made_up_name(command: str, place: Placement) -> str:
    """Return a name for a run of ``command`` that all ranks of one launch make up alike."""
    if place.launched and place.job:
        return safe_name(f"{command}-{place.job}")
    if place.launched:
        # Ranks of one launcher share their parent; its start time makes the name unique.
        parent = os.getppid()
        return safe_name(f"{command}-{_stamp(_start_time_of(parent))}-{parent}")
    return safe_name(f"{command}-{_stamp(time.time())}-{os.getpid()}")


def earlier_attempt(log_dir: Path, command: Sequence[str], place: Placement) -> str | None:
    """Return the name of the run that a job began with this command before it was started again.

    Args:
        log_dir: where runs are.
        command: the command line that is to be recorded.
        place: of whoever starts it, where no launcher gave ranks: those make up one name anyway.
    """
    import json

    if not (place.attempt and place.job) or place.launched:
        return None
    found: list[tuple[int, str]] = []
    for file in log_dir.glob(f"*/{schema.RUN_FILE}"):
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            told = json.loads(file.read_text(encoding="utf-8"))
            if (told.get("job"), told.get("command")) == (place.job, list(command)):
                found.append((int(told["created_ns"]), file.parent.name))
    return min(found)[1] if found else None


def open_run_folder(folder: Path, command: Sequence[str], options: Options) -> None:
    """Make the folder of a run with its ``run.json``; leave what another rank made as it is.

    Args:
        folder: absolute path; its last part is the run's name.
        command: the command line that is recorded.
        options: the run's options.

    Raises:
        OSError: the folder cannot be made or written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    file = folder / schema.RUN_FILE
    # Written whether needed or not: os.access does not see a read-only mount through root's eyes.
    partial = folder / f".run-{safe_name(os.uname().nodename)}-{os.getpid()}"
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write(_document(folder.name, command, options))
        try:
            os.link(partial, file)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not file.exists():
                partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _document(run: str, command: Sequence[str], options: Options) -> str:
    import json

    from haiprof import __version__

    told: dict[str, Any] = {
        "format": schema.RUN_FORMAT,
        "version": f"{schema.MAJOR}.{schema.MINOR}",
        "run": run,
        "created_ns": time.time_ns(),
        "command": list(command),
        "task": os.environ.get("HAIPROF_TASK_ID"),
        "job": placement().job,
        "user": os.environ.get("HAIPROF_USER_ID"),
        "host": os.uname().nodename,
        "cwd": _current_folder(),
        "haiprof": __version__,
        "options": {**options._asdict(), "log_dir": str(options.log_dir)},
    }
    return json.dumps(told, indent=1) + "\n"


def _current_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it has been removed under us
        return None


def why_not(error: OSError) -> str:
    """Return the line for the user when a run's folder or ring cannot be had."""
    where = str(error.filename or "a ring")
    mend = "give --log-dir, start(log_dir=…) or HAIPROF_LOG_DIR a folder that can be written"
    if where.endswith(RING_SUFFIX) or f"haiprof-{os.getuid()}" in where:
        elsewhere = "set HAIPROF_SHM_DIR to another folder on tmpfs"
        mend = f"give the container a larger /dev/shm, or {elsewhere}"
        if isinstance(error, PermissionError):
            mend = f"remove it, or {elsewhere}"
    reason = error.strerror or str(error)
    return f"not recording: {where}: {reason}; {mend}. The job goes on without"


def _stamp(seconds: float) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))


def _start_time_of(pid: int) -> float:
    """Return when a process started, seconds since the epoch, to about a second."""
    try:
        boot = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines()
            if line.startswith("btime")
        )
        return boot + (start_time_of(pid) or 0) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, StopIteration):
        return 0.0
