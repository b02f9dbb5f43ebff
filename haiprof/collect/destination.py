"""The folder that runs are collected into. Incomplete files lie in a hidden one beside them.

The folder of a process appears in its run in one rename when all of it has arrived, and a file in
one rename when all of its bytes have. So whatever ends a copy, what is there is complete, and the
next one continues from it.

Tests: tests/cli/test_collect.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

from haiprof import schema
from haiprof.collect.merge import Identity, Part, earliest, free_name, who_is
from haiprof.collect.source import File, OnBytes, Readable, SourceError
from haiprof.common.owned_files import Folder, open_regular
from haiprof.errors import HaiprofError

_UNFINISHED: Final = ".collecting"
_PARTIAL: Final = ".partial"
_PIECE: Final = 1 << 20
#: Files with these endings never change.
_UNCHANGING: Final = (schema.CLOSED_SUFFIX, ".json.gz")


class Destination:
    """The folder, locked against others that collect into it. Use it within ``with``.

    Its methods raise OSError where the disk is full or cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        """Make the folder and lock it.

        Raises:
            HaiprofError: another process collects into it.
            OSError: it cannot be made or written.
        """
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._unfinished = folder / _UNFINISHED
        # In a folder that others may write, one of them may have made it first.
        self._locked = Folder.at(folder).folder(_UNFINISHED, make=True)
        self._locked.require_ours()
        try:
            fcntl.flock(self._locked.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HaiprofError(
                f"{folder}: another haiprof collect writes into it: wait until it ends"
            ) from None
        except OSError:  # a file system without locks
            pass
        for left in self._unfinished.glob(f"*{_PARTIAL}"):
            left.unlink(missing_ok=True)

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            for folder in self._unfinished.iterdir():
                with contextlib.suppress(OSError):
                    folder.rmdir()
            self._unfinished.rmdir()  # not if something unfinished is in it
        with contextlib.suppress(OSError):
            fcntl.flock(self._locked.fd, fcntl.LOCK_UN)

    def open_run(self, run: str, document: bytes) -> Run:
        """Make the folder of a run, with the ``run.json`` of whoever began it.

        Raises:
            OSError: it is another user's, or a link of somebody else's.
        """
        folder = self.folder / run
        Folder.at(self.folder).folder(run, make=True, own_link=True).require_ours()
        file = folder / schema.RUN_FILE
        known = [document]
        with contextlib.suppress(OSError), open_regular(file) as opened:
            known.append(opened.read())
        first = earliest(known)
        if known[-1] != first or len(known) == 1:
            _write(first, file, self._unfinished)
        return Run(folder, self._unfinished)


class Run:
    """The folder of one run in a destination."""

    def __init__(self, folder: Path, unfinished: Path) -> None:
        """List the processes that are there."""
        self.folder = folder
        self._unfinished = unfinished
        self._taken: set[str] = set()
        self._known: dict[Identity, Path] = {}
        for child in sorted(folder.iterdir()):
            self._taken.add(child.name)
            with contextlib.suppress(OSError):
                with open_regular(child / schema.PROCESS_FILE) as opened:
                    who = who_is(opened.read())
                if who is not None and not child.name.startswith("."):
                    self._known[who] = child

    def place(self, part: Part) -> Place:
        """Return where a process's folder is, or will be."""
        known = self._known.get(part.who)
        if known is not None:
            return Place(part, known, known, self._unfinished)
        name = free_name(part.name, self._taken)
        self._taken.add(name)
        identity = "\0".join((part.run, *part.who)).encode("utf-8", "surrogatepass")
        making = self._unfinished / hashlib.sha256(identity).hexdigest()[:16]
        making.mkdir(mode=0o700, exist_ok=True)
        return Place(part, making, self.folder / name, self._unfinished)


class Place:
    """Where the folder of one process is: in its run, or still being fetched."""

    def __init__(self, part: Part, now: Path, then: Path, unfinished: Path) -> None:
        """See what is there.

        Args:
            part: the folder as its source has it.
            now: where its files are written.
            then: where the folder will be when all have arrived; the same if it is there.
            unfinished: where incomplete files are.
        """
        self.part = part
        self._now = now
        self._then = then
        self._unfinished = unfinished
        #: The names of files still to be fetched, by path in the source.
        self.missing = {
            file.path: name for name, file in part.files.items() if not _has(now / name, file)
        }
        #: Whether it was new or incomplete here.
        self.changed = bool(self.missing) or now != then or not self._closed_as_listed()
        self._finished = False

    def take(self, file: File, size: int, content: Readable, on_bytes: OnBytes) -> None:
        """Write a file of it.

        Args:
            file: which, as it was listed.
            size: its bytes now; a file that is being written has grown since.
            content: these bytes.
            on_bytes: called with how many have arrived.

        Raises:
            SourceError: they end too early.
        """
        target = self._now / self.missing[file.path]
        descriptor, partial = _begin(self._unfinished)
        try:
            with os.fdopen(descriptor, "wb") as out:
                left = size
                while left > 0 and (piece := content.read(min(left, _PIECE))):
                    out.write(piece)
                    left -= len(piece)
                    on_bytes(len(piece))
            if left:
                raise SourceError(f"{self.part.source.label}/{file.path}: its end is missing")
            if file.stamp is not None:
                # As listed: had it changed since, it is fetched anew the next time.
                os.utime(partial, ns=(file.stamp, file.stamp))
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        del self.missing[file.path]

    def finish(self) -> bool:
        """Put the folder into its run if it is complete; return whether it is."""
        if self.missing:
            return False
        if self.changed and not self._finished:
            self._remove_twins()
            _write(self.part.document, self._now / schema.PROCESS_FILE, self._unfinished)
            if self._now != self._then:
                self._now.rename(self._then)
        self._finished = True
        return True

    def _closed_as_listed(self) -> bool:
        try:
            return (self._now / schema.PROCESS_FILE).read_bytes() == self.part.document
        except OSError:
            return False

    def _remove_twins(self) -> None:
        """Keep each segment only in the form that it has in the source: growing, or closed."""
        for name in self.part.files:
            path = self._now / name
            twin = {schema.LIVE_SUFFIX: schema.CLOSED_SUFFIX}.get(path.suffix, schema.LIVE_SUFFIX)
            if path.suffix in (schema.LIVE_SUFFIX, schema.CLOSED_SUFFIX):
                other = path.with_suffix(twin)
                if other.name not in self.part.files:
                    other.unlink(missing_ok=True)


def _has(path: Path, file: File) -> bool:
    try:
        found = path.lstat()
    except OSError:
        return False
    if found.st_size != file.size:
        return False
    if file.stamp is None:
        return path.name.endswith(_UNCHANGING)
    return found.st_mtime_ns == file.stamp


def _write(content: bytes, path: Path, unfinished: Path) -> None:
    descriptor, partial = _begin(unfinished)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _begin(unfinished: Path) -> tuple[int, Path]:
    """Make a file, mode 0600, for incomplete content."""
    descriptor, name = tempfile.mkstemp(_PARTIAL, dir=unfinished)
    return descriptor, Path(name)
