"""KServe v2 over gRPC: the calls of the protocol, translated to the data plane, on the event loop of HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from deploykit.errors import UsageError
from deploykit.serving import errors, grpc_tensors, v2
from deploykit.serving.catalog import catalog_of
from deploykit.serving.exchange import Exchange, Recorder, request_id
from deploykit.serving.inference import sentence
from deploykit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from deploykit.serving.access import Access
    from deploykit.serving.dataplane import DataPlane
    from deploykit.serving.inference import Limits
    from deploykit.serving.metrics import Metrics
    from deploykit.serving.model import Model

SERVICE = "inference.GRPCInferenceService"
EXTENSIONS = ["schedule_policy", "model_repository", "statistics"]
_CODES: dict[type[errors.RequestError], grpc.StatusCode] = {
    errors.UnreadableRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnfitInputError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedRequestError: grpc.StatusCode.UNIMPLEMENTED,
    errors.InferenceError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.LoadError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnauthorizedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.ForbiddenError: grpc.StatusCode.PERMISSION_DENIED,
    errors.UnknownModelError: grpc.StatusCode.NOT_FOUND,
    errors.TooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.EngineError: grpc.StatusCode.INTERNAL,
    errors.NotReadyError: grpc.StatusCode.UNAVAILABLE,
    errors.ExpiredError: grpc.StatusCode.DEADLINE_EXCEEDED,
}
_OPEN = {"ServerLive", "ServerReady"}
_SERVER_FAULTS = {"INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED"}


class Service:
    """The calls; each takes a message and gives one."""

    def __init__(self, plane: DataPlane, metrics: Metrics, access: Access) -> None:
        """plane: the models. metrics: counted together with HTTP's. access: who may ask."""
        from tritonclient.grpc import service_pb2

        self._messages = service_pb2
        self._plane = plane
        self._recorder = Recorder(metrics)
        self._access = access

    def calls(self) -> dict[str, tuple[str, Callable[[Any, Exchange, Any], Awaitable[Any]]]]:
        """By method: what its endpoint is called in metrics, and what answers it."""
        return {
            "ModelInfer": ("infer", self.infer),
            "ServerLive": ("health", self.live),
            "ServerReady": ("health", self.ready),
            "ModelReady": ("health", self.model_ready),
            "ServerMetadata": ("metadata", self.server),
            "ModelMetadata": ("metadata", self.metadata),
            "ModelStatistics": ("metadata", self.statistics),
            "RepositoryIndex": ("repository", self.index),
            "RepositoryModelLoad": ("repository", self.load),
            "RepositoryModelUnload": ("repository", self.unload),
        }

    def handler(self) -> grpc.GenericRpcHandler:
        """What a grpc server takes."""
        methods = {}
        described = self._messages.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
        for name, (endpoint, answer) in self.calls().items():
            taken = getattr(self._messages, described[name].input_type.name)
            methods[name] = grpc.unary_unary_rpc_method_handler(
                self._recorded(name, endpoint, answer, taken.FromString),
                response_serializer=lambda message: message.SerializeToString(),
            )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _recorded(
        self,
        name: str,
        endpoint: str,
        answer: Callable[[Any, Exchange, Any], Awaitable[Any]],
        read: Callable[[bytes], Any],
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(raw: bytes, context: Any) -> Any:
            exchange = Exchange(_id_of(context), "gRPC", f"/{SERVICE}/{name}", endpoint=endpoint)
            self._recorder.began()
            code, problem = grpc.StatusCode.OK, ""
            try:
                if name not in _OPEN and not self._access.allows(_given(context, "authorization")):
                    raise errors.UnauthorizedError("this server wants a token: authorization: Bearer TOKEN")
                return await answer(_parsed(raw, read), exchange, context)
            except errors.RequestError as refused:
                exchange.reason, problem = refused.code, sentence(refused)
                exchange.message = problem
                code = next(_CODES[kind] for kind in type(refused).__mro__ if kind in _CODES)
            except asyncio.CancelledError:  # the client left, or the server stops
                code = grpc.StatusCode.CANCELLED
                if self._plane.draining:
                    self._plane.cut_off += 1
                    exchange.reason = "stopped"
                raise
            except Exception:  # a bug of ours
                code, problem = grpc.StatusCode.INTERNAL, self._recorder.failed(exchange)
            finally:
                exchange.status = code.name
                self._recorder.ended(exchange, server_fault=code.name in _SERVER_FAULTS)
            return await context.abort(code, problem)  # which raises

        return handle

    async def infer(self, message: Any, exchange: Exchange, context: Any) -> Any:
        """ModelInfer."""
        model = self._loaded(message.model_name, message.model_version, exchange)
        with model.in_use():
            asked = grpc_tensors.read_request(message, model, context.time_remaining())
            exchange.result = result = await self._plane.infer(model, asked)
        return grpc_tensors.write_response(result, message.id)

    async def live(self, message: Any, exchange: Exchange, context: Any) -> Any:
        """ServerLive: the process answers."""
        return self._messages.ServerLiveResponse(live=True)

    async def ready(self, message: Any, exchange: Exchange, context: Any) -> Any:
        """ServerReady: not while a model loads, and not while the server stops."""
        return self._messages.ServerReadyResponse(ready=self._plane.ready)

    async def model_ready(self, message: Any, exchange: Exchange, context: Any) -> Any:
        """ModelReady, as `ready`, for one model."""
        model = self._plane.model(message.name, message.version)
        return self._messages.ModelReadyResponse(ready=self._plane.is_ready(model))

    async def server(self, message: Any, exchange: Exchange, context: Any) -> Any:
        """ServerMetadata."""
        return self._messages.ServerMetadataResponse(name="deploykit", version=__version__, extensions=EXTENSIONS)

    async def metadata(self, message: Any, exchange: Exchange, context: Any) -> Any:
        """ModelMetadata."""
        model = self._loaded(message.name, message.version, exchange)
        return self._messages.ModelMetadataResponse(**v2.metadata(model, self._plane.versions(model.name)))

    async def statistics(self, message: Any, exchange: Exchange, context: Any) -> Any:
        """ModelStatistics: of one version, of a model's versions, or of all models."""
        models = [self._loaded(message.name, message.version, exchange)] if message.name else self._plane.models
        rows = [model.statistics.as_dict(model.name, model.version) for model in models]
        return json_format.ParseDict({"model_stats": rows}, self._messages.ModelStatisticsResponse())

    async def index(self, message: Any, exchange: Exchange, context: Any) -> Any:
        """RepositoryIndex."""
        rows = await catalog_of(self._plane).index(ready=message.ready)
        return self._messages.RepositoryIndexResponse(models=[dataclasses.asdict(row) for row in rows])

    async def load(self, message: Any, exchange: Exchange, context: Any) -> Any:
        """RepositoryModelLoad."""
        await catalog_of(self._plane).load(message.model_name)
        return self._messages.RepositoryModelLoadResponse()

    async def unload(self, message: Any, exchange: Exchange, context: Any) -> Any:
        """RepositoryModelUnload."""
        await catalog_of(self._plane).unload(message.model_name)
        return self._messages.RepositoryModelUnloadResponse()

    def _loaded(self, name: str, version: str, exchange: Exchange) -> Model:
        model = self._plane.model(name, version)
        exchange.model = model.name
        if not model.loaded:
            raise model.not_ready()
        return model


def _parsed(raw: bytes, read: Callable[[bytes], Any]) -> Any:
    """A call's message; grpc itself would answer one that is none by UNKNOWN and a traceback in the log."""
    try:
        return read(raw)
    except DecodeError as problem:
        raise errors.UnreadableRequestError("the bytes are no message of this call") from problem


def _given(context: Any, name: str) -> bytes | None:
    """A value of the call's metadata."""
    found = dict(context.invocation_metadata() or ()).get(name)
    return found.encode("latin-1", "replace") if isinstance(found, str) else found


def _id_of(context: Any) -> str:
    return request_id(str(_given(context, "x-request-id") or b"", "latin-1"))


class GrpcServer:
    """The gRPC side of a server; start and stop it on the event loop."""

    def __init__(
        self, plane: DataPlane, metrics: Metrics, limits: Limits, access: Access, address: tuple[str, int]
    ) -> None:
        """address: host and port; 0 picks a free one."""
        host, port = address
        self._service = Service(plane, metrics, access)
        self._limits = limits
        self._address = f"[{host}]" if ":" in host else host
        self.port = port
        self._server: Any = None

    async def start(self) -> None:
        """Listens. Raises UsageError (DK701) when the port is taken or not allowed."""
        options = [
            # Otherwise two servers share a port, and each gets some of the requests.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", self._limits.max_body),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 64 << 10),
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((self._service.handler(),))
        try:
            self.port = self._server.add_insecure_port(f"{self._address}:{self.port}")
        except RuntimeError as problem:
            raise UsageError(
                f"cannot listen on {self._address} port {self.port} for gRPC: it is taken or not allowed",
                code="DK701",
                hint="choose another one with --grpc-port (0 picks a free one), or serve HTTP alone with --no-grpc",
            ) from problem
        await self._server.start()

    async def stop(self, seconds: float) -> None:
        """No new calls; those that run have so many seconds to end."""
        if self._server is not None:
            await self._server.stop(seconds)
