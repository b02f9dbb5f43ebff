"""The page served: to this machine, by its link alone, and news of a run that goes on."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs
import traces
from page_documents import document_in
from recording import wait_for

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.errors import HaiprofError
from haiprof.show.page import serve
from haiprof.show.page.serve import Pages, Server


def answer(
    server: Server, path: str, host: str = "localhost", method: str = "GET"
) -> tuple[int, str, http.client.HTTPResponse]:
    """Return status, text and answer of one request."""
    connection = http.client.HTTPConnection(serve.LOOPBACK, server.server_address[1], timeout=60)
    connection.putrequest(method, path, skip_host=True)
    if host:
        connection.putheader("Host", host)
    connection.endheaders()
    got = connection.getresponse()
    text = got.read().decode("utf-8")
    connection.close()
    return got.status, text, got


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that goes on."""
    run = runs.make_run(tmp_path / "r", steps=20)
    runs.write_process(run, state="live", ended_ns=None)
    return run


@pytest.fixture
def server(run: Path) -> Iterator[Server]:
    with Server(Pages(run, lambda: Analyzer(run))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_page_is_at_its_link(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.link.startswith("http://127.0.0.1:")
    status, page, got = answer(server, f"/{server.token}/")
    assert (status, got.getheader("Cache-Control")) == (200, "no-store")
    assert got.getheader("X-Frame-Options") == "DENY"
    assert document_in(page)["live"]["every"] > 0
    assert 'data-live="1"' in page


@pytest.mark.parametrize("path", ["/", "/x/", "/x/document", "//", "/../", "/%00/"])
def test_without_the_token_there_is_nothing(server: Server, path: str) -> None:
    assert answer(server, path)[:2] == (404, "")


@pytest.mark.parametrize("path", ["page.html", "document/", "../", "run.json"])
def test_beside_the_page_there_is_nothing(server: Server, path: str) -> None:
    assert answer(server, f"/{server.token}/{path}")[:2] == (404, "")


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", "[::2]:1"],
)
def test_another_host_is_refused_even_with_the_token(server: Server, host: str) -> None:
    assert answer(server, f"/{server.token}/", host)[:2] == (403, "")


@pytest.mark.parametrize("host", ["127.0.0.1:8", "LOCALHOST", "[::1]:9", "[::1]"])
def test_this_machine_may_be_named_in_each_way_and_through_a_tunnel(
    server: Server, host: str
) -> None:
    assert answer(server, f"/{server.token}/", host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"])
def test_nothing_but_reading_is_answered(server: Server, method: str) -> None:
    assert answer(server, f"/{server.token}/", method=method)[0] == 501


def test_a_page_gets_news_when_there_are_any(
    server: Server, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    news = f"/{server.token}/document"
    first = json.loads(answer(server, news)[1])["document"]
    version = first["live"]["version"]
    assert answer(server, f"{news}?since={version}")[:2] == (204, "")
    spans = runs.loop(40)
    runs.write_closed(run / "n0#0", schema.SPANS, spans)
    # Too soon for another build.
    assert answer(server, f"{news}?since={version}")[0] == 204
    monkeypatch.setattr(server.pages, "_next", 0.0)
    status, text, _ = answer(server, f"{news}?since={version}")
    second = json.loads(text)
    assert status == 200
    assert second["document"]["live"]["version"] != version
    assert second["document"]["headline"][0].startswith("40 steps")
    assert second["blobs"]


def test_a_run_that_has_ended_is_not_followed_any_more(
    server: Server, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.write_process(run)
    monkeypatch.setattr(server.pages, "_next", 0.0)
    found = json.loads(answer(server, f"/{server.token}/document?since=x")[1])["document"]
    assert "live" not in found


def test_what_cannot_be_read_for_a_moment_leaves_the_last_page(
    server: Server, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "run.json").write_text("{")
    monkeypatch.setattr(server.pages, "_next", 0.0)
    assert document_in(answer(server, f"/{server.token}/")[1])["name"] == "r"


def test_a_hundred_silent_connections_are_refused_or_let_go_of(server: Server) -> None:
    silent = [socket.create_connection(server.server_address[:2]) for _ in range(100)]
    for each in silent:
        each.close()

    def answered() -> bool:
        try:
            return answer(server, f"/{server.token}/document?since=x")[0] == 200
        except (http.client.RemoteDisconnected, ConnectionResetError):
            return False

    wait_for(answered)


def test_a_trace_is_refused(tmp_path: Path) -> None:
    traces.write(tmp_path / "a.pt.trace.json", traces.small(0))
    with pytest.raises(HaiprofError, match="give the folder of a recorded run"):
        Pages(tmp_path, lambda: Analyzer(tmp_path / "a.pt.trace.json"))
