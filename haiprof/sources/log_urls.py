"""All runs behind a URL of fsspec: an object store, a web server, ….

Its files are listed once; a run that is looked into is fetched into a temporary folder.

Tests: tests/answers/test_all_runs.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from haiprof import schema
from haiprof.common import hang_files
from haiprof.common.printable import readable
from haiprof.errors import HaiprofError
from haiprof.sources.kineto.stream import filesystem
from haiprof.sources.log_dirs import INDEX, LARGEST_INDEX, Seen
from haiprof.sources.open import Temporary
from haiprof.sources.own import LARGEST_DOCUMENT, is_import

_INDEX_NAME: Final = f"{INDEX}.parquet"
_TABLES: Final = (schema.LIVE_SUFFIX, schema.CLOSED_SUFFIX)
#: What stores call the version of a file, and the time at which it was written.
_VERSIONS: Final = ("ETag", "etag", "md5Hash", "content_md5", "generation", "version_aware")
_TIMES: Final = ("LastModified", "last_modified", "mtime", "updated", "created")
#: A run with more bytes is not fetched for a row.
_LARGEST_RUN: Final = 2 << 30
_LONGEST_NAME: Final = 200
_PIECE: Final = 1 << 20


class LogUrl:
    """A folder behind a URL, with runs below it."""

    def __init__(self, url: str) -> None:
        """Nothing is opened yet."""
        self.url = url

    def runs(self) -> list[Seen]:
        """Return the runs, sorted by their path.

        Raises:
            HaiprofError: it cannot be listed.
        """
        files, root = self._open()
        try:
            files.invalidate_cache()
            found = files.find(root, detail=True)
            if not found and not files.isdir(root):
                raise HaiprofError(f"{self.url}: no such folder there, or it may not be read")
        except HaiprofError:
            raise
        except Exception as error:  # each file system has its own
            raise self._failed(self.url, error) from None
        by_path = {str(path).removeprefix(root).lstrip("/"): how for path, how in found.items()}
        return sorted(_runs(by_path), key=lambda seen: seen.path)

    @contextlib.contextmanager
    def opened(self, seen: Seen) -> Iterator[Path]:
        """Yield a folder with the documents and tables of a run, as long as the body runs.

        Raises:
            HaiprofError: they cannot be fetched, or are too many.
        """
        where = f"{self.url}/{seen.path}"
        size = sum(size for _, size in seen.files)
        if size > _LARGEST_RUN:
            raise HaiprofError(
                f"{where}: has {size >> 30} GiB of tables, too much to be fetched for one row: "
                "haiprof collect brings it here"
            )
        temporary = Temporary()
        try:
            run = temporary.path / (seen.path.rpartition("/")[2] or "run")
            run.mkdir()
            for name, size in seen.files:
                self._fetch(f"{seen.path}/{name}".lstrip("/"), run / name, size)
            yield run
        finally:
            temporary.remove()

    def _fetch(self, path: str, to: Path, size: int) -> None:
        files, root = self._open()
        to.parent.mkdir(exist_ok=True)
        try:
            with files.open(f"{root}/{path}", "rb") as source, to.open("xb") as out:
                while size > 0 and (piece := source.read(min(size, _PIECE))):
                    out.write(piece)
                    size -= len(piece)
        except Exception as error:  # each file system has its own
            raise self._failed(f"{self.url}/{path}", error) from None

    # -- the index -------------------------------------------------------------------------------

    def read_index(self) -> bytes | None:
        """Return the index that is kept there; None: there is none."""
        files, root = self._open()
        with contextlib.suppress(Exception):  # each file system has its own; then it is made anew
            if files.size(f"{root}/{_INDEX_NAME}") <= LARGEST_INDEX:
                content: bytes = files.cat_file(f"{root}/{_INDEX_NAME}")
                return content
        return None

    def write_index(self, content: bytes) -> str:
        """Keep an index there; return why that does not work, or nothing."""
        files, root = self._open()
        try:
            files.pipe_file(f"{root}/{_INDEX_NAME}", content)
        except Exception as error:  # each file system has its own
            return str(self._failed(f"{self.url}/{_INDEX_NAME}", error, "written"))
        return ""

    def _open(self) -> tuple[Any, str]:
        files = filesystem(self.url)
        return files, str(files._strip_protocol(self.url)).rstrip("/")

    def _failed(self, where: str, error: Exception, how: str = "read") -> HaiprofError:
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        return HaiprofError(f"{where}: cannot be {how}: {line}")


def _runs(found: Mapping[str, Mapping[str, Any]]) -> Iterator[Seen]:
    folders = {
        path.rpartition("/")[0]
        for path in found
        if path.rpartition("/")[2] == schema.RUN_FILE and _is_plain(path)
    }
    inside: dict[str, list[str]] = {folder: [] for folder in folders}
    for path in found:
        above, _, name = path.rpartition("/")
        further, _, process = above.rpartition("/")
        if above in inside and (name == schema.RUN_FILE or hang_files.NAME.fullmatch(name)):
            inside[above].append(path)
        elif further in inside and above not in inside and process and _is_ours(path):
            inside[further].append(path)
    for folder, paths in inside.items():
        if not any(above in inside for above in _above(folder)):
            yield _seen(folder, {path: found[path] for path in sorted(paths)})


def _is_ours(path: str) -> bool:
    return _is_plain(path) and path.endswith((f"/{schema.PROCESS_FILE}", *_TABLES))


def _above(folder: str) -> Iterator[str]:
    while folder:
        folder = folder.rpartition("/")[0]
        yield folder


def _is_plain(path: str) -> bool:
    """Say whether a path is one that haiprof writes: a store takes any text as a name."""
    return all(
        part
        and part[0] != "."
        and len(os.fsencode(part)) <= _LONGEST_NAME
        and "\0" not in part
        and not is_import(part)
        for part in path.split("/")
    )


def _seen(folder: str, found: Mapping[str, Mapping[str, Any]]) -> Seen:
    documents, every = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    files: list[tuple[str, int]] = []
    times: list[int] = []
    closed = ""
    for path, how in found.items():
        size = how.get("size")
        size = size if isinstance(size, int) and size >= 0 else 0
        said = [str(how[name]) for name in (*_VERSIONS, *_TIMES) if name in how]
        part = readable("\0".join([path, str(size), *said])).encode()
        every.update(part)
        name = path.removeprefix(folder).lstrip("/")
        if not name.endswith(_TABLES):
            documents.update(part)
            if size > LARGEST_DOCUMENT:
                closed = f"{name}: has {size >> 20} MiB, which no document of a run has"
        files.append((name, size))
        times += [at for at in map(_time, (how.get(each) for each in _TIMES)) if at is not None]
    newest = max(times, default=None)
    written = every.hexdigest()
    return Seen(folder, documents.hexdigest(), written, newest, None, closed, tuple(files))


def _time(value: object) -> int | None:
    if isinstance(value, datetime):
        value = value.timestamp()
    return int(value * 1e9) if isinstance(value, (int, float)) and 0 < value < 4e9 else None
