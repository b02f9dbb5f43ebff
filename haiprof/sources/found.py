"""What is at a path: the traces of one run, whichever tool made them.

Tests: tests/sources/test_open.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: The tools whose files are read, by the name of their package beside this file.
KINETO: Final = "kineto"
NSYS: Final = "nsys"
ASCEND: Final = "ascend"
MEGATRON: Final = "megatron"
PADDLE: Final = "paddle"

_SQLITE: Final = b"SQLite format 3\x00"
#: What lies there is a stream that somebody opened, whatever it comes from.
_STREAMS: Final = ("/dev", "/dev/fd", "/proc/self/fd")


@dataclass(frozen=True, slots=True)
class Source:
    """The trace of one process: where it is, what names tell, and what changes when it is written.

    A tool may write a folder for a process, or several processes into one file.
    """

    #: Whose it is: one of the names above.
    tool: str
    path: str
    #: Name of the file or the folder, without the folders above it.
    file: str
    #: Whose trace it is, as the tool names it; unique in the run but for the spans of a worker.
    worker: str
    #: Rank and host, as far as names can tell; what the file says counts more.
    rank: int | None
    host: str | None
    #: Number of the profiling span of this worker, from 1.
    span: int
    #: Of a folder all that is read of it, and when the newest of it was written.
    bytes: int
    mtime_ns: int
    #: Which process of several in one file, in the tool's own words.
    part: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a path: the traces of one run."""

    path: str
    folder: bool
    sources: tuple[Source, ...]
    problems: tuple[str, ...] = ()

    @property
    def url(self) -> bool:
        """Whether it is behind a URL of fsspec."""
        return is_url(self.path)

    @property
    def run(self) -> str:
        """The name of the run: that of the folder, or of the file without its suffixes."""
        if self.folder:
            path = self.path if self.url else str(Path(self.path).absolute())
            return path.rstrip("/").rsplit("/", 1)[-1] or "traces"
        return self.sources[0].file.split(".", 1)[0] or "trace"

    @property
    def bytes(self) -> int:
        """How much there is to read; several processes of one file are counted once."""
        return sum({source.path: source.bytes for source in self.sources}.values())


def is_url(path: str) -> bool:
    """Say whether ``path`` is for fsspec: ``s3://…``, ``memory://…``."""
    scheme, found, _ = path.partition("://")
    return bool(found) and scheme.replace("+", "").replace("-", "").isalnum()


def has_beside(path: str) -> bool:
    """Say whether something may be kept beside a file: not of a URL, a pipe or standard input."""
    place = Path(path).absolute()
    return not is_url(path) and place.is_file() and str(place.parent) not in _STREAMS


def is_sqlite(head: bytes) -> bool:
    """Say whether a file that begins so is one of SQLite."""
    return head.startswith(_SQLITE)
