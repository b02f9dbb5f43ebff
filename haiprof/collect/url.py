"""A folder behind a URL, which fsspec reads.

Tests: tests/cli/test_collect.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from haiprof import schema
from haiprof.collect.source import Coming, File, Guarded, Listing, Source, SourceError
from haiprof.sources.kineto.stream import filesystem

_DOCUMENTS = (schema.RUN_FILE, schema.PROCESS_FILE)
#: Of a log directory: run, process, file.
_DEPTH = 3


class Url(Source):
    """A folder of an object store, a web server, or whatever else fsspec knows."""

    def __init__(self, url: str) -> None:
        """Nothing is opened yet."""
        self.label = url
        self._stopped = False
        self._opened: tuple[Any, str] | None = None

    def look(self, run: str) -> Listing:
        """See :meth:`Source.look`. No times: stores give them in too many ways."""
        files, root = self._open()
        listing = Listing()
        for path in self._list(files, root):
            if path.rpartition("/")[2] in _DOCUMENTS:
                # It may have disappeared, or be another user's: then its folder is left out.
                with contextlib.suppress(Exception):
                    listing.documents[path] = files.cat_file(f"{root}/{path}")
        listing.files = [
            File(path, size, None) for path, size in self._list(files, root).items() if size >= 0
        ]
        return listing

    def fetch(self, files: Sequence[File]) -> Coming:
        """See :meth:`Source.fetch`."""
        opened, root = self._open()
        for file in files:
            if self._stopped:
                raise SourceError(f"{self.label}: stopped")
            path = f"{root}/{file.path}"
            try:
                size = opened.size(path)
                content = opened.open(path, "rb")
            except FileNotFoundError:
                continue
            except Exception as error:  # each file system has its own
                raise self._failed(error) from None
            with content:
                yield file, size, Guarded(content, self._failed)

    def stop(self) -> None:
        """See :meth:`Source.stop`; the file that is being read is read to its end."""
        self._stopped = True

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            files = filesystem(self.label)
            root = files._strip_protocol(self.label).rstrip("/")
            self._opened = files, root
        return self._opened

    def _list(self, files: Any, root: str) -> dict[str, int]:
        try:
            # What was listed before may have changed.
            files.invalidate_cache()
            found = files.find(root, maxdepth=_DEPTH, detail=True)
            if not found and not files.isdir(root):
                raise SourceError(f"{self.label}: no such folder there, or it may not be read")
        except SourceError:
            raise
        except Exception as error:  # each file system has its own
            raise self._failed(error) from None
        sizes = {}
        for path, details in found.items():
            size = details.get("size")
            sizes[path.removeprefix(root).lstrip("/")] = size if isinstance(size, int) else 0
        return sizes

    def _failed(self, error: Exception) -> SourceError:
        line = next(iter(str(error).splitlines()), "") or type(error).__name__
        return SourceError(f"{self.label}: cannot be read: {line}")
