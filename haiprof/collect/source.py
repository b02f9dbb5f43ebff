"""Where runs are collected from: a folder of another host, one of this machine, or a URL.

Tests: tests/cli/test_collect.py.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from haiprof.errors import HaiprofError


class SourceError(HaiprofError):
    """A source cannot be read, or not to its end; ``str()`` of it is one line that names it."""


class Readable(Protocol):
    """What a file's bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, none at the end."""


class Guarded:
    """Bytes whose errors are raised as those of their source."""

    def __init__(self, content: Readable, as_error: Callable[[Exception], SourceError]) -> None:
        """Read ``content``; ``as_error`` converts an error to the one raised."""
        self._content = content
        self._as_error = as_error

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, none at the end.

        Raises:
            SourceError: they cannot be read.
        """
        try:
            return self._content.read(size)
        except SourceError:
            raise
        except Exception as error:  # each file system has its own
            raise self._as_error(error) from None


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was found.

    Attributes:
        path: relative to the source, with slashes.
        size: bytes.
        stamp: when it was written, ns since the epoch; None if unknown.
    """

    path: str
    size: int
    stamp: int | None


@dataclass(slots=True)
class Listing:
    """Content of a source.

    Attributes:
        files: all that may belong to a run.
        documents: the bytes of each ``run.json`` and ``process.json``, by path. They were read
            before the files were listed: of a process that is closed by its document, all files
            are there.
        remark: what could not be read of it, as a line; empty if nothing.
    """

    files: list[File] = field(default_factory=list)
    documents: dict[str, bytes] = field(default_factory=dict)
    remark: str = ""


#: Files, each with its size and its bytes.
Coming = Generator[tuple[File, int, Readable], None, None]


class Source(abc.ABC):
    """A folder of runs, or one run's."""

    #: As the user named it.
    label: str
    #: The problem of the last :meth:`fetch`, as a line; empty if none.
    remark: str = ""

    @abc.abstractmethod
    def look(self, run: str) -> Listing:
        """List what is there.

        Args:
            run: list only this run, where the source can; all if empty.

        Raises:
            SourceError: it cannot be reached or read.
        """

    @abc.abstractmethod
    def fetch(self, files: Sequence[File]) -> Coming:
        """Yield the files that are still there, in that order: the file, its size now, its bytes.

        Raises:
            SourceError: it broke off; the current file is incomplete.
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """Make whatever waits for it fail. From any thread, at any time."""


#: Called with the number of bytes that have arrived since the last call.
OnBytes = Callable[[int], None]
