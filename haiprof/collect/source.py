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
    """Bytes whose errors are told as those of their source."""

    def __init__(self, content: Readable, told: Callable[[Exception], SourceError]) -> None:
        """Read ``content``; ``told`` makes of its error what is raised."""
        self._content = content
        self._told = told

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
            raise self._told(error) from None


@dataclass(frozen=True, slots=True)
class File:
    """A file as it was found.

    Attributes:
        path: relative to the source, with slashes.
        size: bytes.
        stamp: when it was written, ns since the epoch; None where that is not told.
    """

    path: str
    size: int
    stamp: int | None


@dataclass(slots=True)
class Listing:
    """What lies in a source.

    Attributes:
        files: all that may belong to a run.
        documents: the bytes of each ``run.json`` and ``process.json``, by path. They were read
            before the files were listed: of a process that is closed by its document, all files
            are there.
        remark: what could not be read of it, a line; empty if nothing.
    """

    files: list[File] = field(default_factory=list)
    documents: dict[str, bytes] = field(default_factory=dict)
    remark: str = ""


#: Files, each with its bytes and how many they are.
Coming = Generator[tuple[File, int, Readable], None, None]


class Source(abc.ABC):
    """A folder of runs, or one run's."""

    #: As the user named it.
    label: str
    #: What was in the way of the last :meth:`fetch`, a line; empty if nothing.
    remark: str = ""

    @abc.abstractmethod
    def look(self, run: str) -> Listing:
        """List what is there.

        Args:
            run: list nothing of other runs, where this source can tell; all where it is empty.

        Raises:
            SourceError: it cannot be reached or read.
        """

    @abc.abstractmethod
    def fetch(self, files: Sequence[File]) -> Coming:
        """Yield the files that are still there, in that order: which, its bytes now, and these.

        Raises:
            SourceError: it broke off; what was read of the file in hand is not all of it.
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """Have whatever waits for it fail. From any thread, at any time."""


#: Is called with the bytes that have come since the last time.
Told = Callable[[int], None]
