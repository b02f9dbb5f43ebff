"""The bytes of a trace in pieces: plain or compressed, from a file or through fsspec.

The compression is detected from the first bytes: names lie. A stream that ends or breaks in the
middle yields everything before that point.
"""

from __future__ import annotations

import bz2
import contextlib
import lzma
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Final

from isal import isal_zlib

from haiprof.errors import HaiprofError
from haiprof.sources.found import is_sqlite, is_url

#: Maximum size of one piece of JSON text, in bytes.
PIECE: Final = 2 << 20
_READ: Final = 1 << 18
_SMALL: Final = 1 << 16
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_MAGIC: Final = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
#: Any: isal's types give its error as an exception, not as a class.
_BROKEN: Final[Any] = (isal_zlib.error, lzma.LZMAError, OSError, EOFError, ValueError)
#: A compressed file may always expand to this many bytes; beyond that, to at most this many times
#: its own size. Traces shrink to a 10th or 20th, some to a 60th; a compressed file is expected to
#: contain a trace, and one that shrank more than this was made to fill a disk.
_ALWAYS: Final = 512 << 20
_MOST_TIMES: Final = 200
#: Memory limit for xz, in bytes: its files themselves say how much they need.
_XZ_MEMORY: Final = 1 << 30


class Pieces:
    """The JSON text of one trace, piece by piece; the next is read while the last is parsed.

    Iterate over it once, within ``with``. Afterwards ``broken`` says why the text ended too early,
    if it did; ``consumed`` is how many bytes of the file have been read so far.
    """

    def __init__(self, source: str) -> None:
        """Open ``source``: a path, or a URL of fsspec.

        Raises:
            HaiprofError: it cannot be opened.
        """
        self._source = source
        self._file = _open(source)
        self._wanted: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[bytes | BaseException] = queue.SimpleQueue()
        self.broken: str | None = None
        self.consumed = 0

    def __enter__(self) -> Pieces:
        # A daemon: a read that hangs must not keep the process from exiting.
        threading.Thread(target=self._make, name="haiprof-read", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wanted.put(False)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces.

        Raises:
            HaiprofError: the file cannot be read at all.
        """
        self._wanted.put(True)
        while piece := self._made.get():
            if isinstance(piece, BaseException):
                raise piece
            self._wanted.put(True)
            yield piece

    def _make(self) -> None:
        with contextlib.closing(self._file):
            pieces = self._text()
            while self._wanted.get():
                try:
                    self._made.put(next(pieces, b""))
                except BaseException as error:  # raised in the reader, whatever it is
                    self._made.put(error)

    def _text(self) -> Iterator[bytes]:
        try:
            head = self._read()
        except OSError as error:
            raise _unreadable(self._source, error) from None
        if is_sqlite(head):
            raise HaiprofError(
                f"{self._source}: is an SQLite database, which haiprof reads of Nsight Systems and "
                "Ascend, from a file only: give one of theirs as a file"
            )
        kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")
        try:
            produced = 0
            for piece in _ways[kind](self, head):
                yield piece if produced else piece.removeprefix(_BYTE_ORDER_MARK)
                produced += len(piece)
                if kind and produced > max(_ALWAYS, _MOST_TIMES * self.consumed):
                    raise self._bomb(kind, produced)
        except _BROKEN as error:
            said = getattr(error, "strerror", None) or str(error) or "it ends too early"
            self.broken = f"{kind or 'it'} cannot be read beyond byte {self.consumed}: {said}"

    def _bomb(self, kind: str, produced: int) -> HaiprofError:
        return HaiprofError(
            f"{self._source}: its first {self.consumed} bytes ({kind}) make more than "
            f"{produced >> 20} MiB of text, more than {_MOST_TIMES} times as much, as no trace "
            "does: left out; if it is one, unpack it and give that file"
        )

    def _read(self, size: int = _READ) -> bytes:
        data: bytes = self._file.read(size)
        self.consumed += len(data)
        return data

    def _bare(self, head: bytes) -> Iterator[bytes]:
        while head:
            yield head
            head = self._read(PIECE)

    def _gzip(self, data: bytes) -> Iterator[bytes]:
        # One file may consist of several members, and end in zeros.
        while data := data.lstrip(b"\0"):
            while len(data) < 4 and (more := self._read()):
                data += more
            # isal does not look at them: a header that has them has other fields than it reads.
            if data[3:4] > b"\x1f":
                raise ValueError("unknown header flags set")
            member = isal_zlib.decompressobj(31)
            while not member.eof:
                if not data and not (data := self._read()):
                    raise EOFError("it ends too early")
                text = member.decompress(data, PIECE)
                data = member.unconsumed_tail
                if text:
                    yield text
            data = member.unused_data or self._read()

    def _members(
        self, data: bytes, make: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor]
    ) -> Iterator[bytes]:
        while data := data.lstrip(b"\0"):
            member = make()
            while not member.eof:
                if member.needs_input and not data and not (data := self._read()):
                    raise EOFError("it ends too early")
                text = member.decompress(data, PIECE)
                data = b""
                if text:
                    yield text
            data = member.unused_data or self._read()

    def _arrow(self, head: bytes, codec: str) -> Iterator[bytes]:
        import pyarrow as pa

        with pa.CompressedInputStream(pa.PythonFile(_Ahead(head, self._read), "r"), codec) as text:
            # A failed read discards what it already has: so reads are small.
            while piece := text.read(_SMALL):
                yield piece


_ways: Final[dict[str, Callable[[Pieces, bytes], Iterator[bytes]]]] = {
    "": Pieces._bare,
    "gzip": Pieces._gzip,
    "bz2": lambda pieces, head: pieces._members(head, bz2.BZ2Decompressor),
    "xz": lambda pieces, head: pieces._members(
        head, lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)
    ),
    "zstd": lambda pieces, head: pieces._arrow(head, "zstd"),
    "lz4": lambda pieces, head: pieces._arrow(head, "lz4"),
}


class _Ahead:
    """What Arrow reads from: the first bytes, already inspected, then the rest."""

    closed = False

    def __init__(self, head: bytes, more: Callable[[int], bytes]) -> None:
        self._head = head
        self._more = more

    def read(self, size: int) -> bytes:
        if not self._head:
            return self._more(size)
        data, self._head = self._head[:size], self._head[size:]
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def _open(source: str) -> IO[Any]:
    try:
        if is_url(source):
            opened: IO[Any] = filesystem(source).open(source, "rb")
            return opened
        return Path(source).open("rb", buffering=0)
    except OSError as error:
        raise _unreadable(source, error) from None


def filesystem(source: str) -> Any:
    """Return the file system of a URL.

    Raises:
        HaiprofError: fsspec is not installed, or does not know it.
    """
    try:
        import fsspec.core
    except ImportError:
        raise HaiprofError(
            f"{source}: to read from there, haiprof needs the package fsspec: pip install fsspec"
        ) from None
    try:
        return fsspec.core.url_to_fs(source)[0]
    except (ImportError, ValueError) as error:
        raise HaiprofError(f"{source}: cannot be opened: {_first_line(error)}") from None


def _unreadable(source: str, error: OSError) -> HaiprofError:
    if isinstance(error, FileNotFoundError):
        return HaiprofError(f"{source}: no such file: give a trace, or the folder that contains it")
    if isinstance(error, PermissionError):
        return HaiprofError(
            f"{source}: cannot be read ({error.strerror or error}): ask its owner for access"
        )
    return HaiprofError(f"{source}: cannot be read ({error.strerror or _first_line(error)})")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
