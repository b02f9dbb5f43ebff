"""Serves the page of a run to browsers of this machine, and follows a run that goes on.

Only whoever has the link gets in: its path has a random token. Requests for another host's name are
refused, so that no web page can reach it by a name that it has resolve to this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

from haiprof.errors import HaiprofError
from haiprof.show.page.build import Built, build
from haiprof.show.page.write import to_html, to_json
from haiprof.sources.table_cache import caching_tables

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer

LOOPBACK: Final = "127.0.0.1"
_NAMES: Final = frozenset(("127.0.0.1", "localhost", "[::1]"))
#: How often a page asks for news, and how long what was built stays as it is at least, s.
EVERY: Final = 5.0
#: Of the time of a build that passes until the next one begins.
_REST: Final = 4.0
#: Connections at a time; a browser has six.
_CONNECTIONS: Final = 16
#: How long a connection may be silent, s.
_SILENT: Final = 20.0
#: Files that are looked at for changes: a run folder may be hostile.
_FILES: Final = 200_000


class Pages:
    """The newest page of a run: built again when its files have changed, but not all the time."""

    def __init__(self, folder: Path, open_run: Callable[[], Analyzer]) -> None:
        """Build the first page.

        Raises:
            HaiprofError: there is no such run, or it cannot be read.
        """
        self._folder = folder
        self._open = open_run
        self._lock = threading.Lock()
        self._next = 0.0
        self._build()

    def newest(self) -> tuple[str, Built]:
        """Return the newest page and its version."""
        with self._lock:
            now = time.monotonic()
            if self._live and now >= self._next and _state(self._folder) != self._state:
                # What is half-written is whole the next time.
                try:
                    self._build()
                except (HaiprofError, OSError):
                    self._next = time.monotonic() + EVERY
            return self._version, self._built

    def _build(self) -> None:
        begun = time.monotonic()
        self._state = _state(self._folder)
        with caching_tables():
            analyzer = self._open()
            if analyzer.traced:
                raise HaiprofError(
                    f"{self._folder}: a trace: give the folder of a recorded run, or write a "
                    "report of the trace with haiprof report"
                )
            self._live = any(process.state == "live" for process in analyzer.run.processes)
            self._built = build(analyzer)
        self._version = self._state[:16]
        if self._live:
            self._built.document["live"] = {"every": EVERY, "version": self._version}
        ended = time.monotonic()
        self._next = ended + max(EVERY, _REST * (ended - begun))


def _state(folder: Path) -> str:
    """Return a digest of the names, sizes and times of a run's files."""
    digest = hashlib.blake2b(digest_size=16)
    count = 0
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            count += 1
            if count > _FILES:
                return digest.hexdigest()
            if name.endswith(".html"):
                continue
            path = Path(parent, name)
            try:
                found = path.lstat()
            except OSError:
                continue
            digest.update(os.fsencode(path))
            digest.update(f"\0{found.st_size} {found.st_mtime_ns}\0".encode())
    return digest.hexdigest()


class Server(ThreadingHTTPServer):
    """Answers with the page at ``link``, and with nothing elsewhere."""

    daemon_threads = True
    allow_reuse_address = False
    request_queue_size = _CONNECTIONS

    def __init__(self, pages: Pages, port: int = 0) -> None:
        """Listen on the loopback interface.

        Raises:
            OSError: the port is taken, or not allowed.
        """
        self.pages = pages
        self.token = secrets.token_urlsafe(24)
        self._room = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def link(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there is room for one more."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room again."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away."""


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    timeout = _SILENT
    server_version = "haiprof"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the page, or with its data if those are newer than what the page has."""
        if not self._is_local():
            self._answer(HTTPStatus.FORBIDDEN)
            return
        asked = urlsplit(self.path)
        token, _, rest = asked.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._answer(HTTPStatus.NOT_FOUND)
        elif rest == "":
            _, built = self.server.pages.newest()
            page = to_html(built)
            if "live" in built.document:
                page = page.replace('<html lang="en">', '<html lang="en" data-live="1">', 1)
            self._answer(HTTPStatus.OK, page, "text/html; charset=utf-8")
        elif rest == "document":
            version, built = self.server.pages.newest()
            if parse_qs(asked.query).get("since") == [version] and "live" in built.document:
                self._answer(HTTPStatus.NO_CONTENT)
            else:
                data = f'{{"document":{to_json(built)},"blobs":{json.dumps(built.blobs)}}}'
                self._answer(HTTPStatus.OK, data, "application/json")
        else:
            self._answer(HTTPStatus.NOT_FOUND)

    def _is_local(self) -> bool:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1:
            return False
        # Any port: a tunnel may end at another one.
        name, colon, port = hosts[0].rpartition(":")
        return (name if colon and port.isdigit() else hosts[0]).lower() in _NAMES

    def _answer(self, status: HTTPStatus, text: str = "", kind: str = "text/plain") -> None:
        content = text.encode("utf-8", "replace")
        self.send_response(status)
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
        for name, value in (
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Write no log: it would be in the way of the command."""
