"""Where things lie: ring files on tmpfs, run folders in the log directory, the node's /sys."""

from __future__ import annotations

import binascii
import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from haiprof.common.owned_files import Folder, private_folder

#: Folders for rings with colons between, in the order in which they are tried.
SHM_VARIABLE: Final = "HAIPROF_SHM_DIR"
#: Where rings may lie if that is not set. What is mapped belongs on tmpfs, which the last two may
#: not be. None of it depends on the environment: whoever looks for rings finds them.
_FOR_RINGS: Final = ("/dev/shm", "/run/user/{uid}", "/tmp", "/var/tmp")
#: Where a run is written if its log folder is relative to a working folder that has been removed.
_FOR_LOGS: Final = ("/var/tmp", "/tmp")
#: How many names to try in a folder where somebody else has taken the first.
_MOST_NAMES: Final = 100
RING_SUFFIX: Final = ".ring"
LOCK_NAME: Final = "recorder.lock"
DOORBELL_NAME: Final = "doorbell"
RECORDER_LOG: Final = "recorder.log"
#: Of a note beside the rings about how a child of `haiprof run` ended.
STATUS_SUFFIX: Final = ".status"
#: Prefix of the folders in which deep traces of a run are written.
UNFINISHED_TRACE: Final = ".trace-"
#: How often the recorder of a run reads and drains, if that was changed after its start.
PACE_NAME: Final = "pace.json"
#: Why the ranks of a run wait, while they do.
HANG_NAME: Final = "hang.json"
#: What costs a run time right now, while it does.
FINDINGS_NAME: Final = "findings.json"
#: What the steps of the processes were spent on so far, once one of them has left the mark.
FIGURES_NAME: Final = "figures.json"
FIGURES_MARK: Final = "figures.wanted"
#: Left by the Pythons of the job that would record: that there was one, and that one of them
#: imported torch.
HAIPROF_MARK: Final = "haiprof.loaded"
TORCH_MARK: Final = "torch.loaded"
#: Contains the sockets of docs/control.md; no run has a name that begins with a dot.
CONTROL_FOLDER: Final = ".control"
#: Of a socket at which its process does not listen yet.
PARTIAL_SUFFIX: Final = ".partial"
#: Between the name of a run and the key of its log folder; no run has it in its name.
_OF_LOG_DIR: Final = "~"
_KEY_DIGITS: Final = 8
#: PROC_PID_INIT_INO and PROC_TIME_INIT_INO of Linux: the namespaces outside all containers.
_FIRST_NAMESPACE: Final = 0xEFFFFFFC
_FIRST_TIME_NAMESPACE: Final = 0xEFFFFFFA
PROCFS: Final = "/proc"
SYSFS: Final = "/sys"
_T = TypeVar("_T")
#: How often to retry making a folder that somebody just removes, and after how long (s).
_TRIES: Final = 20
_BETWEEN_TRIES: Final = 0.002
#: A sysfs or procfs, or a copy of parts of one, contains at least one of these.
_SIGNS: Final = {
    "sys": ("bus", "class", "devices"),
    "proc": ("stat", "cpuinfo", "meminfo", "net", "self"),
}


class Access(NamedTuple):
    """How the sources of the node are reached."""

    procfs: str = PROCFS
    sysfs: str = SYSFS
    #: Socket of a haiprof-perfd; empty: none is used.
    perfd: str = ""
    #: Monitoring groups may be made in resctrl.
    resctrl: bool = False


def folders_for_rings(setting: str | None = None, uid: int | None = None) -> list[Path]:
    """Return the folders in which a user's folder of rings may lie, the best first.

    Args:
        setting: ``HAIPROF_SHM_DIR`` of a process of that user; of this process if None.
        uid: the user; this one if None.
    """
    setting = os.environ.get(SHM_VARIABLE) if setting is None else setting
    chosen = [Path(part) for part in (setting or "").split(":") if part]
    uid = os.getuid() if uid is None else uid
    return chosen or [Path(part.format(uid=uid)) for part in _FOR_RINGS]


def ring_root() -> Path:
    """Return the usual folder of this user's rings; it may not exist yet."""
    return folders_for_rings()[0] / f"haiprof-{os.getuid()}"


def ring_roots() -> Iterator[Folder]:
    """Yield the existing folders of this user's rings, the best first.

    Folders of another user under such a name are left out.
    """
    seen = set()
    for base in folders_for_rings():
        for name in names_of_roots(base, os.getuid()):
            with contextlib.suppress(OSError):
                root = private_folder(base / name)
                about = os.fstat(root.fd)
                if (about.st_dev, about.st_ino) not in seen:  # one base may be a link to another
                    seen.add((about.st_dev, about.st_ino))
                    yield root


def names_of_roots(base: Path, uid: int | None) -> list[str]:
    """Return the names of folders of rings in a folder, in the order in which they are tried.

    Args:
        base: the folder; empty if it cannot be read.
        uid: of this user only; None: of all.
    """
    found = []
    with contextlib.suppress(OSError):
        for entry in base.iterdir():
            kind, _, rest = entry.name.partition("-")  # haiprof-<uid>, haiprof-<uid>.<n>
            user, _, n = rest.partition(".")
            ours = kind == "haiprof" and user.isdecimal() and (n.isdecimal() or "." not in rest)
            if ours and (uid is None or int(user) == uid):
                found.append((int(user), int(n or 0), entry.name))
    return [name for *_, name in sorted(found)]


def _own_folder(base: Path, name: str) -> Folder:
    """Open a folder of ours, made if necessary; others may have taken its name.

    Raises:
        OSError: the error of the first name.
    """
    first: OSError | None = None
    for n in range(_MOST_NAMES):
        path = base / (f"{name}.{n}" if n else name)
        try:
            return private_folder(path, make=True)
        except OSError as error:
            first = first or error
            if not os.path.lexists(path):  # the name is free: nothing can be made there
                break
    assert first is not None
    raise first


def ring_dir(run_dir: Path) -> Path:
    """Return the folder of the rings of one run on this machine; see :func:`in_ring_dir`.

    Two log folders may have runs of one name, so the name here includes the log folder, too.

    Containers may share /dev/shm (``--ipc=host``) and a run, but a recorder only sees the processes
    of its own pid namespace, and reads the clocks of its own time namespace; so each namespace has
    its own folder, and its own recorder.

    Args:
        run_dir: the run's folder, which need not exist yet.
    """
    return next(iter(ring_dirs(run_dir)), ring_root() / _name_of_rings(run_dir))


def ring_dirs(run_dir: Path) -> list[Path]:
    """Return all existing folders of the rings of one run on this machine.

    There is one, unless some of its rings found no room beside the others.
    """
    name = _name_of_rings(run_dir)
    found = []
    for root in ring_roots():
        with contextlib.suppress(OSError):
            found.append(private_folder(root.path / name, above=root).path)
    return found


def in_ring_dir(run_dir: Path, use: Callable[[Path], _T], on_line: Callable[[str], None]) -> _T:
    """Use a folder of the rings of one run: the first with which that works.

    Args:
        run_dir: the run's folder.
        use: takes the folder, makes it, and raises OSError if that fails.
        on_line: called with a line if it is not the best. Only one process of the run has to report
            it: the first to use that folder.

    Raises:
        OSError: the error of the best one, if none works.
    """
    wrong: OSError | None = None
    there = ring_dirs(run_dir)
    for folder in there:
        try:
            return _again(lambda: use(folder))  # noqa: B023 (called at once)
        except OSError as error:
            wrong = wrong or error
    name = _name_of_rings(run_dir)
    for base in folders_for_rings():
        try:
            root = _own_folder(base, f"haiprof-{os.getuid()}")
            if root.path != ring_root() and wrong is None:
                wrong = _in_the_way(ring_root())
        except OSError as error:
            wrong = wrong or error
            continue
        if root.path / name in there:
            continue
        try:
            used = _again(lambda: use(root.path / name))  # noqa: B023 (called at once)
        except OSError as error:
            wrong = wrong or error
            with contextlib.suppress(OSError):
                root.remove_folder(name)
            continue
        if wrong is not None:
            disk = "" if mounted(root.path, "tmpfs") else ", on a disk, which may slow the job"
            reason = f"{wrong.filename}: {wrong.strerror or wrong}"
            on_line(f"{reason}; rings are kept in {root.path} instead{disk}")
        return used
    assert wrong is not None
    raise wrong


def _again(use: Callable[[], _T]) -> _T:
    """Call ``use()`` again while a recorder that is leaving removes the folder under it."""
    for _ in range(_TRIES):
        try:
            return use()
        except FileNotFoundError:
            time.sleep(_BETWEEN_TRIES)
    return use()


def root_with_room(least: int) -> Folder:
    """Return a folder of this user's rings, made if necessary, with room for ``least`` bytes.

    Raises:
        OSError: there is none; the error of the best one.
    """
    wrong: OSError | None = None
    for base in folders_for_rings():
        try:
            root = _own_folder(base, f"haiprof-{os.getuid()}")
            require_room(root.path, least)
            return root
        except OSError as error:
            wrong = wrong or error
    assert wrong is not None
    raise wrong


def _in_the_way(folder: Path) -> OSError:
    try:
        private_folder(folder)
    except OSError as error:
        return error
    return PermissionError(errno.EPERM, "could not be used", str(folder))


def run_dir_for(log_dir: Path, run: str, on_line: Callable[[str], None]) -> Path:
    """Return the absolute path of a run's folder.

    Where the log folder is relative to a working folder that has been removed, it is made in a
    folder of this user in /var/tmp, and one line says so.

    Raises:
        OSError: there can be none.
    """
    try:
        return log_dir.absolute() / run
    except FileNotFoundError:
        pass
    wrong: OSError | None = None
    inside = os.path.normpath(f"/{log_dir}").lstrip("/")
    for base in map(Path, _FOR_LOGS):
        try:
            folder = _own_folder(base, f"haiprof-logs-{os.getuid()}")
            for part in Path(inside).parts:
                folder = folder.folder(part, make=True)
            created = True
            try:
                folder.make(run)
            except FileExistsError:
                created = False  # whoever made it reports it
        except OSError as error:
            wrong = wrong or error
            continue
        if created:
            on_line(f"the working folder has been removed; the run is kept in {folder.path / run}")
        return folder.path / run
    assert wrong is not None
    raise wrong


def _name_of_rings(run_dir: Path) -> str:
    log_dir, run = os.path.split(_without_links(run_dir))
    key = binascii.crc32(os.fsencode(log_dir))  # hashlib would load OpenSSL into the job
    return _of_these_namespaces(f"{run}{_OF_LOG_DIR}{key:0{_KEY_DIGITS}x}")


def run_of(rings: str) -> str:
    """Return the run's name in the name of a folder of rings."""
    return rings.partition(_OF_LOG_DIR)[0]


def of_this_namespace(rings: str) -> bool:
    """Say whether a folder of rings of this name is of processes in our namespaces."""
    return rings.partition(_OF_LOG_DIR)[2][_KEY_DIGITS:] == _of_these_namespaces("")


def _without_links(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except OSError:  # relative to a folder that has been removed
        return str(path)


def control_socket() -> Path:
    """Return the control socket of this process (docs/control.md).

    It is not beside the rings: it exists between two recordings, too, and a path with the name of a
    run is too long for a socket.
    """
    name = _of_this_namespace(str(os.getpid()))
    for base in folders_for_rings():
        with contextlib.suppress(OSError):
            root = _own_folder(base, f"haiprof-{os.getuid()}")
            if os.access(root.reached_at(), os.W_OK):  # not where the mount is read-only
                return root.path / CONTROL_FOLDER / name
    return ring_root() / CONTROL_FOLDER / name


def _of_this_namespace(name: str) -> str:
    return name if in_first_pid_namespace() else f"{name}@{_namespace('pid'):x}"


def _of_these_namespaces(name: str) -> str:
    time = _namespace("time")
    named = _of_this_namespace(name)
    return named if time in (None, _FIRST_TIME_NAMESPACE) else f"{named}@time-{time:x}"


def _namespace(kind: str) -> int | None:
    try:
        return Path(f"/proc/self/ns/{kind}").stat().st_ino
    except OSError:
        return None


def in_first_pid_namespace() -> bool:
    """Say whether this process sees all of the machine's processes."""
    return _namespace("pid") in (None, _FIRST_NAMESPACE)


def room_for_ring(folder: Path, wanted: int) -> int:
    """Return how many bytes a ring in ``folder`` may take: ``wanted``, or half of the free ones.

    The other half is the job's: its DataLoader workers and NCCL die without shared memory.

    Raises:
        OSError: ``folder`` cannot be read.
    """
    found = os.statvfs(folder)
    return min(wanted, found.f_bavail * found.f_frsize // 2)


def require_room(folder: Path, least: int) -> None:
    """Raise OSError (ENOSPC) unless a ring in ``folder`` may take ``least`` bytes."""
    if room_for_ring(folder, least) < least:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def removed(folder: Path) -> bool:
    """Return whether somebody has removed ``folder``.

    Raises:
        OSError: unknown, as on a file system that is temporarily unavailable.
    """
    try:
        os.stat(folder)  # noqa: PTH116
    except FileNotFoundError:
        return True
    return False


def make_private(folder: Path) -> None:
    """Create ``folder`` with mode 0700, and refuse one that somebody else prepared.

    Raises:
        OSError: it cannot be made, or belongs to another user (a shared /dev/shm invites traps).
    """
    private_folder(folder, make=True)


def open_rings(folder: Path, *, make: bool = False) -> Folder:
    """Open the folder of the rings of one run, which must be this user's, as the one above it.

    Args:
        folder: see :func:`ring_dir`.
        make: create both unless they are there.

    Raises:
        OSError: it cannot be opened, or somebody else prepared it.
    """

    def opened() -> Folder:
        return private_folder(folder, make=make, above=private_folder(folder.parent, make=make))

    return _again(opened) if make else opened()


def node_name() -> str:
    """Return the name that this machine's folders carry."""
    name = os.environ.get("MARSV2_NODE_NAME") or os.uname().nodename
    return safe_name(name) or "node"


def safe_name(text: str) -> str:
    """Return ``text`` as one harmless path component of at most 120 characters."""
    kept = "".join(c if c.isalnum() or c in "-_.+=@" else "-" for c in text)
    return kept.strip(".-")[:120]


def find_sysfs(root: str | Path) -> Path:
    """Return ``root`` if it is a sysfs, else its folder ``sys``.

    Raises:
        ValueError: neither; the message continues after the name of the option.
    """
    return _find(Path(root), "sys")


def find_procfs(root: str | Path) -> Path:
    """Return ``root`` if it is a procfs, else its folder ``proc``.

    Raises:
        ValueError: neither; the message continues after the name of the option.
    """
    return _find(Path(root), "proc")


def _find(root: Path, kind: str) -> Path:
    try:
        if not root.exists():
            raise ValueError("does not exist")
        for folder in (root, root / kind):
            if any((folder / sign).exists() for sign in _SIGNS[kind]):
                return folder
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    *some, last = _SIGNS[kind]
    raise ValueError(f"is not a {kind}fs: there is no {', '.join(some)} or {last} in it")


def mounted(folder: Path, kind: str) -> bool:
    """Say whether ``folder`` lies on a mounted file system of that type, which a copy does not."""
    try:
        device = folder.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    mount_device = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [mount_device]:
            return source.split()[:1] == [kind]
    return False


def in_container() -> bool:
    """Say whether this process most likely runs in a container."""
    return (
        not in_first_pid_namespace()
        or "KUBERNETES_SERVICE_HOST" in os.environ
        or any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))
    )
