"""Connections that say nothing, too slowly, too much, or what is no HTTP; without a network."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from deploykit.serving import protocol
from deploykit.serving.protocol import HEAD_BYTES, WHOLE, Connection


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.writes = 0
        self.closed = False
        self.aborted = False
        self.unread = 0

    def get_write_buffer_size(self) -> int:
        return self.unread

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.sent += data
        self.writes += 1

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def talk(*chunks: bytes, seconds: float = 0.0, app: Any = hello) -> Transport:
    """What a client gets that sends these chunks and then waits."""

    async def main() -> Transport:
        config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
        connection = Connection(config, ServerState(), {})
        transport = Transport()
        connection.connection_made(transport)
        for chunk in chunks:
            if not transport.closed:
                connection.data_received(chunk)
                await asyncio.sleep(0.01)
        await asyncio.sleep(seconds)
        by_the_server = transport.closed
        connection.connection_lost(None)
        transport.closed = by_the_server
        return transport

    return asyncio.run(main())


async def whole(scope: Any, receive: Any, send: Any) -> None:
    closing = [(b"connection", b"close")] if scope["path"] == "/close" else []
    await scope[WHOLE](200, [(b"x-one", b"1"), *closing], b"hi")


def refused(transport: Transport) -> tuple[int, str]:
    head, _, body = transport.sent.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert f"content-length: {len(body)}" in lines
    assert transport.closed
    return int(lines[0].split()[1]), json.loads(body)["error"]


def test_requests_one_after_the_other_are_answered():
    made = talk(b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert made.sent.count(b"HTTP/1.1 200 OK") == 2
    assert not made.closed


def test_a_head_without_end_is_refused():
    chunk = b"X-More: " + b"x" * 8000 + b"\r\n"
    status, why = refused(talk(b"GET / HTTP/1.1\r\n", *[chunk] * (HEAD_BYTES // len(chunk) + 3)))
    assert (status, why) == (431, "request line and headers are too long")


def test_a_large_body_in_the_piece_of_its_head_is_none_of_the_heads_bytes():
    size = 3 * HEAD_BYTES
    made = talk(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
    assert b"HTTP/1.1 200 OK" in made.sent


def test_what_is_no_http_is_refused():
    assert refused(talk(b"\x16\x03\x01\x02\x00\x01\x00")) == (400, "this is no HTTP request")


@pytest.fixture
def hurry(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.05)


@pytest.mark.usefixtures("hurry")
def test_a_head_that_takes_too_long_is_refused():
    assert refused(talk(b"GET / HTTP/1.1\r\nHost", seconds=0.2)) == (408, "the request's head took too long")


@pytest.mark.usefixtures("hurry")
def test_a_second_head_has_as_long_as_the_first():
    made = talk(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HT", seconds=0.2)
    assert made.sent.startswith(b"HTTP/1.1 200 OK")
    assert b"HTTP/1.1 408" in made.sent


@pytest.mark.usefixtures("hurry")
def test_a_client_that_says_nothing_is_left():
    made = talk(seconds=0.2)
    assert (made.sent, made.closed) == (b"", True)


@pytest.mark.usefixtures("hurry")
def test_a_connection_between_two_requests_may_rest():
    made = talk(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", seconds=0.2)
    assert not made.closed


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.usefixtures("hurry")
def test_empty_lines_do_not_keep_a_connection():
    assert talk(GET, b"\r\n", seconds=0.2).closed


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("second", [b"", GET])
def test_a_body_that_nobody_wants_has_a_while_to_end(second):
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
    assert talk(head, b"ab", seconds=0.2).closed
    made = talk(head, b"abcd", second, seconds=0.2)
    assert made.sent.count(b"HTTP/1.1 200 OK") == 1 + bool(second)
    assert not made.closed


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("reads", [False, True])
def test_an_answer_that_is_not_read_is_not_kept(monkeypatch, reads):
    left = iter(range(10_000, 0, -1))
    monkeypatch.setattr(Transport, "get_write_buffer_size", lambda _: next(left) if reads else 10_000)
    assert talk(GET, seconds=0.2).aborted is not reads


def test_a_whole_response_is_one_write_and_the_connection_stays():
    made = talk(*[b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"] * 2, app=whole)
    assert made.writes == 2
    one = made.sent[: len(made.sent) // 2].decode()
    assert one.startswith("HTTP/1.1 200 OK\r\n")
    assert one.endswith("x-one: 1\r\ncontent-length: 2\r\n\r\nhi")
    assert not made.closed


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /close HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: x\r\n\r\n",
    ],
)
def test_a_whole_response_closes_when_either_side_says_so(request_):
    made = talk(request_, app=whole)
    assert made.sent.lower().count(b"connection: close") == 1
    assert made.closed


def test_pipelined_requests_are_answered_in_order():
    made = talk(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3, app=whole)
    assert made.sent.count(b"HTTP/1.1 200 OK") == 3
