"""KServe v2 over HTTP: routes that translate between bytes and the data plane, and nothing else.

Plain Starlette: a framework that validates by models of its own would cost more than a small inference, and its
messages know nothing of tensors.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deploykit.serving import beginner, errors, strict_json, v2
from deploykit.serving.bodies import IDLE_SECONDS, read_body
from deploykit.serving.edge import Edge
from deploykit.serving.metrics import CONTENT_TYPE, Metrics
from deploykit.serving.openapi import describe_api, docs_page
from deploykit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from deploykit.serving.dataplane import DataPlane, InferResult
    from deploykit.serving.edge import Exchange
    from deploykit.serving.model import Model

EXTENSIONS = ["binary_tensor_data", "schedule_policy"]
HEADER_LENGTH = "Inference-Header-Content-Length"
NON_FINITE = "X-Non-Finite-Outputs"
# How long, in seconds, a client whose request was refused half-way may go on sending before it is cut off.
_LINGER_SECONDS = 10.0

STATUS: dict[type[errors.RequestError], int] = {
    errors.UnreadableRequestError: 400,
    errors.UnfitInputError: 400,
    errors.UnsupportedRequestError: 400,
    errors.InferenceError: 400,
    errors.UnknownModelError: 404,
    errors.SlowRequestError: 408,
    errors.TooLargeError: 413,
    errors.EngineError: 500,
    errors.NotReadyError: 503,
    errors.ExpiredError: 504,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """max_body: bytes of a request, as sent and decompressed. idle_seconds: silence in the middle of a request."""

    max_body: int = 64 << 20
    idle_seconds: float = IDLE_SECONDS


def create_app(plane: DataPlane, limits: Limits | None = None) -> ASGIApp:
    """The server as an ASGI application: KServe v2, /predict, /metrics, /openapi.json and /docs."""
    metrics = Metrics(plane)
    routes = Routes(plane, metrics, limits or Limits())
    app = Starlette(
        routes=routes.table(),
        exception_handlers={errors.RequestError: _refuse, 404: _no_route, 405: _no_route, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return Edge(app, plane, metrics)


class Routes:
    """The endpoints, each a method from request to response."""

    def __init__(self, plane: DataPlane, metrics: Metrics, limits: Limits) -> None:
        """metrics: what /metrics shows."""
        self._plane = plane
        self._metrics = metrics
        self._limits = limits

    def table(self) -> list[Route]:
        """Every path with its endpoint, the hottest first: they are tried in this order."""
        model = "/v2/models/{name}"
        version = "/v2/models/{name}/versions/{version}"
        return [
            *(self._route(f"{base}/infer", "POST", "infer", self.infer) for base in (model, version)),
            self._route("/predict", "POST", "predict", self.predict),
            self._route("/v2/health/live", "GET", "health", self.live),
            self._route("/v2/health/ready", "GET", "health", self.ready),
            *(self._route(f"{base}/ready", "GET", "health", self.model_ready) for base in (model, version)),
            *(self._route(base, "GET", "metadata", self.metadata) for base in (model, version)),
            self._route("/v2", "GET", "metadata", self.server),
            self._route("/metrics", "GET", "metrics", self.metrics),
            self._route("/openapi.json", "GET", "docs", self.openapi),
            self._route("/docs", "GET", "docs", self.docs),
        ]

    def _route(
        self, path: str, method: str, endpoint: str, answer: Callable[[Request, Exchange], Awaitable[Response]]
    ) -> Route:
        async def handle(request: Request) -> Response:
            exchange: Exchange = request.scope["deploykit"]
            exchange.endpoint = endpoint
            return await answer(request, exchange)

        return Route(path, handle, methods=[method])

    async def infer(self, request: Request, exchange: Exchange) -> Response:
        """Open Inference Protocol: POST /v2/models/{name}[/versions/{version}]/infer."""
        model = self._ready_model(self._model(request), exchange)
        header_length = _header_length(request)
        body = await self._body(request)
        asked, answering = v2.read_request(body, header_length, model)
        exchange.result = result = await self._plane.infer(model, asked)
        content, length, exchange.non_finite = v2.write_response(result, answering)
        return self._answer(content, exchange, result, header_length=length)

    async def predict(self, request: Request, exchange: Exchange) -> Response:
        """The short form: POST /predict."""
        model = self._ready_model(self._plane.only_model(), exchange)
        asked = beginner.read_request(await self._body(request), model)
        exchange.result = result = await self._plane.infer(model, asked)
        content, exchange.non_finite = beginner.write_response(result)
        return self._answer(content, exchange, result)

    async def _body(self, request: Request) -> bytearray:
        return await read_body(request, self._limits.max_body, self._limits.idle_seconds)

    def _answer(
        self, content: bytes, exchange: Exchange, result: InferResult, header_length: int | None = None
    ) -> Response:
        queue, compute = result.queue_seconds * 1e3, result.compute_seconds * 1e3
        headers = {"Server-Timing": f"queue;dur={queue:.3f}, compute;dur={compute:.3f}"}
        if exchange.non_finite:
            headers[NON_FINITE] = str(len(exchange.non_finite))
        if header_length is None:
            return Response(content, headers=headers, media_type="application/json")
        headers[HEADER_LENGTH] = str(header_length)
        return Response(content, headers=headers, media_type="application/octet-stream")

    def _model(self, request: Request) -> Model:
        parameters = request.path_params
        return self._plane.model(parameters["name"], parameters.get("version", ""))

    def _ready_model(self, model: Model, exchange: Exchange) -> Model:
        exchange.model = model.name
        if not model.loaded:
            raise model.not_ready()
        return model

    async def live(self, request: Request, exchange: Exchange) -> Response:
        """Whether the process answers at all."""
        return _json({"live": True})

    async def ready(self, request: Request, exchange: Exchange) -> Response:
        """Whether requests should be sent here: 503 while a model loads and while the server stops."""
        return _json({"ready": self._plane.ready}, 200 if self._plane.ready else 503)

    async def model_ready(self, request: Request, exchange: Exchange) -> Response:
        """As `ready`, for one model."""
        model = self._model(request)
        ready = self._plane.is_ready(model)
        return _json({"name": model.name, "version": model.version, "ready": ready}, 200 if ready else 503)

    async def metadata(self, request: Request, exchange: Exchange) -> Response:
        """Inputs, outputs, versions and platform of a model."""
        model = self._ready_model(self._model(request), exchange)
        return _json(v2.metadata(model, self._plane.versions(model.name)))

    async def server(self, request: Request, exchange: Exchange) -> Response:
        """Name, version and extensions of this server."""
        return _json({"name": "deploykit", "version": __version__, "extensions": EXTENSIONS})

    async def metrics(self, request: Request, exchange: Exchange) -> Response:
        """Prometheus' text format."""
        return Response(self._metrics.page(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, request: Request, exchange: Exchange) -> Response:
        """The OpenAPI description, with the datatypes and shapes of the models that are served."""
        return _json(describe_api(self._plane, self._limits.max_body))

    async def docs(self, request: Request, exchange: Exchange) -> Response:
        """The OpenAPI description as a page that loads nothing from anywhere."""
        page = docs_page(describe_api(self._plane, self._limits.max_body), str(request.base_url))
        policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        return Response(page, headers=policy, media_type="text/html")


def _json(document: dict[str, Any], status: int = 200) -> Response:
    return Response(strict_json.dump(document), status, media_type="application/json")


def _header_length(request: Request) -> int | None:
    text = request.headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise errors.UnreadableRequestError(f"{HEADER_LENGTH} must be a number of bytes")
    return int(text)


def sentence(problem: errors.RequestError) -> str:
    """The error as one text for a client."""
    text = problem.message
    if problem.context:
        text += f" ({'; '.join(problem.context)})"
    return f"{text}; {problem.hint}" if problem.hint else text


async def _refuse(request: Request, problem: Exception) -> Response:
    """A refusal or failure of one request as the protocol's error object."""
    if not isinstance(problem, errors.RequestError):
        raise problem
    exchange: Exchange = request.scope["deploykit"]
    exchange.reason, exchange.message = problem.code, sentence(problem)
    status = next(STATUS[kind] for kind in type(problem).__mro__ if kind in STATUS)
    body = {"error": exchange.message, "code": problem.code}
    if isinstance(problem, (errors.TooLargeError, errors.SlowRequestError)):
        return _Lingering(body, status, headers={"Connection": "close"})
    return JSONResponse(body, status, headers={"Retry-After": "1"} if status == 503 else None)


async def _no_route(request: Request, problem: Exception) -> Response:
    """A path or method that is not served, in the same form as every error."""
    exchange: Exchange = request.scope["deploykit"]
    status = getattr(problem, "status_code", 404)
    what = "there is nothing at" if status == 404 else f"{request.method} is not possible at"
    exchange.reason, exchange.message = "route", f"{what} {request.url.path[:200]}"
    headers = getattr(problem, "headers", None)
    return JSONResponse({"error": f"{exchange.message}; /docs lists what there is"}, status, headers=headers)


async def _failed(request: Request, problem: Exception) -> Response:
    """A bug of ours: where its traceback is, and nothing of it."""
    exchange: Exchange = request.scope["deploykit"]
    return JSONResponse({"error": f"internal error; the server's log has it under {exchange.request_id}"}, 500)


class _Lingering(JSONResponse):
    """A refusal that comes before the request was read.

    Closing at once would reset the connection, and a client that is still sending would never see the reason: what it
    sends is thrown away for a while first.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the whole answer, then reads on until the client stops or its time is over."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                    pass
        await send({"type": "http.response.body", "body": b""})
