"""TensorRT engines on a GPU, classic and for RTX (runs in the worker)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from deploykit.artifact import TensorSpec
from deploykit.converters.tensorrt import engine
from deploykit.converters.tensorrt.device import Driver
from deploykit.converters.tensorrt.execution import LoadError, Session
from deploykit.converters.tensorrt.header import read_header
from deploykit.converters.tensorrt.loading import refuse_foreign
from deploykit.errors import DataError, UnavailableError, VendorError
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deploykit.runtime import Feeds, Outputs


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The engine, deserialised.

    Raises UnavailableError (DK502) for a build bundle, (DK591) for an engine of another version or GPU, VendorError
    (DK525) where the runtime refuses it all the same.
    """
    return opened(path, options, "tensorrt", refuse_foreign)


def opened(path: Path, options: RuntimeOptions, module: str, refuse: Callable[[Path], None]) -> Runtime:
    """As `load`, by the module `tensorrt` or `tensorrt_rtx`."""
    if path.is_dir():
        raise UnavailableError(
            f"{path.name} is a build bundle: no engine has been built of it",
            code="DK502",
            file=path,
            hint="follow its README.md on a machine with a GPU",
        )
    refuse(path)
    return TensorRtRuntime(path, options, importlib.import_module(module), Driver())


class TensorRtRuntime(Runtime):
    """A deserialised engine with one execution context on the first GPU."""

    def __init__(self, path: Path, options: RuntimeOptions, trt: Any, driver: Any) -> None:
        log = engine.logger(trt)
        name = engine.title(trt)
        target = "tensorrt-rtx" if name.endswith("RTX") else "tensorrt"
        library = options.custom_ops.get(target)
        self._plugins = engine.load_libraries(trt, log, [library] if library else [])
        header = read_header(path)
        plan = path.read_bytes()[header.offset if header else 0 :]
        try:
            self._session = Session(trt, driver, log, plan)
        except LoadError as problem:
            raise VendorError(
                f"{name} {trt.__version__} does not load {path.name}: {problem}",
                code="DK525",
                file=path,
                target=target,
                log=problem.log,
                hint="build it again on this machine",
            ) from problem
        self.engine = f"{name} {trt.__version__} ({driver.devices()[0].name})"
        self.inputs = tuple(map(self._spec, self._session.inputs))
        self.outputs = tuple(map(self._spec, self._session.outputs))

    def _spec(self, name: str) -> TensorSpec:
        shape = tuple(n if n >= 0 else f"{name}_{axis}" for axis, n in enumerate(self._session.shape(name)))
        return TensorSpec(name, self._session.dtype(name).name, shape)

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name. Raises DataError (DK300) for shapes that no profile of the engine takes."""
        try:
            return self._session.run(dict(feeds))
        except ValueError as problem:
            raise DataError(str(problem), hint="build the engine with a profile for them: --profile") from problem

    def close(self) -> None:
        """Frees the GPU's memory."""
        self._session.close()
