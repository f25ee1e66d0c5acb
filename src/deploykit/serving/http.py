"""KServe v2 over HTTP: health, metadata, metrics and pages, as routes of plain Starlette.

A framework that validates by models of its own knows nothing of tensors. Inference itself goes past even this one:
see `inference`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deploykit.serving import errors, strict_json, try_page, v2
from deploykit.serving.access import Access
from deploykit.serving.bodies import read_body
from deploykit.serving.catalog import catalog_of
from deploykit.serving.edge import Edge
from deploykit.serving.inference import Inference, Limits, refusal
from deploykit.serving.metrics import CONTENT_TYPE, Metrics
from deploykit.serving.openapi import describe_api, docs_page
from deploykit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from deploykit.serving.dataplane import DataPlane
    from deploykit.serving.exchange import Exchange
    from deploykit.serving.model import Model

EXTENSIONS = ["binary_tensor_data", "schedule_policy", "model_repository", "statistics"]
_SMALL_BODY = 1 << 20


def create_app(
    plane: DataPlane, limits: Limits | None = None, metrics: Metrics | None = None, access: Access | None = None
) -> ASGIApp:
    """The server as an ASGI application: KServe v2, /predict, /metrics, /openapi.json and /docs."""
    metrics = metrics or Metrics(plane)
    limits = limits or Limits()
    routes = Routes(plane, metrics, limits)
    app = Starlette(
        routes=routes.table(),
        exception_handlers={errors.RequestError: _refuse, 404: _no_route, 405: _no_route, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return Edge(app, Inference(plane, limits), plane, metrics, access or Access(None))


class Routes:
    """The endpoints, each a method from request to response."""

    def __init__(self, plane: DataPlane, metrics: Metrics, limits: Limits) -> None:
        """metrics: what /metrics shows."""
        self._plane = plane
        self._metrics = metrics
        self._limits = limits

    def table(self) -> list[Route]:
        """Every path with its endpoint."""
        model = "/v2/models/{name}"
        version = "/v2/models/{name}/versions/{version}"
        return [
            self._route("/v2/health/live", "health", self.live),
            self._route("/v2/health/ready", "health", self.ready),
            self._route("/v2/models/stats", "metadata", self.all_statistics),
            *(self._route(f"{base}/ready", "health", self.model_ready) for base in (model, version)),
            *(self._route(base, "metadata", self.metadata) for base in (model, version)),
            *(self._route(f"{base}/stats", "metadata", self.statistics) for base in (model, version)),
            self._route("/v2", "metadata", self.server),
            self._route("/v2/repository/index", "repository", self.index, "POST"),
            self._route("/v2/repository/models/{name}/load", "repository", self.load, "POST"),
            self._route("/v2/repository/models/{name}/unload", "repository", self.unload, "POST"),
            self._route("/metrics", "metrics", self.metrics),
            self._route("/openapi.json", "docs", self.openapi),
            self._route("/docs", "docs", self.docs),
            self._route("/", "docs", self.page),
        ]

    def _route(
        self,
        path: str,
        endpoint: str,
        answer: Callable[[Request, Exchange], Awaitable[Response]],
        method: str = "GET",
    ) -> Route:
        async def handle(request: Request) -> Response:
            exchange: Exchange = request.scope["deploykit"]
            exchange.endpoint = endpoint
            return await answer(request, exchange)

        return Route(path, handle, methods=[method])

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

    async def statistics(self, request: Request, exchange: Exchange) -> Response:
        """What a model has done, in the form of the statistics extension."""
        model = self._ready_model(self._model(request), exchange)
        return _json({"model_stats": [model.statistics.as_dict(model.name, model.version)]})

    async def all_statistics(self, request: Request, exchange: Exchange) -> Response:
        """As `statistics`, for every model; the metadata of a model that is called `stats`, where there is one."""
        if self._plane.has("stats"):
            request.path_params["name"] = "stats"
            return await self.metadata(request, exchange)
        models = [model for model in self._plane.models if model.loaded]
        return _json({"model_stats": [model.statistics.as_dict(model.name, model.version) for model in models]})

    async def server(self, request: Request, exchange: Exchange) -> Response:
        """Name, version and extensions of this server."""
        return _json({"name": "deploykit", "version": __version__, "extensions": EXTENSIONS})

    async def index(self, request: Request, exchange: Exchange) -> Response:
        """What the repository has; with `{"ready": true}` what of it answers."""
        asked = await self._document(request)
        if type(ready := asked.get("ready", False)) is not bool:
            raise errors.UnreadableRequestError("ready must be true or false")
        rows = await catalog_of(self._plane).index(ready=ready)
        return Response(strict_json.dump([dataclasses.asdict(row) for row in rows]), media_type="application/json")

    async def load(self, request: Request, exchange: Exchange) -> Response:
        """Loads a model of the repository, or loads it again."""
        await self._document(request)
        await catalog_of(self._plane).load(request.path_params["name"])
        return Response()

    async def unload(self, request: Request, exchange: Exchange) -> Response:
        """Takes a model out once its requests are answered."""
        await self._document(request)
        await catalog_of(self._plane).unload(request.path_params["name"])
        return Response()

    async def _document(self, request: Request) -> dict[str, Any]:
        """The JSON object of a small request; an empty body is one, too."""
        headers = dict(request.scope["headers"])
        body = await read_body(headers, request.receive, _SMALL_BODY, self._limits.idle_seconds)
        document = strict_json.parse(body) if body.strip() else {}
        if not isinstance(document, dict):
            raise errors.UnreadableRequestError("the request must be a JSON object, or nothing")
        return document

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

    async def page(self, request: Request, exchange: Exchange) -> Response:
        """A page to try the models."""
        text, policy = try_page.page(self._plane)
        return Response(text, headers={"Content-Security-Policy": policy}, media_type="text/html")


def _json(document: dict[str, Any], status: int = 200) -> Response:
    return Response(strict_json.dump(document), status, media_type="application/json")


async def _refuse(request: Request, problem: Exception) -> Response:
    """A refusal as the protocol's error object."""
    if not isinstance(problem, errors.RequestError):
        raise problem
    answer = refusal(problem, request.scope["deploykit"])
    return Response(answer.body, answer.status, {name.decode(): value.decode() for name, value in answer.headers})


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
