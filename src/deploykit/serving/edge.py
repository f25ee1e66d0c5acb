"""The edge of the HTTP server: what happens to every request, whatever route it takes.

Plain ASGI, because the framework's own middleware costs more than a small inference.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from deploykit.serving.exchange import Exchange, Recorder, request_id
from deploykit.serving.inference import json_answer, send_answer
from deploykit.serving.protocol import WHOLE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from deploykit.serving.dataplane import DataPlane
    from deploykit.serving.inference import Inference
    from deploykit.serving.metrics import Metrics

_STOPPED = json_answer({"error": "the server was stopped before the answer was ready", "code": "DK715"}, 503)


class Edge:
    """Wraps an application: request ids, counting, timing, the log line, and no traceback to any client."""

    def __init__(self, app: ASGIApp, inference: Inference, plane: DataPlane, metrics: Metrics) -> None:
        """app: the routes. inference: answers the paths that it serves, past the routes."""
        self._app = app
        self._inference = inference
        self._plane = plane
        self._recorder = Recorder(metrics)

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
            if self._inference.serves(scope["path"]):
                answer = await self._inference.answer(scope, receive, exchange)
                if WHOLE in scope and not answer.lingering:
                    exchange.status = answer.status
                    await scope[WHOLE](answer.status, [*answer.headers, *self._headers(exchange)], answer.body)
                else:
                    await send_answer(answer, receive, sending)
            else:
                await self._app(scope, receive, sending)
        except asyncio.CancelledError:  # the server stops and has waited long enough
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
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return request_id(str(value, "latin-1"))
    return request_id("")
