"""The bytes of a connection: uvicorn's HTTP on llhttp, with limits that it leaves to a proxy in front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# Of request line and headers, in bytes, and of the time that they may take, in seconds.
HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0
_CLOSING = (
    b'HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n{"error": "%s"}'
)


# Where a request's scope has what writes its response at once.
WHOLE = "deploykit.whole"


class Whole:
    """Writes a response that is complete: head and body in one call of the system, where ASGI makes two."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        """cycle: uvicorn's, of the request."""
        self._cycle = cycle

    async def __call__(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Names and values are ours and are not checked; content-length is added. Nothing for a client that left."""
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        parts, closing = [STATUS_LINE[status]], False
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
            if name == b"connection" and value == b"close":
                cycle.keep_alive, closing = False, True
        if not cycle.keep_alive and not closing:
            parts.append(b"connection: close\r\n")
        parts.append(b"content-length: %d\r\n\r\n" % len(body))
        parts.append(body)
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"".join(parts))
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


class Connection(HttpToolsProtocol):
    """One connection. A head that is too large, too slow or no HTTP is answered and the connection closed."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """As uvicorn makes it."""
        super().__init__(*arguments, **more)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client that says nothing is cut off, too."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._head_arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Counts the bytes of a head before they are parsed."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES + len(data):
                self._refuse(b"431 Request Header Fields Too Large", b"request line and headers are too long")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        if self._head_timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """The head is complete; the body has limits of its own."""
        self._head_arrived()
        self._in_head = False
        super().on_headers_complete()
        scope: dict[str, Any] = self.cycle.scope  # type: ignore[assignment]
        scope[WHOLE] = Whole(self.cycle)

    def on_message_complete(self) -> None:
        """What comes next is the head of another request."""
        super().on_message_complete()
        self._in_head, self._head_bytes = True, 0

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP."""
        self._refuse(b"400 Bad Request", b"this is no HTTP request")

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_late)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            self._refuse(b"408 Request Timeout", b"the request's head took too long")
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, status: bytes, why: bytes) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(_CLOSING % (status, len(why) + len(b'{"error": ""}'), why))
        self.transport.close()
