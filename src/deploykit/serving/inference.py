"""Inference over HTTP, the hot path: KServe v2 `infer` and the short `/predict`, without a framework in between.

A framework's routing and request objects would cost more than a small model's inference.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from deploykit.serving import beginner, errors, strict_json, v2
from deploykit.serving.bodies import IDLE_SECONDS, read_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from deploykit.serving.dataplane import DataPlane, InferResult
    from deploykit.serving.exchange import Exchange
    from deploykit.serving.model import Model

P = ParamSpec("P")
T = TypeVar("T")
HEADER_LENGTH = "Inference-Header-Content-Length"
NON_FINITE = "X-Non-Finite-Outputs"
PREDICT = "/predict"
_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
_LENGTH_KEY = HEADER_LENGTH.lower().encode()
# Bytes that are read or written on the event loop.
_LITTLE = 256 << 10
# How long, in seconds, a client whose request was refused half-way may go on sending before it is cut off.
LINGER_SECONDS = 10.0

STATUS: dict[type[errors.RequestError], int] = {
    errors.UnreadableRequestError: 400,
    errors.UnfitInputError: 400,
    errors.UnsupportedRequestError: 400,
    errors.InferenceError: 400,
    errors.LoadError: 400,
    errors.UnauthorizedError: 401,
    errors.ForbiddenError: 403,
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


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A response. lingering: it comes before the request was read, see `send_answer`."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    lingering: bool = False


def json_answer(document: object, status: int, *headers: tuple[bytes, bytes], lingering: bool = False) -> Answer:
    """A JSON document as a response."""
    return Answer(status, strict_json.dump(document), ((b"content-type", b"application/json"), *headers), lingering)


class Inference:
    """Answers the paths that run a model."""

    def __init__(self, plane: DataPlane, limits: Limits) -> None:
        """plane: the models."""
        self._plane = plane
        self._limits = limits

    def serves(self, path: str) -> bool:
        """Whether a path is one of these."""
        return path == PREDICT or _INFER.fullmatch(path) is not None

    async def answer(self, scope: Scope, receive: Receive, exchange: Exchange) -> Answer:
        """The response to a request; refusals are responses, too."""
        if scope["method"] != "POST":
            exchange.reason = "route"
            exchange.message = f"{scope['method']} is not possible at {scope['path'][:200]}"
            return json_answer({"error": f"{exchange.message}; /docs lists what there is"}, 405, (b"allow", b"POST"))
        headers = dict(scope["headers"])
        try:
            if scope["path"] == PREDICT:
                exchange.endpoint = "predict"
                return await self._predict(headers, receive, exchange)
            exchange.endpoint = "infer"
            return await self._infer(scope["path"], headers, receive, exchange)
        except errors.RequestError as problem:
            return refusal(problem, exchange)

    async def _infer(self, path: str, headers: Mapping[bytes, bytes], receive: Receive, exchange: Exchange) -> Answer:
        """Open Inference Protocol: POST /v2/models/{name}[/versions/{version}]/infer."""
        found = _INFER.fullmatch(path)
        if found is None:
            raise AssertionError(path)
        model = self._ready(self._plane.model(found[1], found[2] or ""), exchange)
        header_length = _header_length(headers)
        with model.in_use():
            body = await read_body(headers, receive, self._limits.max_body, self._limits.idle_seconds)
            text = len(body) if header_length is None else header_length
            asked, answering = await _aside(text, v2.read_request, body, header_length, model)
            exchange.result = result = await self._plane.infer(model, asked)
        written = _aside(_size(result), v2.write_response, result, answering)
        content, length, exchange.non_finite = await written
        return _answered(content, exchange, result, length)

    async def _predict(self, headers: Mapping[bytes, bytes], receive: Receive, exchange: Exchange) -> Answer:
        """The short form: POST /predict."""
        model = self._ready(self._plane.only_model(), exchange)
        with model.in_use():
            body = await read_body(headers, receive, self._limits.max_body, self._limits.idle_seconds)
            kind = headers.get(b"content-type", b"")
            read = beginner.read_image if kind.startswith(b"image/") else beginner.read_request
            asked = await _aside(len(body), read, body, model)
            exchange.result = result = await self._plane.infer(model, asked)
        content, exchange.non_finite = await _aside(_size(result), beginner.write_response, result)
        return _answered(content, exchange, result, None)

    def _ready(self, model: Model, exchange: Exchange) -> Model:
        exchange.model = model.name
        if not model.loaded:
            raise model.not_ready()
        return model


async def _aside(size: int, work: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
    """Runs `work` here when little is to be read or written, else on a thread: others are answered meanwhile."""
    if size <= _LITTLE:
        return work(*arguments, **more)
    return await asyncio.to_thread(work, *arguments, **more)


def _size(result: InferResult) -> int:
    return sum(array.nbytes for array in result.outputs.values())


def _answered(content: bytes, exchange: Exchange, result: InferResult, length: int | None) -> Answer:
    queue, compute = result.queue_seconds * 1e3, result.compute_seconds * 1e3
    kind = b"application/json" if length is None else b"application/octet-stream"
    headers = [
        (b"content-type", kind),
        (b"server-timing", b"queue;dur=%.3f, compute;dur=%.3f" % (queue, compute)),
    ]
    if exchange.non_finite:
        headers.append((NON_FINITE.encode(), b"%d" % len(exchange.non_finite)))
    if length is not None:
        headers.append((HEADER_LENGTH.encode(), b"%d" % length))
    return Answer(200, content, tuple(headers))


def _header_length(headers: Mapping[bytes, bytes]) -> int | None:
    raw = headers.get(_LENGTH_KEY)
    if raw is None:
        return None
    if not raw.isdigit() or len(raw) > 12:
        raise errors.UnreadableRequestError(f"{HEADER_LENGTH} must be a number of bytes")
    return int(raw)


def sentence(problem: errors.RequestError) -> str:
    """The error as one text for a client."""
    text = problem.message
    if problem.context:
        text += f" ({'; '.join(problem.context)})"
    return f"{text}; {problem.hint}" if problem.hint else text


def refusal(problem: errors.RequestError, exchange: Exchange) -> Answer:
    """A refusal or failure of one request as the protocol's error object."""
    exchange.reason, exchange.message = problem.code, sentence(problem)
    status = next(STATUS[kind] for kind in type(problem).__mro__ if kind in STATUS)
    body = {"error": exchange.message, "code": problem.code}
    if isinstance(problem, (errors.TooLargeError, errors.SlowRequestError)):
        return json_answer(body, status, (b"connection", b"close"), lingering=True)
    return json_answer(body, status, *([(b"retry-after", b"1")] if status == 503 else []))


async def send_answer(answer: Answer, receive: Receive, send: Send) -> None:
    """Sends a response.

    One that comes before the request was read is followed by a while of reading: closing at once would reset the
    connection, and a client that is still sending would never see the reason.
    """
    length = (b"content-length", b"%d" % len(answer.body))
    start = {"type": "http.response.start", "status": answer.status, "headers": [*answer.headers, length]}
    await send(start)
    if not answer.lingering:
        await send({"type": "http.response.body", "body": answer.body})
        return
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass
    await send({"type": "http.response.body", "body": b""})
