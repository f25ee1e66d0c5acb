"""Prometheus metrics of a server, in a registry of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from deploykit.serving import gpu

if TYPE_CHECKING:
    from deploykit.serving.dataplane import DataPlane, InferResult

MetricT = TypeVar("MetricT", Counter, Histogram)
CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_DRIFT = {
    "mean": "Mean of the input's values over the last requests (serve --calib).",
    "std": "Standard deviation of the input's values over the last requests.",
    "shift": "Distance of that mean from the calibration data's, in its standard deviations.",
    "outside": "Share of the values outside of the calibration data's range.",
}
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counts and times of one server's requests.

    Label values come from tables of ours, never from a request: a client must not be able to grow the registry.
    """

    def __init__(self, plane: DataPlane) -> None:
        """plane: whose models are asked for readiness and queue length when the page is read."""
        self._plane = plane
        self._registry = registry = CollectorRegistry()
        self._children: dict[tuple[Any, tuple[str, ...]], Any] = {}
        self._requests = Counter(
            "deploykit_requests", "Requests answered.", ["model", "endpoint", "code"], registry=registry
        )
        self._errors = Counter(
            "deploykit_request_errors", "Requests refused or failed, by reason.", ["reason"], registry=registry
        )
        self.in_flight = Gauge("deploykit_requests_in_flight", "Requests being answered.", registry=registry)
        self._seconds = Histogram(
            "deploykit_request_seconds",
            "From the request's first byte to the answer's last.",
            ["model"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._queue = Histogram(
            "deploykit_queue_seconds", "Waiting for the engine.", ["model"], registry=registry, buckets=_SECONDS
        )
        self._compute = Histogram(
            "deploykit_compute_seconds", "In the engine.", ["model"], registry=registry, buckets=_SECONDS
        )
        self._rows = Histogram(
            "deploykit_batch_rows", "Rows in one call of the engine.", ["model"], registry=registry, buckets=_ROWS
        )
        self._non_finite = Counter(
            "deploykit_non_finite_outputs",
            "Outputs whose NaN or infinities became null in JSON.",
            ["model"],
            registry=registry,
        )
        self._ready = Gauge("deploykit_model_ready", "1 when the model answers.", ["model"], registry=registry)
        self._waiting = Gauge("deploykit_queue_length", "Requests in the queue.", ["model"], registry=registry)
        self._drift = {
            name: Gauge(f"deploykit_input_{name}", text, ["model", "input"], registry=registry)
            for name, text in _DRIFT.items()
        }
        self._gpu = gpu.collector(registry)
        ProcessCollector(registry=registry)  # CPU seconds and memory, where the system tells

    def answered(self, model: str, endpoint: str, code: str, seconds: float) -> None:
        """Counts an answer; model is "" when the request named none that exists."""
        self._child(self._requests, model, endpoint, code).inc()
        if endpoint in ("infer", "predict"):
            self._child(self._seconds, model).observe(seconds)

    def refused(self, reason: str) -> None:
        """Counts a refusal or failure by its DKnnn code."""
        self._errors.labels(reason).inc()

    def computed(self, result: InferResult, non_finite: int) -> None:
        """Records where an inference spent its time; non_finite: outputs with nulls in them."""
        name = result.model.name
        self._child(self._queue, name).observe(result.queue_seconds)
        self._child(self._compute, name).observe(result.compute_seconds)
        if result.first:
            self._child(self._rows, name).observe(result.batch_rows)
        if non_finite:
            self._non_finite.labels(name).inc(non_finite)

    def _child(self, metric: MetricT, *labels: str) -> MetricT:
        """`metric.labels(...)`, which takes longer to find than to count."""
        key = (metric, labels)
        found = self._children.get(key)
        if found is None:
            found = self._children[key] = metric.labels(*labels)
        return found

    def page(self) -> bytes:
        """The metrics in Prometheus' text format."""
        # Versions of a model are counted together, and models that are gone are shown no more.
        for gauge in (self._ready, self._waiting, *self._drift.values()):
            gauge.clear()
        for model in self._plane.models:
            if self._plane.is_ready(model):
                self._ready.labels(model.name).set(1)
            else:
                self._ready.labels(model.name)
            self._waiting.labels(model.name).inc(model.waiting)
            for name, drift in model.watch.figures().items() if model.watch is not None else ():
                for figure, gauge in self._drift.items():
                    gauge.labels(model.name, name).set(getattr(drift, figure))
        self._gpu()
        return generate_latest(self._registry)
