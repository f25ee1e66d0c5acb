"""The bytes of a connection: uvicorn's HTTP on llhttp, with limits that it leaves to a proxy in front."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

# Of request line and headers, in bytes, and of the time that they may take, in seconds.
HEAD_BYTES = 64 << 10
HEAD_SECONDS = 20.0
# How long a client may read nothing of an answer that waits for it.
UNREAD_SECONDS = 20.0
_CLOSING = (
    b'HTTP/1.1 %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n{"error": "%s"}'
)
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
# Where a request's scope has what writes its response at once.
WHOLE = "deploykit.whole"


class Whole:
    """Writes a response that is complete: head and body in one call of the system, where ASGI makes two."""

    __slots__ = ("_connection", "_cycle")

    def __init__(self, cycle: RequestResponseCycle, connection: Connection) -> None:
        """cycle: uvicorn's, of the request."""
        self._cycle = cycle
        self._connection = connection

    @property
    def left(self) -> bool:
        """Whether the client is gone."""
        return self._cycle.disconnected

    def cancel_when_left(self) -> None:
        """The running task is cancelled when the client leaves from now on; to end its side alone is to leave, too."""
        self._connection.waiting = (asyncio.current_task(), self._cycle)

    def keep(self) -> None:
        """The running task is not cancelled any more."""
        self._connection.waiting = None

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


def _without_upgrade(data: bytes) -> bytes:
    """Bytes of a head that offer no other protocol.

    None is taken, and a server that takes none goes on as if nothing was offered; the parser would stop before the
    body. Java's and curl's clients offer HTTP/2 with every request.
    """
    if b"pgrade:" not in data and b"PGRADE:" not in data:
        return data
    head, blank, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nX-Upgrade:", head) + blank + rest


class Connection(HttpToolsProtocol):
    """One connection. A head that is too large, too slow or no HTTP is answered and the connection closed."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        """As uvicorn makes it."""
        super().__init__(*arguments, **more)
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        # For what is left of a request that is answered, and for an answer that is not read.
        self._rest_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        # The task that answers the current request, while its client's leaving is to cancel it.
        self.waiting: tuple[asyncio.Task[Any] | None, RequestResponseCycle] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client that says nothing is cut off, too."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._head_arrived()
        self._rest_arrived()
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
        super().connection_lost(exc)
        if self.waiting is not None:
            task, cycle = self.waiting
            cycle.disconnected = True  # uvicorn's own mark is for the last request of a pipeline
            if task is not None:
                task.cancel()

    def data_received(self, data: bytes) -> None:
        """Counts the bytes of a head before they are parsed."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES + len(data):
                self._refuse_head()
                return
            data = _without_upgrade(data)
        super().data_received(data)
        # Empty lines begin no request, and would keep an idle connection open for ever.
        if self._in_head and self._head_bytes and self._head_timer is None and not self.transport.is_closing():
            self._expect_head()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        if self._head_timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """The head is complete; the body has limits of its own."""
        # What has come may have a piece of the body, so that a head is measured when it may be too long.
        if self._head_bytes > HEAD_BYTES and self._head_size() > HEAD_BYTES:
            self._refuse_head()
            raise ValueError("the head is too long")  # ends the parser, and is answered already
        self._head_arrived()
        self._in_head = False
        super().on_headers_complete()
        scope: dict[str, Any] = self.cycle.scope  # type: ignore[assignment]
        scope[WHOLE] = Whole(self.cycle, self)

    def on_message_complete(self) -> None:
        """What comes next is the head of another request."""
        super().on_message_complete()
        self._rest_arrived()
        self._in_head, self._head_bytes = True, 0

    def on_response_complete(self) -> None:
        """A client that still sends what is refused, or does not read its answer, has a while for it."""
        super().on_response_complete()
        # The last request of a pipeline may be another one than the one that was answered.
        if self.cycle.response_complete and not self._in_head and self._rest_timer is None:
            self._rest_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)
        if self._unread_timer is None:
            self._await_reader()

    def _await_reader(self, before: int = -1) -> None:
        """Ends a connection whose client has read nothing of its answer since the last look: it is kept in memory."""
        self._unread_timer = None
        left = self.transport.get_write_buffer_size()
        if left and left == before:
            self.transport.abort()
        elif left:
            self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self._await_reader, left)

    def _rest_arrived(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

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

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _refuse_head(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large", b"request line and headers are too long")

    def _refuse(self, status: bytes, why: bytes) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(_CLOSING % (status, len(why) + len(b'{"error": ""}'), why))
        self.transport.close()
