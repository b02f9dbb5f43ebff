"""What a path contains: the traces of one run, whichever tool wrote them.

Tests: tests/sources/test_open.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: The tools whose files are read, named as their packages beside this file.
KINETO: Final = "kineto"
NSYS: Final = "nsys"
NSYS_CSV: Final = "nsys_csv"
ASCEND: Final = "ascend"
MEGATRON: Final = "megatron"
PADDLE: Final = "paddle"
ROCPROF: Final = "rocprof"
STRAGGLER: Final = "straggler"
TORCH_MEMORY: Final = "torch_memory"

_SQLITE: Final = b"SQLite format 3\x00"
#: A path to an open stream, whatever is behind it.
_STREAMS: Final = ("/dev", "/dev/fd", "/proc/self/fd")


@dataclass(frozen=True, slots=True)
class Source:
    """The trace of one process: where it is, what its name says, and what changes on a rewrite.

    A tool may write one folder per process, or several processes into one file.
    """

    #: The tool: one of the names above.
    tool: str
    path: str
    #: Name of the file or the folder, without its parent folders.
    file: str
    #: The process, as the tool names it; unique in the run except for the spans of a worker.
    worker: str
    #: Rank and host as names suggest them; what the file says takes precedence.
    rank: int | None
    host: str | None
    #: Number of the profiling span of this worker, from 1.
    span: int
    #: For a folder, the total size of what is read, and the newest time of writing.
    bytes: int
    mtime_ns: int
    #: Which of several processes in one file, in the tool's own words.
    part: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The traces of one run at a path."""

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
        """Bytes to read; several processes of one file are counted once."""
        return sum({source.path: source.bytes for source in self.sources}.values())


def is_url(path: str) -> bool:
    """Say whether ``path`` is for fsspec: ``s3://…``, ``memory://…``."""
    scheme, found, _ = path.partition("://")
    return bool(found) and scheme.replace("+", "").replace("-", "").isalnum()


def has_beside(path: str) -> bool:
    """Say whether something can be kept beside a file: not of a URL, a pipe or standard input."""
    place = Path(path).absolute()
    return not is_url(path) and place.is_file() and str(place.parent) not in _STREAMS


def is_sqlite(head: bytes) -> bool:
    """Say whether a file with this beginning is an SQLite database."""
    return head.startswith(_SQLITE)
