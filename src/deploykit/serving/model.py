"""Model: one version of one model, loaded into its engine and called through its lanes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import re
import threading
import time
from typing import TYPE_CHECKING, Any

from deploykit.data import open_data
from deploykit.errors import DeploykitError, ModelError
from deploykit.runtime import RuntimeOptions, open_runtime
from deploykit.serving import capacity
from deploykit.serving.batch_trial import batched_inputs, policy_for
from deploykit.serving.batching import Batcher, BatchPolicy, Computed
from deploykit.serving.checks import check_feeds, differing_symbols
from deploykit.serving.datatypes import DATATYPES
from deploykit.serving.drift import Watch, profile_data
from deploykit.serving.errors import EngineError, InferenceError, NotReadyError, UnfitInputError
from deploykit.serving.lanes import Lanes
from deploykit.serving.repository_config import check_tensors
from deploykit.serving.statistics import Statistics
from deploykit.target import format_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.data.contract import InputContract
    from deploykit.runtime import Feeds, Outputs, Runtime
    from deploykit.serving.capacity import Permits
    from deploykit.serving.repository_config import RepositoryConfig

QUEUE_LIMIT = 512
_DRAIN_TURN = 0.02
# What other servers call the pair of engine and format.
_PLATFORMS = {"onnx": "onnxruntime_onnx", "openvino": "openvino_ir"}
_SOURCE_PLACE = re.compile(r"\S*\.(?:cc|cpp|hpp|h):\d+\S*\s*")


class State(enum.Enum):
    """Where a model is in its life; only READY answers."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


class Model:
    """One version of a model.

    path: the artifact. options: how its engine is opened; `threads` is decided here. batching: how requests are put
    together; None lets `load` find out whether that is right and pays. instances: calls of the engine at the same
    time; None chooses. config: what a repository says about it, which is checked. permits: the CPUs that it shares
    with other models. contract: the preprocessing of its images. calib: a `DataRequest`, for what inputs are compared
    with. A model is created at once and loaded by `load`, which may take long; until then it is known and not ready.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        version: str = "1",
        options: RuntimeOptions | None = None,
        cpus: int | None = None,
        batching: BatchPolicy | None = None,
        instances: int | None = None,
        config: RepositoryConfig | None = None,
        permits: Permits | None = None,
        contract: InputContract | None = None,
        calib: dict[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.name = name
        self.version = version
        self.state = State.LOADING
        self.platform = _PLATFORMS.get(format_of(path) or "", format_of(path) or "unknown")
        self.inputs: tuple[TensorSpec, ...] = ()
        self.outputs: tuple[TensorSpec, ...] = ()
        self.engine = ""
        self.capacity = capacity.Capacity(1, 1)
        # Why the warm-up call failed; a model may still work on real data.
        self.warm_up_problem: str | None = None
        self.policy = BatchPolicy()
        self.statistics = Statistics()
        self.watch: Watch | None = None
        # Why requests are computed alone, where they are.
        self.alone_because: str | None = None
        self._options = options or RuntimeOptions()
        self._cpus = cpus or capacity.usable_cpus()
        self._runtime: Runtime | None = None
        self._lanes: Lanes | None = None
        self._batcher: Batcher | None = None
        self._batching = batching
        self._instances = instances
        self.contract = contract
        self._calib = calib
        self._config = config
        self._permits = permits
        self._users = 0
        self._known_good: Feeds | None = None
        self._lock = threading.Lock()

    def load(self) -> None:
        """Opens the engine, calls it once on random data, and makes the model ready. Blocks: call it in a thread.

        Raises what `open_runtime` raises, and ModelError (DK705) for tensors that the protocol cannot carry.
        """
        try:
            runtime = self._open(self._cpus)
            _check_datatypes(runtime, self.path)
            if self._config is not None:
                check_tensors(self._config, runtime.inputs, runtime.outputs)
            feeds = self._random_feeds(runtime, 0)
            seconds = self._warm_up(runtime, feeds)
            chosen = capacity.plan(self._cpus, seconds, concurrent=runtime.concurrent, instances=self._instances)
            if chosen.threads != self._cpus:
                runtime.close()
                runtime = self._open(chosen.threads)
                self._warm_up(runtime, feeds)
            self._choose_policy(runtime)
            onnx = self.path if self.path.suffix == ".onnx" else None
            watch = None if self._calib is None else Watch(profile_data(self._calib, runtime.inputs, onnx))
        except BaseException:  # readiness must be honest whatever stopped the load
            self.state = State.FAILED
            raise
        with self._lock:
            if self.state is State.CLOSED:
                return
            self._runtime, self.capacity, self.engine = runtime, chosen, runtime.engine
            self.inputs, self.outputs = runtime.inputs, runtime.outputs
            self.watch = watch
            self._lanes = Lanes(chosen.lanes, name=self.name)
            batched = batched_inputs(runtime) if self.policy.max_rows > 1 else ()
            self._batcher = Batcher(self._lanes, self._call, self.policy, batched, limit=QUEUE_LIMIT)
            self.state = State.READY

    def _open(self, threads: int) -> Runtime:
        return open_runtime(self.path, dataclasses.replace(self._options, threads=threads))

    def _choose_policy(self, runtime: Runtime) -> None:
        if self._known_good is None:
            self.alone_because = "it could not be tried when it was loaded"
            return
        others = [self._random_feeds(runtime, seed) or {} for seed in (1, 2)]
        self.policy, self.alone_because = policy_for(runtime, self._known_good, self._batching, others)

    def _random_feeds(self, runtime: Runtime, seed: int) -> Feeds | None:
        onnx = self.path if self.path.suffix == ".onnx" else None
        try:
            return next(iter(open_data(f"random:{seed}", runtime.inputs, purpose="bench", samples=1, model=onnx))).feeds
        except DeploykitError as problem:  # an input of no declared rank: the first request warms up
            self.warm_up_problem = problem.message
            return None

    def _warm_up(self, runtime: Runtime, feeds: Feeds | None) -> float | None:
        """Seconds of the fastest of a few calls; None when there are no feeds or the model fails on them."""
        if feeds is None:
            return None
        fastest: float | None = None
        for _ in range(4):  # the first call allocates
            started = time.perf_counter()
            try:
                runtime.predict(feeds)
            except Exception as problem:  # vendors' own classes; random values need not be valid for every model
                self.warm_up_problem = _sentence(problem)
                return None
            seconds = time.perf_counter() - started
            fastest = seconds if fastest is None else min(fastest, seconds)
            if seconds > 0.25:
                break
        self._known_good = feeds
        return fastest

    async def predict(self, feeds: Feeds, *, priority: int = 0, timeout: float | None = None) -> Computed:
        """The outputs by name, with the time in the queue and in the engine.

        priority, timeout: see `Batcher.predict`. Raises UnfitInputError, NotReadyError, ExpiredError, InferenceError
        (the engine refused these values), EngineError.
        """
        batcher = self._batcher
        if batcher is None:
            raise self.not_ready()
        check_feeds(feeds, self.inputs)
        self._check_rows(feeds)
        return await batcher.predict(feeds, priority=priority, timeout=timeout)

    def takes_images(self, name: str) -> bool:
        """Whether encoded images may stand for an input's tensor."""
        return self.contract is not None and self.contract.prepares(name)

    def _check_rows(self, feeds: Feeds) -> None:
        most = self._config.max_batch_size if self._config is not None else 0
        for name, array in feeds.items() if most else ():
            if array.ndim and array.shape[0] > most:
                raise UnfitInputError(f"input {name!r} has {array.shape[0]} rows, and max_batch_size is {most}")

    @contextlib.contextmanager
    def in_use(self) -> Iterator[Model]:
        """While a request is read, computed and answered: `drain` waits for it."""
        self._users += 1
        try:
            yield self
        finally:
            self._users -= 1

    async def drain(self) -> None:
        """Closes the model once nothing uses it."""
        while self._users:
            await asyncio.sleep(_DRAIN_TURN)
        await asyncio.to_thread(self.close)

    def not_ready(self) -> NotReadyError:
        """The error for a request that comes too early or too late."""
        return NotReadyError(f"model {self.name!r} is {self.state.value}", hint="ask /v2/health/ready first")

    @property
    def loaded(self) -> bool:
        """Whether inputs and outputs are known and requests are taken."""
        return self._batcher is not None

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._batcher.waiting if self._batcher is not None else 0

    def _call(self, feeds: Feeds) -> Outputs:
        runtime = self._runtime
        if runtime is None:
            raise self.not_ready()
        try:
            with self._permits.held(self.capacity.threads) if self._permits is not None else contextlib.nullcontext():
                outputs = runtime.predict(feeds)
        except Exception as problem:  # vendors' own classes
            raise self._explained(problem, feeds, runtime) from problem
        self.state = State.READY if self.state is State.FAILED else self.state
        return outputs

    def _explained(self, problem: Exception, feeds: Feeds, runtime: Runtime) -> InferenceError | EngineError:
        """Whose fault a failure is: the engine's when it now fails on values that worked before."""
        if self._known_good is not None:
            try:
                runtime.predict(self._known_good)
            except Exception as broken:  # vendors' own classes
                self.state = State.FAILED
                return EngineError(f"the engine of model {self.name!r} fails on every input: {_sentence(broken)}")
        return InferenceError(
            f"model {self.name!r} failed on this input: {_sentence(problem)}",
            context=differing_symbols(feeds, self.inputs),
        )

    def close(self) -> None:
        """Takes no more requests and frees the engine after those it has."""
        with self._lock:
            self.state = State.CLOSED
            lanes, self._lanes, self._batcher = self._lanes, None, None
        if lanes is not None:
            lanes.close()


def _check_datatypes(runtime: Runtime, path: Path) -> None:
    for kind, specs in (("input", runtime.inputs), ("output", runtime.outputs)):
        for spec in specs:
            if spec.dtype not in DATATYPES:
                raise ModelError(
                    f"{path.name} cannot be served: its {kind} {spec.name!r} is {spec.dtype}",
                    code="DK705",
                    file=path,
                    tensor=spec.name,
                    context=[f"the protocol carries {', '.join(DATATYPES)}"],
                )


def _sentence(problem: Exception) -> str:
    """The engine's message in one line, without places in its source code, cut."""
    text = " ".join(_SOURCE_PLACE.sub("", str(problem)).split()) or type(problem).__name__
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return text if len(text) <= 400 else f"{text[:397]}..."
