"""Opens files safely in folders that another user or a container can write.

A path is looked up anew each time that it is used, and whoever can write a folder on the way can
put a link there meanwhile. So a folder is opened once, each name in it is opened relative to the
descriptor, no link is followed, and what was opened is checked before it is used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: A link is refused, and a pipe is not waited for.
_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: Documents are smaller than this; a larger file is not one.
_LARGEST: Final = 16 << 20
_PRIVATE: Final = 0o600
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_PARTIAL: Final = ".partial"
_KINDS: Final = {
    stat.S_ISREG: "a regular file",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
}


class Folder:
    """A folder that is open. It is closed with the last reference to it.

    Methods raise OSError with the whole path of the file, for the line that the user reads.
    """

    def __init__(self, fd: int, path: Path) -> None:
        """Take over an open descriptor; ``path`` is what users know the folder by."""
        self.fd = fd
        self.path = path

    def __del__(self) -> None:
        """Close it, unless the job has closed all descriptors unknown to it."""
        with contextlib.suppress(OSError):
            os.close(self.fd)

    @classmethod
    def at(cls, path: Path | Folder) -> Folder:
        """Open the folder at a path that the user chose: links in that are the user's own.

        What lies below ``/proc/<pid>/root`` is a container's choice: no link is followed
        there, since an absolute one would lead out of the container.

        Raises:
            OSError: there is none, or it cannot be read.
        """
        if isinstance(path, Folder):
            return path
        parts = path.parts
        if parts[:2] != ("/", "proc") or parts[3:4] != ("root",):
            return cls(os.open(path, _FOLDER), path)
        folder = cls(os.open(Path(*parts[:4]), _FOLDER), Path(*parts[:4]))
        for name in parts[4:]:
            folder = folder.folder(name)
        return folder

    def folder(self, name: str, *, make: bool = False, own_link: bool = False) -> Folder:
        """Open a folder in this one.

        Args:
            name: which.
            make: create it, with mode 0700, unless it is there.
            own_link: follow a link that only this user can have made.

        Raises:
            OSError: it cannot be opened, is a link, or is not a folder.
        """
        with self._naming(name):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(_single(name), 0o700, dir_fd=self.fd)
            flags = _FOLDER if own_link and self._is_own_link(name) else _FOLDER | os.O_NOFOLLOW
            return Folder(os.open(_single(name), flags, dir_fd=self.fd), self.path / name)

    def make(self, name: str) -> Folder:
        """Create a folder in this one, with mode 0700.

        Raises:
            FileExistsError: the name is taken.
            OSError: it cannot be created.
        """
        with self._naming(name):
            os.mkdir(_single(name), 0o700, dir_fd=self.fd)
        return self.folder(name)

    def names(self) -> list[str]:
        """Return the names of what is in it, sorted."""
        with self._naming():
            return sorted(os.listdir(self.fd))

    def stat(self, name: str) -> os.stat_result:
        """Return what a name stands for; of a link, the link itself."""
        with self._naming(name):
            return os.stat(_single(name), dir_fd=self.fd, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Say whether there is a regular file of that name."""
        with contextlib.suppress(OSError):
            return stat.S_ISREG(self.stat(name).st_mode)
        return False

    def reached_at(self) -> Path:
        """Return a path to this very folder, for code that only takes paths.

        Valid as long as this object. Files in it must still be opened without following links.
        """
        return Path(f"/proc/self/fd/{self.fd}")

    # -- files -----------------------------------------------------------------------------------

    def open(self, name: str) -> BinaryIO:
        """Open a regular file for reading.

        Raises:
            OSError: there is none, or it is a link, a pipe or the like.
        """
        with self._naming(name):
            fd = os.open(_single(name), os.O_RDONLY | _SAFE, dir_fd=self.fd)
            return os.fdopen(_checked(fd), "rb")

    def read(self, name: str) -> bytes:
        """Return the content of a document.

        Raises:
            OSError: it cannot be read, or is too large for one.
        """
        with self.open(name) as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(self.path / name))
        return content

    def create(self, name: str) -> int:
        """Create a file with mode 0600, open for reading and writing.

        Raises:
            FileExistsError: the name is taken, be it by a link.
        """
        with self._naming(name):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE
            return os.open(_single(name), flags, _PRIVATE, dir_fd=self.fd)

    def update(self, name: str, flags: int = os.O_RDWR, *, make: bool = True) -> int:
        """Open a file of ours in place, with mode 0600 if it is new.

        Args:
            name: which.
            flags: how to open it.
            make: create it if it is missing.

        Raises:
            OSError: it is a link, another user's, not a file, or has a second name elsewhere.
        """
        with self._naming(name):
            flags |= _SAFE | (os.O_CREAT if make else 0)
            fd = _checked(os.open(_single(name), flags, _PRIVATE, dir_fd=self.fd))
            about = os.fstat(fd)
            if about.st_nlink > 1 or not self._may_own(about.st_uid):
                os.close(fd)
                raise _not_ours(about)
            return fd

    def open_pipe(self, name: str, flags: int) -> int:
        """Open a named pipe without waiting for its other end.

        Raises:
            OSError: it is not one, or nobody has it open.
        """
        with self._naming(name):
            fd = os.open(_single(name), flags | _SAFE, dir_fd=self.fd)
            return _checked(fd, stat.S_ISFIFO)

    def find_socket(self, name: str) -> int:
        """Return a descriptor of a socket's name; ``/proc/self/fd`` leads from it to that socket.

        Raises:
            OSError: there is none, or it is a link.
        """
        with self._naming(name):
            flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
            return _checked(os.open(_single(name), flags, dir_fd=self.fd), stat.S_ISSOCK)

    def make_pipe(self, name: str) -> None:
        """Create a named pipe with mode 0600 unless there is something of that name."""
        with contextlib.suppress(FileExistsError), self._naming(name):
            os.mkfifo(_single(name), _PRIVATE, dir_fd=self.fd)

    @contextlib.contextmanager
    def replacing(self, name: str, partial: str = "") -> Iterator[BinaryIO]:
        """Write a file, mode 0600, that takes its name in one rename when the body is done.

        Args:
            name: which.
            partial: its name until then, which no other writer may use at the same time.

        Raises:
            OSError: it cannot be written; what had the name is untouched.
        """
        partial = partial or f"{Path(name).stem}{_PARTIAL}"
        self.remove(partial)
        with os.fdopen(self.create(partial), "wb") as file:
            try:
                yield file
                file.flush()
                self.rename(partial, name)
            except BaseException:
                self.remove(partial)
                raise

    def rename(self, name: str, to: str) -> None:
        """Rename within the folder; an existing file of that name is replaced."""
        with self._naming(to):
            os.rename(_single(name), _single(to), src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove a file, or a link and not what it leads to; nothing if there is none."""
        with contextlib.suppress(FileNotFoundError), self._naming(name):
            os.unlink(_single(name), dir_fd=self.fd)

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder.

        Raises:
            OSError: there is none, or something is in it.
        """
        with self._naming(name):
            os.rmdir(_single(name), dir_fd=self.fd)

    # -- ownership -------------------------------------------------------------------------------

    def is_ours(self) -> bool:
        """Say whether it belongs to this user, under the id that its file system has for us.

        A file server may know root, or everybody, as another user.
        """
        return self.owner == os.geteuid() or self.owner == self._us()

    def require_ours(self) -> None:
        """Raise PermissionError unless it belongs to this user."""
        if not self.is_ours():
            text = f"belongs to user {self.owner}"
            raise PermissionError(errno.EPERM, text, str(self.path))

    @property
    def owner(self) -> int:
        """The user who owns it."""
        return os.fstat(self.fd).st_uid

    def has_ours(self, name: str) -> bool:
        """Say whether there is a regular file of that name that whoever owns the folder made."""
        with contextlib.suppress(OSError):
            about = self.stat(name)
            return stat.S_ISREG(about.st_mode) and self._may_own(about.st_uid)
        return False

    def is_link(self, name: str) -> bool:
        """Say whether there is a link of that name."""
        with contextlib.suppress(OSError):
            return stat.S_ISLNK(self.stat(name).st_mode)
        return False

    def _may_own(self, uid: int) -> bool:
        return uid in (os.geteuid(), self.owner)

    def _us(self) -> int | None:
        """Return the owner of a file that we create here; None if we cannot create one."""
        with contextlib.suppress(OSError):  # a file without a name, which nobody sees
            fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, _PRIVATE, dir_fd=self.fd)
            try:
                return os.fstat(fd).st_uid
            finally:
                os.close(fd)
        name = f".owner-{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}"
        try:
            fd = self.create(name)
        except OSError:
            return None
        try:
            return os.fstat(fd).st_uid
        finally:
            os.close(fd)
            with contextlib.suppress(OSError):
                self.remove(name)

    def is_trusted(self, name: str) -> bool:
        """Say whether only this user or root can have created what has this name."""
        here = os.fstat(self.fd)
        users = {0, os.geteuid()}
        if here.st_mode & stat.S_IWOTH or here.st_uid not in users:
            return False
        with contextlib.suppress(OSError):
            return self.stat(name).st_uid in users
        return False

    def _is_own_link(self, name: str) -> bool:
        return self.is_link(name) and self.is_trusted(name)

    @contextlib.contextmanager
    def _naming(self, name: str = "") -> Iterator[None]:
        """Put the whole path into errors, and say if a link is in the way."""
        try:
            yield
        except OSError as error:
            reason = error.strerror
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and name and self._leads_away(name):
                reason = f"{reason}: a link is not followed here; remove it"
            raise OSError(error.errno, reason, str(self.path / name)) from None

    def _leads_away(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            about = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            return stat.S_ISLNK(about.st_mode)
        return False


def private_folder(path: Path, *, make: bool = False, above: Folder | None = None) -> Folder:
    """Open a folder that must be this user's, like those in shared memory, and writable only by it.

    Args:
        path: which. Its own name is no link.
        make: create it, with mode 0700, unless it is there.
        above: the folder that it lies in; else the one that its path leads to.

    Raises:
        OSError: it cannot be opened, or is a link or another user's: a shared folder invites traps.
    """
    try:
        folder = (above or Folder.at(path.parent)).folder(path.name, make=make)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _trap(path) from None
        raise
    about = os.fstat(folder.fd)
    if about.st_uid != os.geteuid():
        raise _trap(path)
    if about.st_mode & _WRITABLE_BY_OTHERS:
        os.fchmod(folder.fd, stat.S_IMODE(about.st_mode) & ~_WRITABLE_BY_OTHERS)
    return folder


def open_regular(path: Path) -> BinaryIO:
    """Open a file of a run for reading, whoever made the run: it must be a regular one.

    A link in place of the file is followed where only this user or root can have put it there.

    Raises:
        OSError: there is none, or it is a link, a pipe or the like.
    """
    folder = Folder.at(path.parent)
    if folder.is_link(path.name) and folder.is_trusted(path.name):
        return os.fdopen(_checked(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)), "rb")
    return folder.open(path.name)


def replace_or_fill(path: Path, content: bytes, *, through: bool) -> None:
    """Write a file in one rename.

    Args:
        path: where.
        content: of it.
        through: the user chose the path, so a link, pipe or device there is written through if
            only this user or root can have put it there. Whatever else is there is replaced.

    Raises:
        OSError: it cannot be written.
        RuntimeError: links lead in a circle.
    """
    folder = Folder.at(path.parent)
    if through and folder.is_trusted(path.name):
        path = path.resolve()
        folder = Folder.at(path.parent)
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as out:  # a pipe or a device
                out.write(content)
            return
    with folder.replacing(path.name, f".{path.name}-{os.getpid()}") as file:
        file.write(content)


def _trap(path: Path) -> PermissionError:
    text = "exists but is not a folder of this user; remove it"
    return PermissionError(errno.EPERM, text, str(path))


def _single(name: str) -> str:
    """Return a name that leads nowhere but into its folder."""
    if "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not the name of one file")
    return name


def _checked(fd: int, is_kind: Callable[[int], bool] = stat.S_ISREG) -> int:
    if not is_kind(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, f"is not {_KINDS[is_kind]}; remove it")
    return fd


def _not_ours(about: os.stat_result) -> PermissionError:
    if about.st_nlink > 1:
        return PermissionError(errno.EPERM, "has a second name elsewhere (hard link); remove it")
    return PermissionError(errno.EPERM, f"belongs to user {about.st_uid}; remove it")
