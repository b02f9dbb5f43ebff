"""The file of a deep trace: saved, checked, compressed, and renamed into place."""

from __future__ import annotations

import errno
import gzip
import os
import re
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from haiprof.capture.trace.own_threads import EVENT_END, OwnThreads
from haiprof.capture.where import Recorded
from haiprof.common.claimed_folder import ClaimedFolder
from haiprof.common.launcher import placement
from haiprof.common.places import UNFINISHED_TRACE, node_name

if TYPE_CHECKING:
    from haiprof.capture.trace.profiler import Profiler

SUFFIX: Final = ".pt.trace.json.gz"
_RAW: Final = "trace.json"

#: How long a file waits for the recorder to make the process's folder, s.
_FOLDER_SECONDS: Final = 5.0
_CHUNK: Final = 1 << 20
#: What is looked for may lie across two chunks; none of it is longer than this.
_LONGEST: Final = 256
_LEVEL: Final = 6
# Kineto writes each step once more for every stream; tools take those for steps of their own.
_GPU_STEP: Final = re.compile(rb'("cat": "gpu_user_annotation",\s+"name": ")ProfilerStep#')
_STEP_NAME: Final = b'"name": "ProfilerStep#%d"'
_CUT_NAME: Final = b'"name": "cut step %d"'


class TraceFile:
    """The file that torch writes, on its way to its final place."""

    def __init__(self, session: Recorded, milliseconds: int) -> None:
        """Nothing is written yet. ``milliseconds``: when the trace began, since the epoch."""
        self._session = session
        self._milliseconds = milliseconds
        #: Beside the folders of processes, with a name that cannot be confused with theirs.
        self._unfinished: ClaimedFolder | None = None

    def save(self, profiler: Profiler, at_most: int) -> int:
        """Have torch write it; return its size.

        Args:
            profiler: has stopped.
            at_most: bytes that it may become.

        Raises:
            OSError: there is no room for it, or it is truncated: torch does not report that.
        """
        try:
            free = shutil.disk_usage(self._session.run_dir).free
            if free < at_most:
                raise OSError(
                    errno.ENOSPC, f"{free >> 20} MiB are free, and it may need {at_most >> 20}"
                )
            self._unfinished = ClaimedFolder(self._session.run_dir, UNFINISHED_TRACE)
            raw = self._unfinished.path / _RAW
            # If torch writes none, it has 0 bytes.
            os.close(os.open(raw, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            profiler.save(raw)
            size = raw.stat().st_size
            if not _is_whole(raw, size):
                raise OSError(errno.EIO, f"it was not written to its end ({size} bytes)")
            return size
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Remove what torch wrote. Never raises."""
        if self._unfinished is not None:
            self._unfinished.remove()

    def place(self, cut: int | None) -> Path:
        """Compress it into the folder of the process; return the file.

        Args:
            cut: number of the step that the trace's end cut, which must not be taken for one.

        Raises:
            OSError: it cannot be written; nothing is left of it.
        """
        try:
            folder = self._folder()
            unknown = f"{node_name()}#{placement().rank}.{os.getpid()}"
            name = folder.name if folder is not None else unknown
            parent = folder if folder is not None else self._session.run_dir
            target = parent / f"{name}.{self._milliseconds}{SUFFIX}"
            assert self._unfinished is not None
            compressed = self._unfinished.path / target.name
            _compress(self._unfinished.path / _RAW, compressed, cut)
            compressed.replace(target)
            return target
        finally:
            self.remove()

    def _folder(self) -> Path | None:
        until = time.monotonic() + _FOLDER_SECONDS
        while (folder := self._session.folder()) is None and time.monotonic() < until:
            time.sleep(0.05)
        return folder


def _is_whole(raw: Path, size: int) -> bool:
    with raw.open("rb") as file:
        file.seek(max(0, size - _LONGEST))
        return file.read().rstrip().endswith(b"}")


def _compress(raw: Path, target: Path, cut: int | None) -> None:
    own = OwnThreads(raw)
    fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        with (
            gzip.GzipFile(
                filename="", mode="wb", compresslevel=_LEVEL, fileobj=file
            ) as out,
            raw.open("rb") as source,
        ):  # fmt: skip
            kept = b""
            while chunk := source.read(_CHUNK):
                text = _renamed(kept + chunk, cut)
                whole = _end_of_events(text)
                kept = text[whole:]
                out.write(own.left_out_of(text[:whole]))
            out.write(kept)
        file.flush()
        os.fsync(fd)


def _end_of_events(text: bytes) -> int:
    """Return where the last whole event ends, or else the part that a name may lie across."""
    last = text.rfind(EVENT_END)
    return last + len(EVENT_END) if last >= 0 else max(len(text) - _LONGEST, 0)


def _renamed(text: bytes, cut: int | None) -> bytes:
    if b"gpu_user_annotation" in text:
        text = _GPU_STEP.sub(rb"\1step ", text)
    if cut is not None:
        text = text.replace(_STEP_NAME % cut, _CUT_NAME % cut)
    return text
