"""The edge of the HTTP server: what happens to every request, whatever route it takes.

Plain ASGI, because the framework's own middleware costs more than a small inference.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any

from deploykit.serving.inference import json_answer, send_answer
from deploykit.serving.logs import LOGGER
from deploykit.serving.protocol import WHOLE

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from deploykit.serving.dataplane import DataPlane, InferResult
    from deploykit.serving.inference import Inference
    from deploykit.serving.metrics import Metrics

# Asked for every few seconds by machines: not worth a line each.
_QUIET = {"health", "metrics"}
_ID_LENGTH = 128
# A request's id is this process's own and a number: unique as a random one, and far cheaper.
_PROCESS = uuid.uuid4().hex[:16]
_NUMBERS = itertools.count(1)
_STOPPED = json_answer({"error": "the server was stopped before the answer was ready", "code": "DK715"}, 503)


@dataclasses.dataclass(slots=True)
class Exchange:
    """What is known about one request and its answer, for log and metrics."""

    request_id: str
    started: float
    endpoint: str = "other"
    model: str = ""
    status: int = 0
    reason: str = ""
    message: str = ""
    result: InferResult | None = None
    non_finite: list[str] = dataclasses.field(default_factory=list)


class Edge:
    """Wraps an application: request ids, counting, timing, the log line, and no traceback to any client."""

    def __init__(self, app: ASGIApp, inference: Inference, plane: DataPlane, metrics: Metrics) -> None:
        """app: the routes. inference: answers the paths that it serves, past the routes."""
        self._app = app
        self._inference = inference
        self._plane = plane
        self._metrics = metrics
        self._log = logging.getLogger(LOGGER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(_request_id(scope), time.perf_counter())
        scope["deploykit"] = exchange

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message = {**message, "headers": [*message["headers"], *self._headers(exchange)]}
            await send(message)

        self._metrics.in_flight.inc()
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
        except Exception:  # a bug of ours: the whole story goes to the log, its number to the client
            self._log.exception("internal error", extra={"fields": {"request_id": exchange.request_id}})
            exchange.reason = "internal"
            if not exchange.status:  # the routes' own have answered already
                text = f"internal error; the server's log has it under {exchange.request_id}"
                await send_answer(json_answer({"error": text}, 500), receive, sending)
        finally:
            self._metrics.in_flight.dec()
            self._record(scope, exchange)

    def _headers(self, exchange: Exchange) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-request-id", exchange.request_id.encode("latin-1"))]
        if self._plane.draining:
            headers.append((b"connection", b"close"))
        return headers

    def _record(self, scope: Scope, exchange: Exchange) -> None:
        seconds = time.perf_counter() - exchange.started
        # 499: what nginx writes for a client that left before it was answered.
        status = exchange.status or 499
        self._metrics.answered(exchange.model, exchange.endpoint, status, seconds)
        if exchange.reason:
            self._metrics.refused(exchange.reason)
        if exchange.result is not None:
            self._metrics.computed(exchange.result, len(exchange.non_finite))
        level = logging.DEBUG if exchange.endpoint in _QUIET else logging.INFO
        if status >= 500 and exchange.endpoint not in _QUIET:
            level = logging.ERROR
        elif exchange.non_finite:
            level = logging.WARNING
        if self._log.isEnabledFor(level):
            self._log.log(level, "request", extra={"fields": _fields(scope, exchange, status, seconds)})


def _request_id(scope: Scope) -> str:
    """The caller's X-Request-Id, when it is one that a log line and a header can carry; a new one otherwise."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and 0 < len(value) <= _ID_LENGTH:
            text = str(value, "latin-1")
            if text.isascii() and text.isprintable():
                return text
    return f"{_PROCESS}-{next(_NUMBERS)}"


def _fields(scope: Scope, exchange: Exchange, status: int, seconds: float) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": scope["method"],
        "path": scope["path"][:200],
        "status": status,
        "ms": round(seconds * 1e3, 3),
    }
    if exchange.model:
        fields["model"] = exchange.model
    if exchange.result is not None:
        fields["queue_ms"] = round(exchange.result.queue_seconds * 1e3, 3)
        fields["compute_ms"] = round(exchange.result.compute_seconds * 1e3, 3)
        fields["rows"] = exchange.result.rows
        if exchange.result.batch_rows != exchange.result.rows:
            fields["batch_rows"] = exchange.result.batch_rows
    if exchange.non_finite:
        fields["non_finite_outputs"] = exchange.non_finite
    if exchange.reason:
        fields["reason"], fields["message"] = exchange.reason, exchange.message
    return fields
