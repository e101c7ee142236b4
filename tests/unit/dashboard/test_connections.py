"""Sockets that send nothing keep nobody out, however many, and are closed in time."""

import resource
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import pytest
from vramscope.dashboard import serve
from vramscope.dashboard.server.connections import (
    Server,
    most_connections,
)
from vramscope.dashboard.server.security import Access

PATIENCE_S = 60
"""An answer takes milliseconds; where one never comes the test fails by then."""


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """Enough of them for both ends of every connection, which are in one process here."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < 4096:
        pytest.skip(f"this process may have no more than {most} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


@contextmanager
def running(server: Any) -> Iterator[int]:
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server.effective_port
    finally:
        # Its loop ends when there is nothing left to wait for: the clients are gone by now.
        server.close()
        thread.join(PATIENCE_S)
        server.task_dispatcher.shutdown()
    assert not thread.is_alive()


def plain(_: Any, start: Callable[..., Any]) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
    return [b"ok"]


def bound() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


def status(port: int, path: str = "/") -> int:
    asked = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        asked.request("GET", path)
        return asked.getresponse().status
    finally:
        asked.close()


def half_open(held: ExitStack, port: int, n: int, begun: bytes = b"") -> list[socket.socket]:
    made = []
    for _ in range(n):
        each = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
        if begun:
            each.sendall(begun)
        made.append(each)
    return made


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
@pytest.mark.parametrize("n", [200, 1400])
def test_half_open_sockets_keep_nobody_out(tmp_path: Path, n: int, begun: bytes) -> None:
    with running(serve(tmp_path, Access("token"))) as port, ExitStack() as held:
        half_open(held, port, n, begun)

        assert status(port) == 401
        assert status(port, "/?token=token") == 302


def test_a_connection_that_a_browser_keeps_outlives_those_that_ask_nothing() -> None:
    with running(Server(plain, bound(), threads=2)) as port, ExitStack() as held:
        kept = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        held.callback(kept.close)
        kept.request("GET", "/")
        kept.getresponse().read()
        own = kept.sock
        half_open(held, port, 1200)
        kept.request("GET", "/")

        assert kept.getresponse().read() == b"ok"
        assert kept.sock is own


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\nhalf"])
def test_a_request_that_never_becomes_whole_ends(begun: bytes) -> None:
    server = Server(plain, bound(), request_within_s=0, threads=2)
    server.adj.cleanup_interval = 0
    with running(server) as port, ExitStack() as held:
        (waiting,) = half_open(held, port, 1, begun)

        # The server reads on whenever it wakes: each request wakes it.
        while waiting in server_side(server, waiting):
            assert status(port) == 200
        with suppress(ConnectionResetError):
            assert waiting.recv(1000) == b""


def server_side(server: Any, client: socket.socket) -> list[socket.socket]:
    """*client*, as long as the server holds the other end."""
    return [client for each in list(server.active_channels.values()) if each.addr == client.getsockname()]


def test_a_request_in_several_pieces_is_answered() -> None:
    with running(Server(plain, bound(), threads=2)) as port, ExitStack() as held:
        (slow,) = half_open(held, port, 1)
        for piece in (b"GET / HT", b"TP/1.1\r\nHos", b"t: a\r\n", b"\r\n"):
            slow.sendall(piece)

        assert slow.recv(1000).startswith(b"HTTP/1.1 200")


def test_requests_that_wait_for_another_are_no_news(caplog: pytest.LogCaptureFixture) -> None:
    may_go_on = Event()

    def slow(environ: Any, start: Callable[..., Any]) -> list[bytes]:
        may_go_on.wait(PATIENCE_S)
        return plain(environ, start)

    with running(Server(slow, bound(), threads=1)) as port, ThreadPoolExecutor(4) as viewers:
        statuses = [viewers.submit(status, port) for _ in range(4)]
        Timer(0.5, may_go_on.set).start()

        assert [each.result() for each in statuses] == [200] * 4
    assert not caplog.records


def test_there_are_always_descriptors_left() -> None:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)

    assert 50 <= most_connections() <= max(allowed // 2, 50)
