"""All runs below a folder, at any depth, each with what tells whether it has changed since.

Only names and times are looked at here, no document is read.

Tests: tests/answers/test_all_runs.py.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from pwd import getpwuid
from typing import Final, NamedTuple

from haiprof import schema
from haiprof.common.choices import near_path
from haiprof.common.owned_files import Folder, private_folder
from haiprof.errors import HaiprofError
from haiprof.sources.own import LARGEST_DOCUMENT, is_import

#: Folders within folders that are looked into.
_DEEPEST: Final = 8
#: Folders without a run; of more, this is no log directory.
_MOST_FOLDERS: Final = 100_000
#: What was written this recently, ns, may be written once more with the same time.
_RECENT_NS: Final = 2_000_000_000
#: Behind it stands the number of the user, who alone can read it.
INDEX: Final = ".haiprof-runs"
#: More bytes are no index.
LARGEST_INDEX: Final = 256 << 20
#: What a writer of the index has not renamed for so long, s, it will not.
_LEFT_SECONDS: Final = 3600
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class Seen(NamedTuple):
    """One run, as its folder shows from outside.

    Attributes:
        path: below the folder that was looked into; empty: that itself is the run.
        fingerprint: another one once something of it has changed, of a run that has ended; empty:
            it changed too recently to rely on that.
        written: the same of a run that is still written to; None: it was not looked for.
        newest_ns: when it last changed, ns UTC; None: not known.
        owner: the user who has the folder; None: not known.
        closed: why it cannot be looked into; empty: it can.
        files: behind a URL, the files of the run that a row is made from, with their sizes.
    """

    path: str
    fingerprint: str
    written: str | None
    newest_ns: int | None
    owner: str | None
    closed: str = ""
    files: tuple[tuple[str, int], ...] = ()


class LogDir:
    """A folder of this machine with runs below it."""

    def __init__(self, folder: Path) -> None:
        """Nothing is opened yet."""
        self.folder = folder

    def runs(self) -> list[Seen]:
        """Return the runs, sorted by their path.

        Raises:
            HaiprofError: there is no such folder, it cannot be read, or is not one of runs.
        """
        try:
            entries = _entries(self.folder)
        except FileNotFoundError:
            hint = near_path(self.folder)
            raise HaiprofError(
                f"{self.folder}: no such folder: {hint or 'give a log directory'}"
            ) from None
        except NotADirectoryError:
            raise HaiprofError(f"{self.folder}: is a file: give a log directory") from None
        except OSError as error:
            raise HaiprofError(
                f"{self.folder}: cannot be read ({error.strerror}): ask its owner for access"
            ) from None
        return sorted(self._below(entries), key=lambda seen: seen.path)

    def _below(self, entries: list[os.DirEntry[str]]) -> Iterator[Seen]:
        waiting = [("", str(self.folder), entries, 0)]
        empty = 0
        visited: set[tuple[int, int]] = set()
        while waiting:
            path, folder, entries, depth = waiting.pop()
            if any(map(_is_document, entries)):
                with contextlib.suppress(OSError):  # it is gone
                    yield _seen(path, folder, entries)
                continue
            empty += 1
            if empty > _MOST_FOLDERS:
                raise HaiprofError(
                    f"{self.folder}: has over {_MOST_FOLDERS} folders without a run: "
                    "give a log directory"
                )
            for one in filter(_is_folder, entries if depth < _DEEPEST else ()):
                below = f"{path}/{one.name}" if path else one.name
                try:
                    if one.is_symlink():
                        # Another user's could lead anywhere, one of ours in a circle.
                        which = one.stat().st_dev, one.stat().st_ino
                        if which in visited or not Folder.at(Path(folder)).is_trusted(one.name):
                            continue
                        visited.add(which)
                    waiting.append((below, one.path, _entries(one.path), depth + 1))
                except PermissionError:
                    with contextlib.suppress(OSError):  # it is gone
                        owner = user_name(one.stat().st_uid)
                        yield Seen(below, "", None, None, owner, f"closed to others by {owner}")
                except OSError:  # the same
                    continue

    def written(self, path: str) -> str:
        """Return the fingerprint of a run that is still written to: of all of its files."""
        parts = [os.fsencode(path)]
        newest = 0
        with contextlib.suppress(OSError):
            for one in _entries(self.folder / path):
                if one.is_dir(follow_symlinks=False):
                    with contextlib.suppress(OSError):
                        for file in _entries(one.path):
                            about = file.stat(follow_symlinks=False)
                            newest = max(newest, about.st_mtime_ns)
                            parts.append(_part(f"{one.name}/{file.name}", about))
        return _hashed(parts, newest)

    @contextlib.contextmanager
    def opened(self, seen: Seen) -> Iterator[Path]:
        """Yield the folder of a run."""
        yield self.folder / seen.path

    # -- the index -------------------------------------------------------------------------------

    def read_index(self) -> bytes | None:
        """Return the index that is kept here, or for this user elsewhere; None: there is none.

        What others can have written is not read, but for whoever owns this folder, and with it all
        that is in it.
        """
        for place in self._places(make=False):
            with contextlib.suppress(OSError):
                folder, name = place()
                about = folder.stat(name)
                if about.st_mode & _WRITABLE_BY_OTHERS or about.st_size > LARGEST_INDEX:
                    continue
                if folder.has_ours(name):
                    with folder.open(name) as file:
                        return file.read(LARGEST_INDEX)
        return None

    def write_index(self, content: bytes) -> str:
        """Keep an index here, else for this user elsewhere; return why neither works, or nothing.

        Of several writers the last one counts: each writes a whole one.
        """
        why = ""
        for place in self._places(make=True):
            try:
                folder, name = place()
                _remove_left(folder, name)
                mine = f"{name}-{os.uname().nodename}-{os.getpid()}-{time.monotonic_ns()}"
                with folder.replacing(name, mine) as file:
                    file.write(content)
            except OSError as error:
                why = why or f"{error.filename}: {error.strerror}"
                continue
            return ""
        return why

    def _places(self, *, make: bool) -> list[Callable[[], tuple[Folder, str]]]:
        """Return what opens the folders that the index may be in, with its name there."""

        def beside() -> tuple[Folder, str]:
            return Folder.at(self.folder), f"{INDEX}-{os.geteuid()}.parquet"

        def of_user() -> tuple[Folder, str]:
            whole = os.fsencode(self.folder.resolve())
            name = hashlib.blake2b(whole, digest_size=16).hexdigest()
            base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
            above = Folder.at(Path(base))
            return private_folder(above.path / "haiprof", make=make), f"runs-{name}.parquet"

        return [beside, of_user]


def _remove_left(folder: Folder, name: str) -> None:
    """Remove what writers of an index left that were killed."""
    for one in folder.names():
        if one.startswith(f"{name}-"):
            with contextlib.suppress(OSError):
                if time.time() - folder.stat(one).st_mtime > _LEFT_SECONDS:
                    folder.remove(one)


def _entries(folder: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted(entries, key=lambda one: one.name)


def _is_document(one: os.DirEntry[str]) -> bool:
    try:
        return one.name == schema.RUN_FILE and one.is_file()
    except OSError:  # a link that leads in a circle
        return False


def _is_folder(one: os.DirEntry[str]) -> bool:
    try:
        return not (one.name.startswith(".") or is_import(one.name)) and one.is_dir()
    except OSError:  # the same
        return False


def _seen(path: str, folder: str, entries: list[os.DirEntry[str]]) -> Seen:
    """Return a run by the times of its documents, and of the folders that they are in.

    Whatever is added to a folder, renamed or removed in it changes its time; a document may be
    written in place.
    """
    about = os.stat(folder)  # noqa: PTH116 (ten thousand of them)
    parts = [os.fsencode(path), _part("", about)]
    newest, closed = about.st_mtime_ns, ""
    for one in entries:
        if one.name == schema.RUN_FILE:
            documents = [(one.name, one.stat(follow_symlinks=False))]
        elif one.is_dir(follow_symlinks=False) and not one.name.startswith("."):
            documents = [(one.name, one.stat(follow_symlinks=False))]
            with contextlib.suppress(OSError):
                document = f"{one.path}/{schema.PROCESS_FILE}"
                documents.append((f"{one.name}/{schema.PROCESS_FILE}", os.lstat(document)))
        else:
            continue
        for name, each in documents:
            newest = max(newest, each.st_mtime_ns)
            parts.append(_part(name, each))
            if stat.S_ISREG(each.st_mode) and each.st_size > LARGEST_DOCUMENT:
                closed = f"{name}: has {each.st_size >> 20} MiB, which no document of a run has"
    return Seen(path, _hashed(parts, newest), None, newest, user_name(about.st_uid), closed)


def _part(name: str, about: os.stat_result) -> bytes:
    # Who may read it, and a time that is set, only shows in when the inode changed.
    return os.fsencode(f"{name}\0{about.st_mtime_ns}\0{about.st_ctime_ns}\0{about.st_size}")


def _hashed(parts: list[bytes], newest_ns: int) -> str:
    """Return a fingerprint, or nothing where the clock cannot tell what comes after it."""
    if newest_ns > time.time_ns() - _RECENT_NS:
        return ""
    return hashlib.blake2b(b"\0\0".join(parts), digest_size=16).hexdigest()


@functools.lru_cache(4096)
def user_name(uid: int) -> str:
    """Return the name of a user of this machine."""
    try:
        return getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
