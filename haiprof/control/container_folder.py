"""A folder of ours in the container of a process that does not see our files.

haiprof is copied there, the process writes its run there, and the run is copied from there to us.
Nobody in the container is trusted: no link is followed, so nothing outside is read or written,
whatever the names there turn into meanwhile.

Tests: tests/control/test_attach_container.py.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from haiprof.common.owned_files import Folder
from haiprof.control.sockets import same_root
from haiprof.recorder.run_folder import open_run
from haiprof.schema import PROCESS_FILE

#: Folders that a process can usually write.
_PARENTS: Final = ("tmp", "var/tmp", "dev/shm")
_PACKAGE: Final = "package"
_LOGS: Final = "logs"
#: How deep folders in a run may be nested; one is normal.
_DEEPEST: Final = 8


def sees(pid: int, folder: Path) -> bool:
    """Say whether a process finds this very folder at this path, which has no links in it."""
    try:
        if same_root(pid):
            return True
        theirs = Folder.at(Path(f"/proc/{pid}/root{folder}"))
        return os.path.samestat(os.fstat(theirs.fd), folder.stat())
    except OSError:
        return False


class ContainerFolder:
    """The folder of one user's processes in one container, with one run of theirs.

    Attributes:
        package: the folder that modules are given in, as the process sees it.
        log_dir: the folder of runs, as the process sees it; another one if that serves.
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
        parent = self._find()
        self._logs = self._theirs(self._folder, _LOGS)
        self._theirs(self._logs, run)
        self.package = f"/{parent}/{self._name}/{_PACKAGE}"
        self.log_dir = f"/{parent}/{self._name}/{_LOGS}"

    @property
    def key(self) -> tuple[int, int]:
        """What identifies the folder."""
        about = os.fstat(self._folder.fd)
        return about.st_dev, about.st_ino

    def give(self, source: Path, wanted: Callable[[Path], bool]) -> None:
        """Copy a package, unless it is there.

        Args:
            source: its folder.
            wanted: which of its files and folders to copy.

        Raises:
            OSError: it cannot be written; what there is of it is removed.
        """
        partial = f".{source.name}-{os.getpid()}-{time.monotonic_ns()}"
        package = self._theirs(self._folder, _PACKAGE)
        if source.name in package.names():
            return
        try:
            self._copy_in(source, package, partial, wanted)
            with acting_as_user_of(self._pid):
                package.rename(partial, source.name)
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
            folder = self._logs.folder(self._run)
            while not _closed(folder) and time.monotonic() < until:
                time.sleep(0.02)
            copied = _copy_out(folder, open_run(to, make=True, owners=[self._uid]), _DEEPEST)
            try:
                _remove_these(self._logs, self._run, copied)
            except OSError as error:
                # The end of a log comes when all files are closed.
                if error.errno != errno.ENOTEMPTY or time.monotonic() >= until:
                    raise
            else:
                return

    def leave(self) -> None:
        """Remove it unless it contains any run. Never raises; do not use it afterwards."""
        with contextlib.suppress(OSError):
            with contextlib.suppress(OSError):
                self._logs.remove_folder(self._run)
            self._folder.remove_folder(_LOGS)
            _remove(self._folder, _PACKAGE)
            self._above.remove_folder(self._name)

    def _find(self) -> str:
        """Make the folder in the first place that will do; return which."""
        refused: OSError | None = None
        for parent in _PARENTS:
            try:
                above = Folder.at(Path(f"/proc/{self._pid}/root/{parent}"))
                if os.fstatvfs(above.fd).f_flag & os.ST_NOEXEC:
                    raise OSError(errno.EACCES, "programs may not lie there")
                self._above, self._folder = above, self._theirs(above, self._name)
            except OSError as error:
                refused = refused or OSError(error.errno, error.strerror, f"/{parent}")
            else:
                return parent
        assert refused is not None
        raise refused

    def _theirs(self, above: Folder, name: str) -> Folder:
        """Make or open a folder that the user of the process owns."""
        with acting_as_user_of(self._pid), contextlib.suppress(FileExistsError):
            above.make(name)
        folder = above.folder(name)
        if folder.owner != self._uid:
            raise PermissionError(errno.EPERM, "is another user's", name)
        return folder

    def _copy_in(
        self, source: Path, above: Folder, name: str, wanted: Callable[[Path], bool]
    ) -> None:
        """Copy a folder of ours; what its links lead to takes their place."""
        inner = self._theirs(above, name)
        for path in filter(wanted, source.iterdir()):
            if path.is_dir():
                self._copy_in(path, inner, path.name, wanted)
                continue
            with path.open("rb") as file:
                with acting_as_user_of(self._pid):
                    target = inner.create(path.name)
                with os.fdopen(target, "wb") as copy:
                    shutil.copyfileobj(file, copy)


@contextlib.contextmanager
def acting_as_user_of(pid: int) -> Iterator[None]:
    """Make files, in this thread, as the user of a process would.

    In a container with its own user namespace, the machine's root is nobody and cannot make any.
    """
    owner = Path(f"/proc/{pid}").stat()
    before = os.geteuid(), os.getegid()
    if before == (owner.st_uid, owner.st_gid):
        yield
        return
    libc = ctypes.CDLL(None)
    # Errors are not reported: the new file then has another owner, which is checked.
    libc.setfsgid(ctypes.c_uint(owner.st_gid))
    libc.setfsuid(ctypes.c_uint(owner.st_uid))
    try:
        yield
    finally:
        libc.setfsuid(ctypes.c_uint(before[0]))
        libc.setfsgid(ctypes.c_uint(before[1]))


def _copy_out(folder: Folder, to: Folder, deepest: int) -> dict[str, Any]:
    """Copy files and folders; existing ones are not touched.

    Returns:
        The names: for each copied folder the same of it, for all else None.
    """
    found: dict[str, Any] = dict.fromkeys(folder.names())
    for name in found:
        kind = folder.stat(name).st_mode
        if stat.S_ISDIR(kind) and deepest > 0:
            found[name] = _copy_out(folder.folder(name), _new_folder(to, name), deepest - 1)
        elif stat.S_ISREG(kind):
            with contextlib.suppress(FileExistsError):
                _copy_file(folder, name, to)
    return found


def _copy_file(folder: Folder, name: str, to: Folder) -> None:
    with folder.open(name) as file, os.fdopen(to.create(name), "wb") as copy:
        shutil.copyfileobj(file, copy)


def _new_folder(above: Folder, name: str) -> Folder:
    """Make a folder; if another container's node has that name, with a number."""
    for number in range(1, 1000):
        with contextlib.suppress(FileExistsError):
            return above.make(name if number == 1 else f"{name}.{number}")
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(above.path / name))


def _remove_these(above: Folder, name: str, found: Mapping[str, Any]) -> None:
    """Remove a folder with these contents; what came later stays, and then the folder too."""
    folder = above.folder(name)
    for inner, inside in found.items():
        if inside is None:
            _remove(folder, inner)
        else:
            _remove_these(folder, inner, inside)
    above.remove_folder(name)


def _remove(above: Folder, name: str) -> None:
    """Remove a file or a folder; of a link, only the link."""
    try:
        above.remove(name)
    except IsADirectoryError:
        folder = above.folder(name)
        for inner in folder.names():
            _remove(folder, inner)
        above.remove_folder(name)


def _closed(run: Folder) -> bool:
    """Say whether nobody writes into a run any more."""
    begun = False
    for name in run.names():
        with contextlib.suppress(OSError):
            folder = run.folder(name)
            begun = True
            try:
                text = folder.read(PROCESS_FILE)
            except FileNotFoundError:
                return False  # whoever made the folder is about to write it
            with contextlib.suppress(ValueError, AttributeError, RecursionError):
                if json.loads(text).get("state") == "live":
                    return False
    return begun
