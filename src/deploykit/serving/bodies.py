"""Reading request bodies: bounded in size, in time and after decompression."""

from __future__ import annotations

import asyncio
import zlib
from typing import TYPE_CHECKING

from deploykit.serving.errors import SlowRequestError, TooLargeError, UnreadableRequestError, UnsupportedRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Receive

IDLE_SECONDS = 20.0
_ZLIB_WINDOW = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_STEP = 1 << 16


async def read_body(
    headers: Mapping[bytes, bytes], receive: Receive, limit: int, idle_seconds: float = IDLE_SECONDS
) -> bytes | bytearray:
    """The whole body, decompressed.

    headers: of the request, names in lower case. receive: ASGI's. limit: bytes, both as sent and decompressed.
    idle_seconds: how long the client may send nothing.
    Raises TooLargeError (by the announced length, before a byte is read, and while reading), SlowRequestError,
    UnsupportedRequestError for an encoding, UnreadableRequestError when it is damaged.
    """
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit, f"the request announces {int(announced):,} bytes")
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1").strip().lower()
    if encoding not in ("identity", "", *_ZLIB_WINDOW):
        raise UnsupportedRequestError(f"Content-Encoding {encoding[:40]!r} is not supported; use gzip, deflate or none")
    unpack = _Inflater(encoding, limit) if encoding in _ZLIB_WINDOW else None
    body: bytes | bytearray = b""
    received = 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(idle_seconds) as patience:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise SlowRequestError("the client left in the middle of its request")
                chunk, more = message.get("body", b""), message.get("more_body", False)
                received += len(chunk)
                if received > limit:
                    raise _too_large(limit, "the request has more")
                if unpack is not None:
                    chunk = unpack.add(chunk, limit - len(body))
                if not body and not more:
                    body = chunk  # the usual request comes in one piece, and is not copied
                else:
                    body = body if isinstance(body, bytearray) else bytearray(body)
                    body += chunk
                if not more:
                    break
                patience.reschedule(loop.time() + idle_seconds)
    except TimeoutError as problem:
        raise SlowRequestError(f"nothing came for {idle_seconds:g} s in the middle of the request") from problem
    if unpack is not None:
        unpack.check_complete()
    return body


def _too_large(limit: int, what: str) -> TooLargeError:
    return TooLargeError(
        f"{what}, and this server takes {limit:,} bytes",
        hint="send less at once, or start the server with a larger --max-body-mb",
    )


class _Inflater:
    """Decompression that stops at the limit: a small request must not become gigabytes."""

    def __init__(self, encoding: str, limit: int) -> None:
        self._zlib = zlib.decompressobj(_ZLIB_WINDOW[encoding])
        self._limit = limit

    def add(self, chunk: bytes, room: int) -> bytearray:
        found = bytearray()
        try:
            while chunk and not self._zlib.eof:
                found += self._zlib.decompress(chunk, _STEP)
                if len(found) > room:
                    raise _too_large(self._limit, "the request unpacks to more")
                chunk = self._zlib.unconsumed_tail
        except zlib.error as problem:
            raise UnreadableRequestError(f"the compressed body is damaged: {problem}") from problem
        return found

    def check_complete(self) -> None:
        if not self._zlib.eof:
            raise UnreadableRequestError("the compressed body is cut off")
