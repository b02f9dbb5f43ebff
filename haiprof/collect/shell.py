"""A folder read with sh, find and tar: on another host through ssh, or on this machine.

Nothing has to be installed there. The names of the folder and its files go through stdin,
never through a shell's line. Files are listed first and only what is new is fetched, in one stream;
what a run's recorder has closed never changes again, so nothing is gained by looking into files.

Tests: tests/cli/test_collect.py.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final, cast

from haiprof.collect.source import Coming, File, Guarded, Listing, Source, SourceError
from haiprof.common.ssh import IMPATIENT, is_here, way_to

#: A host that sends nothing for this long, s, is given up.
SILENT_SECONDS: Final = 60.0
_READ: Final = 1 << 18
_NO_FOLDER: Final = 66
_SSH_FAILED: Final = 255
_END: Final = b"end"
#: Neither a quote of one stroke nor a line break nor ``!``: any login shell passes them on.
_ENTER: Final = f'export LC_ALL=C; IFS= read -r d; cd "$d" 2>/dev/null || exit {_NO_FOLDER}; '
#: Prints path and content of each document, an empty path, then size, time and path of each file:
#: each ends with a null character, which JSON does not hold.
_LOOK: Final = (
    _ENTER + 'IFS= read -r r; t=.; if [ -n "$r" ]; then [ -f run.json ] || t=./$r; fi; '
    'if [ -d "$t" ]; then '
    'find "$t" -mindepth 1 -maxdepth 3 -name ".*" -prune '
    '-o "(" -name run.json -o -name process.json ")" -type f -print | '
    'while IFS= read -r f; do printf "%s\\0" "$f"; cat "$f"; printf "\\0"; done; '
    'printf "\\0"; '
    'find "$t" -mindepth 1 -maxdepth 3 -name ".*" -prune -o -type f -printf "%s %T@ %p\\0"; '
    'else printf "\\0"; fi; '
    'printf "end\\0"'
)
_FETCH: Final = (
    _ENTER + "exec tar -c -f - --null --no-recursion --hard-dereference --ignore-failed-read -T -"
)


class Shell(Source):
    """A folder that a shell of its machine reads."""

    def __init__(self, label: str, host: str | None, folder: str) -> None:
        """Nothing is started yet.

        Args:
            label: as the user named it.
            host: where it is; None: on this machine.
            folder: absolute, or beginning with ``./`` in the home of the user there.
        """
        self.label = label
        self._host = host
        self._folder = folder
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def look(self, run: str) -> Listing:
        """See :meth:`Source.look`."""
        with self._started(_LOOK, os.fsencode(run) + b"\n") as (answer, said):
            pieces = []
            while piece := answer.read(_READ):
                pieces.append(piece)
            records = b"".join(pieces).split(b"\0")
            if records[-2:] != [_END, b""]:
                raise self._failed(answer, said)
            listing = self._read(records[:-2])
            listing.remark = _last_line(said)
            return listing

    def _read(self, records: list[bytes]) -> Listing:
        listing = Listing()
        left = iter(records)
        for path in left:
            if not path:
                break
            listing.documents[_relative(path)] = next(left, b"")
        try:
            for record in left:
                size, stamp, path = record.split(b" ", 2)
                listing.files.append(File(_relative(path), int(size), _nanoseconds(stamp)))
        except ValueError:
            raise SourceError(f"{self.label}: find is not GNU find: {records[-1][:60]!r}") from None
        return listing

    def fetch(self, files: Sequence[File]) -> Coming:
        """See :meth:`Source.fetch`."""
        wanted = {file.path: file for file in files}
        names = b"".join(b"./" + os.fsencode(path) + b"\0" for path in wanted)
        with self._started(_FETCH, names) as (answer, said):

            def broken(error: Exception) -> SourceError:
                return self._failed(answer, said, error)

            try:
                with tarfile.open(
                    fileobj=cast("IO[bytes]", answer),
                    mode="r|",
                    bufsize=_READ,
                    errors="surrogateescape",
                ) as archive:
                    for member in archive:
                        # Nothing that was not asked for, and no link, is written here.
                        found = wanted.pop(_relative(os.fsencode(member.name)), None)
                        content = archive.extractfile(member) if member.isreg() else None
                        if found is not None and content is not None:
                            yield found, member.size, Guarded(content, broken)
            except (tarfile.TarError, EOFError) as error:
                raise broken(error) from None
            while answer.read(_READ):
                pass
            answer.process.wait()
            if answer.process.returncode not in (0, 1, 2):  # tar's own: a file changed or is gone
                raise self._failed(answer, said)
            self.remark = _last_line(said)

    def stop(self) -> None:
        """See :meth:`Source.stop`."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _kill(process)

    @contextlib.contextmanager
    def _started(self, script: str, names: bytes) -> Iterator[tuple[_Answer, IO[bytes]]]:
        program = shlex.join(["sh", "-c", script])
        words = ["sh", "-c", program]
        if self._host is not None:
            words = way_to(self._host, program, IMPATIENT)
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said:
            asked.write(os.fsencode(self._folder) + b"\n" + names)
            asked.seek(0)
            with self._lock:
                if self._stopped:
                    raise SourceError(f"{self.label}: stopped")
                try:
                    process = subprocess.Popen(
                        words, stdin=asked, stdout=subprocess.PIPE, stderr=said, bufsize=0,
                        # Ctrl-C is for us: here it would look like a failure.
                        start_new_session=True,
                        cwd=Path.home() if self._host and is_here(self._host) else None,
                    )  # fmt: skip
                except OSError as error:
                    raise SourceError(f"{self.label}: {error.strerror}") from None
                self._running.add(process)
            try:
                yield _Answer(process, self.label), said
            finally:
                with self._lock:
                    self._running.discard(process)
                    _kill(process)
                assert process.stdout is not None
                process.stdout.close()
                process.wait()

    def _failed(
        self, answer: _Answer, said: IO[bytes], error: Exception | None = None
    ) -> SourceError:
        """Return the error for an incomplete answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            answer.process.wait(1)
        code = answer.process.poll()
        line = _last_line(said)
        if code == _NO_FOLDER:
            return SourceError(f"{self.label}: no such folder there, or it may not be read")
        if code == _SSH_FAILED:
            line = f"cannot be reached ({line})" if line else "cannot be reached"
        elif not line:
            how = f"exit code {code}" if code is not None else str(error)
            line = f"the answer broke off ({how})"
        return SourceError(f"{self.label}: {line}")


class _Answer:
    """The output of a program, with a timeout."""

    def __init__(self, process: subprocess.Popen[bytes], label: str) -> None:
        self.process = process
        self._label = label

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, none at the end.

        Raises:
            SourceError: nothing has come for :data:`SILENT_SECONDS`.
        """
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if not poll.poll(SILENT_SECONDS * 1000):
            raise SourceError(f"{self._label}: does not answer for {SILENT_SECONDS:.0f} s")
        return os.read(fd, size)


def _kill(process: subprocess.Popen[bytes]) -> None:
    # Once waited for, its number may be another's.
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _relative(path: bytes) -> str:
    return os.fsdecode(path.removeprefix(b"./"))


def _nanoseconds(stamp: bytes) -> int:
    """Read what find prints as ``%T@``: seconds, with ten digits behind the point."""
    seconds, _, fraction = stamp.partition(b".")
    return int(seconds) * 10**9 + int(fraction.ljust(9, b"0")[:9])


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
