"""The folder of one run: its name, its ``run.json``, and the message when it cannot be used."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from haiprof import schema
from haiprof.common.launcher import Placement, placement
from haiprof.common.owned_files import Folder
from haiprof.common.places import RING_SUFFIX, folders_for_rings, safe_name
from haiprof.common.process_life import start_time_of
from haiprof.options import Options


def made_up_name(command: str, place: Placement) -> str:
    """Return a name for a run of ``command`` that all ranks of one launch derive alike."""
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
        place: of whoever starts it, if no launcher gave ranks: those derive one name anyway.
    """
    import json

    if not (place.attempt and place.job) or place.launched:
        return None
    found: list[tuple[int, str]] = []
    for file in log_dir.glob(f"*/{schema.RUN_FILE}"):
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
            earlier = json.loads(Folder.at(file.parent).read(file.name))
            begun = earlier.get("created_ns")
            if (earlier.get("job"), earlier.get("command")) == (place.job, list(command)):
                found += [(begun, file.parent.name)] if type(begun) is int else []
    return min(found)[1] if found else None


def open_run_folder(
    folder: Path, command: Sequence[str], options: Options, *, owners: Collection[int] | None = ()
) -> None:
    """Make the folder of a run with its ``run.json``; leave what another rank made as it is.

    Args:
        folder: absolute path; its last part is the run's name.
        command: the command line that is recorded.
        options: the run's options.
        owners: other users who may own it; None: anybody.

    Raises:
        OSError: the folder cannot be made or written, or is another user's.
    """
    run = open_run(folder, make=True, owners=owners)
    # Written even if not needed: os.access does not show root a read-only mount.
    partial = f".run-{safe_name(os.uname().nodename)}-{os.getpid()}"
    run.remove(partial)
    fd = run.create(partial)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as out:
            out.write(_document(folder.name, command, options))
        _name_unless_taken(run, partial)
    finally:
        run.remove(partial)


def open_run(folder: Path, *, make: bool = False, owners: Collection[int] | None = ()) -> Folder:
    """Open the folder of a run, which must be this user's.

    Args:
        folder: its path. What leads to the log folder is the user's choice; the run folder itself
            may only be a link if nobody else can have made it, to a run or an empty folder.
        make: create it, and the log folder, unless they are there.
        owners: other users who may own it; None: anybody.

    Raises:
        OSError: it cannot be opened, is another user's, or is a link of somebody else.
    """
    if make:
        folder.parent.mkdir(parents=True, exist_ok=True)
    above = Folder.at(folder.parent)
    run = above.folder(folder.name, make=make, own_link=True)
    if above.is_link(folder.name) and run.names() and not run.has(schema.RUN_FILE):
        raise NotADirectoryError(
            errno.ENOTDIR, "is a link to a folder that is not a run; remove it", str(folder)
        )
    if owners is not None and run.owner not in owners:
        run.require_ours()
    return run


def _name_unless_taken(run: Folder, partial: str) -> None:
    try:
        os.link(partial, schema.RUN_FILE, src_dir_fd=run.fd, dst_dir_fd=run.fd)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        if not run.has(schema.RUN_FILE):
            run.rename(partial, schema.RUN_FILE)


def _document(run: str, command: Sequence[str], options: Options) -> str:
    import json

    from haiprof import __version__

    fields: dict[str, Any] = {
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
    return json.dumps(fields, indent=1) + "\n"


def _current_folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it has been removed
        return None


def why_not(error: OSError) -> str:
    """Return the line for the user when a run's folder or ring cannot be used."""
    where = str(error.filename or "a ring")
    fix = "give --log-dir, start(log_dir=…) or HAIPROF_LOG_DIR a folder that can be written"
    if isinstance(error, PermissionError) and error.errno == errno.EPERM:
        fix += ", or the run another name"
    of_rings = Path(where) in folders_for_rings() or f"haiprof-{os.getuid()}" in where
    if where.endswith(RING_SUFFIX) or of_rings:
        elsewhere = "set HAIPROF_SHM_DIR to another folder on tmpfs"
        fix = f"give the container a larger /dev/shm, or {elsewhere}"
        if isinstance(error, PermissionError):
            fix = f"remove it, or {elsewhere}"
    reason = error.strerror or str(error)
    return f"not recording: {where}: {reason}; {fix}. The job continues unprofiled"


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
