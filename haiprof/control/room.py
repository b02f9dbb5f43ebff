"""A folder of ours among the files of a process that sees other files than we do: a container's.

The process is given haiprof there, writes its run there, and the run is brought from there to us.
Nobody in the container is trusted: no link is followed, so nothing outside is read or written,
whatever the names there turn into meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from haiprof.control.sockets import same_root
from haiprof.schema import PROCESS_FILE

#: Where a process mostly may write.
_PARENTS: Final = ("tmp", "var/tmp", "dev/shm")
_PACKAGE: Final = "package"
_LOGS: Final = "logs"
#: A link in the place of a folder or of a file is refused, and a pipe is not waited for.
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Folders in folders that a run may have; it has one.
_DEEPEST: Final = 8


def sees(pid: int, folder: Path) -> bool:
    """Say whether a process finds this very folder at this path, which has no links in it."""
    try:
        if same_root(pid):
            return True
        with _root(pid) as root, _opened(root, folder.parts[1:]) as theirs:
            return os.path.samestat(os.fstat(theirs), folder.stat())
    except OSError:
        return False


class Room:
    """The folder of one user's processes in one container, with one run of theirs.

    Attributes:
        package: the folder that modules are given in, as the process sees it.
        log_dir: the folder of runs, as the process sees it; another one where it needs none here.
    """

    def __init__(self, pid: int, run: str) -> None:
        """Make it, or find the one that another rank in the container has.

        Args:
            pid: the process.
            run: its run, which has a folder there from now on.

        Raises:
            OSError: it has no folder that it can write and that programs may lie in.
        """
        self._pid = pid
        self._uid = Path(f"/proc/{pid}").stat().st_uid
        self._name = f"haiprof-attach-{self._uid}"
        self._run = run
        with contextlib.ExitStack() as descriptors:
            parent = self._find(descriptors)
            self._logs = self._theirs(self._folder, _LOGS)
            descriptors.callback(os.close, self._logs)
            os.close(self._theirs(self._logs, run))
            self._descriptors = descriptors.pop_all()
        self.package = f"/{parent}/{self._name}/{_PACKAGE}"
        self.log_dir = f"/{parent}/{self._name}/{_LOGS}"

    @property
    def key(self) -> tuple[int, int]:
        """What is the same for all that are the same room."""
        about = os.fstat(self._folder)
        return about.st_dev, about.st_ino

    def give(self, source: Path, wanted: Callable[[Path], bool]) -> None:
        """Copy a package, unless it is there.

        Args:
            source: its folder.
            wanted: which of its files and folders are to be copied.

        Raises:
            OSError: it cannot be written; what there is of it is removed.
        """
        partial = f".{source.name}-{os.getpid()}-{time.monotonic_ns()}"
        package = self._theirs(self._folder, _PACKAGE)
        with contextlib.ExitStack() as descriptors:
            descriptors.callback(os.close, package)
            if source.name in os.listdir(package):
                return
            try:
                self._copy_in(source, package, partial, wanted)
                with acting_as_user_of(self._pid):
                    os.rename(partial, source.name, src_dir_fd=package, dst_dir_fd=package)
            except OSError as error:
                _remove(package, partial)
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another rank was faster
                    raise

    def bring(self, to: Path, patience: float) -> None:
        """Copy the run to us once its files are closed, and remove it there.

        Args:
            to: its folder here. What it has stays; a folder of the same name gets a number.
            patience: how long the files may take to be closed, s.

        Raises:
            OSError: it cannot be read there or written here; then it stays where it is.
        """
        until = time.monotonic() + patience
        while True:
            with _opened(self._logs, [self._run]) as folder:
                while not _closed(folder) and time.monotonic() < until:
                    time.sleep(0.02)
                to.mkdir(mode=0o700, parents=True, exist_ok=True)
                copied = _copy_out(folder, to, _DEEPEST)
            try:
                _remove_these(self._logs, self._run, copied)
            except OSError as error:
                # The end of a log comes when all files are closed.
                if error.errno != errno.ENOTEMPTY or time.monotonic() >= until:
                    raise
            else:
                return

    def leave(self) -> None:
        """Remove it, unless it holds a run, of whomever. Never raises; it is not for use then."""
        with self._descriptors, contextlib.suppress(OSError):
            with contextlib.suppress(OSError):
                os.rmdir(self._run, dir_fd=self._logs)
            os.rmdir(_LOGS, dir_fd=self._folder)
            _remove(self._folder, _PACKAGE)
            os.rmdir(self._name, dir_fd=self._above)

    def _find(self, descriptors: contextlib.ExitStack) -> str:
        """Make the folder in the first place that will do; return which."""
        refused: OSError | None = None
        with _root(self._pid) as root:
            for parent in _PARENTS:
                with contextlib.ExitStack() as opened:
                    try:
                        self._above = _open(root, parent.split("/"))
                        opened.callback(os.close, self._above)
                        if os.fstatvfs(self._above).f_flag & os.ST_NOEXEC:
                            raise OSError(errno.EACCES, "programs may not lie there")
                        self._folder = self._theirs(self._above, self._name)
                        opened.callback(os.close, self._folder)
                    except OSError as error:
                        refused = refused or OSError(error.errno, error.strerror, f"/{parent}")
                    else:
                        descriptors.push(opened.pop_all())
                        return parent
        assert refused is not None
        raise refused

    def _theirs(self, above: int, name: str) -> int:
        """Make or open a folder that the user of the process owns."""
        with contextlib.suppress(FileExistsError), acting_as_user_of(self._pid):
            os.mkdir(name, 0o700, dir_fd=above)
        folder = os.open(name, _FOLDER, dir_fd=above)
        if os.fstat(folder).st_uid != self._uid:
            os.close(folder)
            raise PermissionError(errno.EPERM, "is another user's", name)
        return folder

    def _copy_in(self, source: Path, above: int, name: str, wanted: Callable[[Path], bool]) -> None:
        """Copy a folder of ours; what its links lead to takes their place."""
        inner = self._theirs(above, name)
        with contextlib.ExitStack() as descriptors:
            descriptors.callback(os.close, inner)
            for path in filter(wanted, source.iterdir()):
                if path.is_dir():
                    self._copy_in(path, inner, path.name, wanted)
                    continue
                with path.open("rb") as file:
                    with acting_as_user_of(self._pid):
                        target = os.open(path.name, _NEW, 0o600, dir_fd=inner)
                    with open(target, "wb") as copy:
                        shutil.copyfileobj(file, copy)


@contextlib.contextmanager
def acting_as_user_of(pid: int) -> Iterator[None]:
    """Make files, in this thread, as the user of a process would.

    Where a container has users of its own, root of the machine is nobody and can make none.
    """
    owner = Path(f"/proc/{pid}").stat()
    before = os.geteuid(), os.getegid()
    if before == (owner.st_uid, owner.st_gid):
        yield
        return
    libc = ctypes.CDLL(None)
    # No error is told: what is made has another owner then, which is looked at.
    libc.setfsgid(ctypes.c_uint(owner.st_gid))
    libc.setfsuid(ctypes.c_uint(owner.st_uid))
    try:
        yield
    finally:
        libc.setfsuid(ctypes.c_uint(before[0]))
        libc.setfsgid(ctypes.c_uint(before[1]))


@contextlib.contextmanager
def _root(pid: int) -> Iterator[int]:
    root = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield root
    finally:
        os.close(root)


def _open(above: int, names: Sequence[str]) -> int:
    """Open a folder below another one; no part of the path may be a link."""
    folder = os.dup(above)
    for name in names:
        try:
            inner = os.open(name, _FOLDER, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


@contextlib.contextmanager
def _opened(above: int, names: Sequence[str]) -> Iterator[int]:
    folder = _open(above, names)
    try:
        yield folder
    finally:
        os.close(folder)


def _copy_out(folder: int, to: Path, deepest: int) -> dict[str, Any]:
    """Copy what is a file or a folder; nothing that is there already is touched.

    Returns:
        What there was: of each folder that was copied the same of it, of all else None.
    """
    found: dict[str, Any] = dict.fromkeys(os.listdir(folder))
    for name in found:
        kind = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISDIR(kind) and deepest > 0:
            with _opened(folder, [name]) as inner:
                found[name] = _copy_out(inner, _new_folder(to, name), deepest - 1)
        elif stat.S_ISREG(kind) and not (to / name).exists():
            with (
                open(os.open(name, _OLD, dir_fd=folder), "rb") as file,
                open(os.open(to / name, _NEW, 0o600), "wb") as copy,
            ):
                shutil.copyfileobj(file, copy)
    return found


def _new_folder(above: Path, name: str) -> Path:
    """Make a folder; that of another container with the same name of its node has a number."""
    for number in range(1, 1000):
        folder = above / (name if number == 1 else f"{name}.{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(above / name))


def _remove_these(above: int, name: str, found: Mapping[str, Any]) -> None:
    """Remove a folder with what was found in it; what came later stays, and it with that."""
    with _opened(above, [name]) as folder:
        for inner, inside in found.items():
            if inside is None:
                _remove(folder, inner)
            else:
                _remove_these(folder, inner, inside)
    os.rmdir(name, dir_fd=above)


def _remove(above: int, name: str) -> None:
    """Remove a file or a folder, and no more than it if it is a link."""
    try:
        os.unlink(name, dir_fd=above)
    except FileNotFoundError:
        pass
    except IsADirectoryError:
        with _opened(above, [name]) as folder:
            for inner in os.listdir(folder):
                _remove(folder, inner)
        os.rmdir(name, dir_fd=above)


def _closed(run: int) -> bool:
    """Say whether nobody writes into a run any more."""
    begun = False
    for name in os.listdir(run):
        with contextlib.suppress(OSError), _opened(run, [name]) as folder:
            begun = True
            if any(file.endswith(".arrows") for file in os.listdir(folder)):
                return False
            try:
                told = os.open(PROCESS_FILE, _OLD, dir_fd=folder)
            except FileNotFoundError:
                return False  # who has made the folder is about to say so
            with open(told, "rb") as file:
                text = file.read(1 << 20)
            with contextlib.suppress(ValueError, AttributeError):
                if json.loads(text).get("state") == "live":
                    return False
    return begun
