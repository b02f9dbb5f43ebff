"""The endpoint, and clients that mean no good."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import socket
from collections.abc import Iterator

import pytest
from exported import busy_node
from recording import wait_for

from haiprof.recorder.metrics import http_server
from haiprof.recorder.metrics.exposition import OPENMETRICS, TEXT, render
from haiprof.recorder.metrics.families import Snapshot
from haiprof.recorder.metrics.http_server import HttpServer


class Renders:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, snapshot: Snapshot, openmetrics: bool) -> tuple[str, bytes]:
        self.count += 1
        return (OPENMETRICS if openmetrics else TEXT), render(snapshot, openmetrics=openmetrics)


@pytest.fixture
def renders() -> Renders:
    return Renders()


@pytest.fixture
def server(renders: Renders) -> Iterator[HttpServer]:
    served = HttpServer(("127.0.0.1", 0), renders)
    served.publish(busy_node(1).snapshot([]))
    yield served
    served.close()


def get(server: HttpServer, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    connection.request(
        "GET", "/metrics", headers={k.replace("_", "-"): headers[k] for k in headers}
    )
    return connection.getresponse()


def raw(server: HttpServer, request: bytes) -> bytes:
    with socket.create_connection(server.address, timeout=30) as client:
        client.sendall(request)
        answer = b""
        while more := client.recv(65536):
            answer += more
        return answer


def test_it_gives_what_is_asked_for(server: HttpServer) -> None:
    plain = get(server)
    assert (plain.status, plain.headers["Content-Type"]) == (200, TEXT)
    text = plain.read()
    assert b"haiprof_steps_total{" in text
    openmetrics = get(server, Accept="application/openmetrics-text;version=1.0.0,*/*;q=0.1")
    assert openmetrics.headers["Content-Type"] == OPENMETRICS
    assert openmetrics.read().endswith(b"# EOF\n")
    packed = get(server, Accept_Encoding="gzip")
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.read()) == text


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\r\n\r\n", b"400"),
        (b"\x00\xff\xfe\n\n", b"400"),
        (b"GET /metrics SPDY/9\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\n" + b"a" * 20_000, b"431"),
    ],
)
def test_other_requests_are_answered_in_one_line(
    server: HttpServer, request_: bytes, status: bytes
) -> None:
    with contextlib.suppress(ConnectionError):  # what it did not read may cut the answer off
        answer = raw(server, request_)
        assert answer.split(b" ")[1] == status
        if request_.startswith(b"HEAD"):
            assert answer.endswith(b"\r\n\r\n")
    assert get(server).status == 200


def test_without_figures_it_says_so() -> None:
    served = HttpServer(("127.0.0.1", 0), Renders())
    try:
        assert get(served).status == 503
    finally:
        served.close()


def test_clients_that_say_nothing_keep_nobody_out(server: HttpServer) -> None:
    idle = [socket.create_connection(server.address) for _ in range(100)]
    assert get(server).status == 200
    for client in idle:
        client.close()
    assert get(server).status == 200


def test_a_slow_client_is_left_after_a_while(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_LONGEST_S", 0.1)
    with socket.create_connection(server.address, timeout=30) as slow:
        slow.sendall(b"GET /met")
        assert slow.recv(1) == b"", "it hung up"


def test_a_client_that_reads_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_LONGEST_S", 0.5)
    size = 50_000_000
    served = HttpServer(("127.0.0.1", 0), lambda *_: (TEXT, bytes(size)))
    served.publish(busy_node(1).snapshot([]))
    try:
        with socket.create_connection(served.address, timeout=30) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert client.recv(8) == b"HTTP/1.1"
            wait_for(lambda: not served.connections, what="the connection's end")
            received = 0
            while more := client.recv(1 << 20):
                received += len(more)
            assert received < size
    finally:
        served.close()


def test_many_questions_cost_one_rendering(server: HttpServer, renders: Renders) -> None:
    for _ in range(50):
        assert get(server).status == 200
    assert renders.count == 1
    server.publish(busy_node(1).snapshot([]))
    get(server).read()
    assert renders.count == 2


def test_a_text_that_cannot_be_made_ends_nothing() -> None:
    def fails(snapshot: Snapshot, openmetrics: bool) -> tuple[str, bytes]:
        raise RuntimeError

    served = HttpServer(("127.0.0.1", 0), fails)
    served.publish(busy_node(1).snapshot([]))
    try:
        for _ in range(2):
            assert raw(served, b"GET /metrics HTTP/1.1\r\n\r\n") == b""
    finally:
        served.close()


def test_its_address_is_free_again_at_once(server: HttpServer) -> None:
    get(server).read()
    with pytest.raises(OSError, match="in use"):
        HttpServer(server.address, Renders())
    host = server.address[0]
    other = HttpServer((host, 0), Renders())
    address = other.address
    other.close()
    HttpServer(address, Renders()).close()
