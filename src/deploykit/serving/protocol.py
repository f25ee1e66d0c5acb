"""The bytes of a connection: uvicorn's HTTP on llhttp, with limits that it leaves to a proxy in front."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio

# Of request line and headers, in bytes, and of the time that they may take, in seconds.
HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0
_CLOSING = (
    b'HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n{"error": "%s"}'
)


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
