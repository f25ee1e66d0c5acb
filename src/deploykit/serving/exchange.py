"""What is known about one request and its answer, whatever protocol it came by: for log and metrics."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any

from deploykit.serving.logs import LOGGER

if TYPE_CHECKING:
    from deploykit.serving.dataplane import InferResult
    from deploykit.serving.metrics import Metrics

# Asked for every few seconds by machines: not worth a line each.
_QUIET = {"health", "metrics"}
_ID_LENGTH = 128
# A request's id is this process's own and a number: unique as a random one, and far cheaper.
_PROCESS = uuid.uuid4().hex[:16]
_NUMBERS = itertools.count(1)


def request_id(given: str) -> str:
    """The caller's id, when it is one that a log line and a header can carry; a new one otherwise."""
    if 0 < len(given) <= _ID_LENGTH and given.isascii() and given.isprintable():
        return given
    return f"{_PROCESS}-{next(_NUMBERS)}"


@dataclasses.dataclass(slots=True)
class Exchange:
    """One request. method, path: as its protocol names what was asked for. status: the protocol's, once answered."""

    request_id: str
    method: str
    path: str
    started: float = dataclasses.field(default_factory=time.perf_counter)
    endpoint: str = "other"
    model: str = ""
    status: int | str = 0
    reason: str = ""
    message: str = ""
    result: InferResult | None = None
    non_finite: list[str] = dataclasses.field(default_factory=list)


class Recorder:
    """Counts requests and writes their lines."""

    def __init__(self, metrics: Metrics) -> None:
        """metrics: where they are counted."""
        self._metrics = metrics
        self._log = logging.getLogger(LOGGER)

    def began(self) -> None:
        """A request has arrived."""
        self._metrics.in_flight.inc()

    def failed(self, exchange: Exchange) -> str:
        """A bug of ours: the whole story goes to the log; the sentence for the client has its number only."""
        self._log.exception("internal error", extra={"fields": {"request_id": exchange.request_id}})
        exchange.reason = "internal"
        return f"internal error; the server's log has it under {exchange.request_id}"

    def ended(self, exchange: Exchange, *, server_fault: bool) -> None:
        """A request is answered or given up. server_fault: whether its status blames the server."""
        seconds = time.perf_counter() - exchange.started
        self._metrics.in_flight.dec()
        self._metrics.answered(exchange.model, exchange.endpoint, str(exchange.status), seconds)
        if exchange.reason:
            self._metrics.refused(exchange.reason)
        if exchange.result is not None:
            self._metrics.computed(exchange.result, len(exchange.non_finite))
        quiet = exchange.endpoint in _QUIET
        level = logging.DEBUG if quiet else logging.INFO
        if server_fault and not quiet:
            level = logging.ERROR
        elif exchange.non_finite:
            level = logging.WARNING
        if self._log.isEnabledFor(level):
            self._log.log(level, "request", extra={"fields": _fields(exchange, seconds)})


def _fields(exchange: Exchange, seconds: float) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": exchange.method,
        "path": exchange.path[:200],
        "status": exchange.status,
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
