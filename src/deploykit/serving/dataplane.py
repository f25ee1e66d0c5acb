"""The data plane: which models there are and what they answer, in arrays. HTTP and gRPC only translate to it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.serving.checks import nearest, unknown
from deploykit.serving.errors import UnknownModelError
from deploykit.serving.model import State
from deploykit.serving.pictures import Pictures, prepared

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deploykit.serving.catalog import Catalog
    from deploykit.serving.model import Model

    Array = np.ndarray[Any, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class InferRequest:
    """Tensors, or images for them, by input name.

    outputs: those that are wanted, in this order; empty: all. id: the client's own. priority: 1 goes first, 0 says
    nothing. timeout: seconds in the queue, None for any.
    """

    feeds: Mapping[str, Array | Pictures]
    outputs: tuple[str, ...] = ()
    id: str = ""
    priority: int = 0
    timeout: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class InferResult:
    """The outputs that were asked for, and where the time went.

    rows: size of the batch dimension; 1 where the model has none. batch_rows: of the engine's call, which other
    requests may have shared; first: whether this one stands for the call in counts of calls.
    """

    model: Model
    outputs: dict[str, Array]
    rows: int
    queue_seconds: float
    compute_seconds: float
    batch_rows: int
    first: bool


class DataPlane:
    """The models of a server.

    draining: the server finishes what it has and is not ready for more. cut_off: requests it gave up on. catalog: the
    repository that the models come from, if they do.
    """

    def __init__(self, models: Iterable[Model]) -> None:
        """models: loaded or not; each version of a name is one."""
        self._models: dict[str, dict[str, Model]] = {}
        self.draining = False
        self.cut_off = 0
        self.catalog: Catalog | None = None
        for model in models:
            self._models.setdefault(model.name, {})[model.version] = model

    @property
    def models(self) -> list[Model]:
        """Every version of every model."""
        return [model for versions in self._models.values() for model in versions.values()]

    def put(self, model: Model) -> None:
        """Adds a model, or puts it in the place of the same version."""
        self._models.setdefault(model.name, {})[model.version] = model

    def take(self, name: str, version: str) -> Model | None:
        """Takes a model out: it gets no new requests. None where there is none."""
        versions = self._models.get(name, {})
        found = versions.pop(version, None)
        if not versions:
            self._models.pop(name, None)
        return found

    def has(self, name: str) -> bool:
        """Whether there is a model of that name."""
        return name in self._models

    def find(self, name: str, version: str) -> Model | None:
        """That version of that model; None where there is none."""
        return self._models.get(name, {}).get(version)

    @property
    def ready(self) -> bool:
        """Whether every model answers and the server is not stopping."""
        return not self.draining and all(model.state is State.READY for model in self.models)

    def versions(self, name: str) -> list[str]:
        """The versions of a model, the newest last. Raises UnknownModelError."""
        return sorted(self._named(name), key=_version_key)

    def model(self, name: str, version: str = "") -> Model:
        """The version of the model; the newest when none is named. Raises UnknownModelError."""
        versions = self._named(name)
        chosen = version or max(versions, key=_version_key)
        if chosen not in versions:
            raise UnknownModelError(
                f"model {name!r} has no version {version[:80]!r}; it has {', '.join(self.versions(name))}"
            )
        return versions[chosen]

    def only_model(self) -> Model:
        """The model to use when none is named. Raises UnknownModelError when there are several."""
        if len(self._models) != 1:
            raise UnknownModelError(
                f"this server has {len(self._models)} models, so one must be named: {', '.join(self._models)}",
                hint="POST /v2/models/NAME/infer",
            )
        return self.model(next(iter(self._models)))

    def _named(self, name: str) -> dict[str, Model]:
        if name in self._models:
            return self._models[name]
        near = nearest(name, self._models)
        raise UnknownModelError(
            f"there is no model {name[:80]!r}; this server has {', '.join(map(repr, self._models)) or 'none'}",
            hint=f"did you mean {near[0]!r}?" if near else "",
        )

    def is_ready(self, model: Model) -> bool:
        """Whether this model answers and the server is not stopping."""
        return not self.draining and model.state is State.READY

    async def infer(self, model: Model, request: InferRequest) -> InferResult:
        """Runs the model on the request's tensors.

        Raises UnfitInputError, NotReadyError, ExpiredError, InferenceError, EngineError; nothing else leaves the
        engine. A request that arrives while the server drains is still answered: the client could not know.
        """
        names = [spec.name for spec in model.outputs]
        for name in request.outputs:
            if name not in names:
                raise unknown("output", name, names)
        started = time.perf_counter()
        feeds: Mapping[str, Any] = request.feeds
        if model.contract is not None and any(isinstance(value, Pictures) for value in feeds.values()):
            feeds = await asyncio.to_thread(prepared, feeds, model.contract, model.inputs)
        try:
            computed = await model.predict(feeds, priority=request.priority, timeout=request.timeout)
        except BaseException:
            model.statistics.failed(time.perf_counter() - started)
            raise
        rows = _rows(model, feeds)
        if model.watch is not None:
            model.watch.see(feeds)
        model.statistics.answered(time.perf_counter() - started, rows, computed)
        return InferResult(
            model=model,
            outputs={name: np.asarray(computed.outputs[name]) for name in request.outputs or names},
            rows=rows,
            queue_seconds=computed.queue_seconds,
            compute_seconds=computed.compute_seconds,
            batch_rows=max(rows, computed.batch_rows),
            first=computed.first,
        )

    def close(self) -> None:
        """Frees every engine."""
        for model in self.models:
            model.close()


def _version_key(version: str) -> tuple[int, str]:
    return (int(version), "") if version.isdecimal() else (-1, version)


def _rows(model: Model, feeds: Mapping[str, Array]) -> int:
    for spec in model.inputs:
        if spec.shape and isinstance(spec.shape[0], str):
            return int(feeds[spec.name].shape[0])
    return 1
