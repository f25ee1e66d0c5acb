"""The edge of the HTTP server: what happens to every request, whatever route it takes.

Plain ASGI, because the framework's own middleware costs more than a small inference.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from deploykit.serving.access import OPEN_PATHS
from deploykit.serving.exchange import Exchange, Recorder, request_id
from deploykit.serving.inference import json_answer, send_answer
from deploykit.serving.protocol import WHOLE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from deploykit.serving.access import Access
    from deploykit.serving.dataplane import DataPlane
    from deploykit.serving.inference import Inference
    from deploykit.serving.metrics import Metrics

_STOPPED = json_answer({"error": "the server was stopped before the answer was ready", "code": "DK715"}, 503)
_NO_TOKEN = json_answer(
    {"error": "this server wants a token: Authorization: Bearer TOKEN", "code": "DK731"},
    401,
    (b"www-authenticate", b"Bearer"),
    (b"connection", b"close"),
    lingering=True,
)


class Edge:
    """Wraps an application: request ids, counting, timing, the log line, and no traceback to any client."""

    def __init__(self, app: ASGIApp, inference: Inference, plane: DataPlane, metrics: Metrics, access: Access) -> None:
        """app: the routes. inference: answers the paths that it serves, past the routes. access: who may ask."""
        self._app = app
        self._inference = inference
        self._plane = plane
        self._recorder = Recorder(metrics)
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(_request_id(scope), scope["method"], scope["path"])
        scope["deploykit"] = exchange

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message = {**message, "headers": [*message["headers"], *self._headers(exchange)]}
            await send(message)

        self._recorder.began()
        try:
            if scope["path"] not in OPEN_PATHS and not self._access.allows(_header(scope, b"authorization")):
                exchange.reason = "token"
                await send_answer(_NO_TOKEN, receive, sending)
            elif self._inference.serves(scope["path"]):
                whole = scope.get(WHOLE)
                if whole is not None:
                    whole.cancel_when_left()
                answer = await self._inference.answer(scope, receive, exchange)
                if whole is not None:
                    whole.keep()
                if whole is not None and scope["method"] != "HEAD" and not answer.lingering:
                    exchange.status = answer.status
                    await whole(answer.status, [*answer.headers, *self._headers(exchange)], answer.body)
                else:
                    await send_answer(answer, receive, sending)
            else:
                await self._app(scope, receive, sending)
        except asyncio.CancelledError:  # the client left, or the server stops and has waited long enough
            if WHOLE in scope and scope[WHOLE].left:
                exchange.reason = "left"
            else:
                self._plane.cut_off += 1
                exchange.reason = "stopped"
                if not exchange.status:
                    await send_answer(_STOPPED, receive, sending)
        except Exception:  # a bug of ours
            text = self._recorder.failed(exchange)
            if not exchange.status:  # the routes' own have answered already
                await send_answer(json_answer({"error": text}, 500), receive, sending)
        finally:
            # 499: what nginx writes for a client that left before it was answered.
            status = exchange.status = exchange.status or 499
            self._recorder.ended(exchange, server_fault=isinstance(status, int) and status >= 500)

    def _headers(self, exchange: Exchange) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-request-id", exchange.request_id.encode("latin-1"))]
        if self._plane.draining:
            headers.append((b"connection", b"close"))
        return headers


def _request_id(scope: Scope) -> str:
    return request_id(str(_header(scope, b"x-request-id") or b"", "latin-1"))


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    for name, value in scope["headers"]:
        if name == wanted:
            found: bytes = value
            return found
    return None
