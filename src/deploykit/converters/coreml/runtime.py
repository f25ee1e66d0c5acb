"""Runs a package: with Core ML itself on a Mac, elsewhere with the interpreter, whose results are simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.coreml import why_not_here
from deploykit.converters.coreml.door import Door, write_names
from deploykit.errors import UnavailableError
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from deploykit.converters.coreml.inspect import Opened
    from deploykit.runtime import Feeds, Outputs

__all__ = ["SIMULATOR", "CoreMLRuntime", "SimulatedRuntime", "load", "write_names"]

UNITS = {"cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "npu": "CPU_AND_NE", "all": "ALL"}
SIMULATOR = "deploykit's ML Program interpreter (Apple's documented semantics, not Apple's kernels)"


class _PackageRuntime(Runtime):
    """A package under the names, types and forms that its model had, which Core ML may have otherwise."""

    def __init__(self, opened: Opened) -> None:
        """opened: of `inspect.open_package`."""
        self.door = Door(opened)
        self._names, self._typed = self.door.names, self.door.given
        self.bounds = self.door.bounds
        self.contract = self.door.contract
        self.inputs = self.door.inputs
        self.outputs = self.door.outputs


class CoreMLRuntime(_PackageRuntime):
    """A package loaded by `coremltools.models.MLModel`, which hands it to the system's Core ML."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """Compiles and loads. device cpu keeps it off GPU and Neural Engine, all lets Core ML choose.

        Raises UnavailableError (DK502) for a stateful package, InvalidFileError (DK528).
        """
        import coremltools as ct

        from deploykit.converters.coreml.inspect import open_package

        units = UNITS[options.device]
        opened = open_package(path)
        if len(opened.spec.description.state):
            raise UnavailableError(
                f"{path.name} keeps a state between calls, which is not compared",
                code="DK502",
                file=path,
                target="coreml",
                hint="make the state an input and an output of the model",
            )
        super().__init__(opened)
        self.engine = f"Core ML through coremltools {ct.__version__} ({units})"
        self._model: Any = ct.models.MLModel(str(path), compute_units=ct.ComputeUnit[units])

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name, of feeds as the model takes them. Raises what `Door.given` and `Door.taken` raise."""
        given = self.door.given(feeds)
        pictures = {name: image.picture(given[name]) for name, image in self.door.images.items()}
        return self.door.taken(self._model.predict({**given, **pictures}))


class SimulatedRuntime(_PackageRuntime):
    """A package evaluated by Apple's documented semantics."""

    execution = "simulated"
    engine = SIMULATOR

    def __init__(self, path: Path, taps: Iterable[str] = ()) -> None:
        """taps: of `RuntimeOptions`. Raises UnavailableError (DK502) naming operators that the interpreter lacks."""
        from deploykit.converters.coreml.inspect import open_package
        from deploykit.converters.coreml.simulator import Interpreter

        opened = open_package(path)
        super().__init__(opened)
        self.operators = frozenset(opened.facts["operators"])
        self._interpreter = Interpreter(opened.function, path.name)
        self._tapped = _variables(opened.function, taps)
        self.taps = tuple(self._tapped.values())

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name, of feeds as the model takes them.

        Raises what `Interpreter.run`, `Door.given` and `Door.taken` raise.
        """
        found: dict[str, Any] = {}

        def observe(variable: str, value: Any) -> Any:
            if variable in self._tapped:
                found[self._tapped[variable]] = np.asarray(value)
            return value

        made = self._interpreter.run(self.door.given(feeds), observe if self._tapped else None)
        return {**self.door.taken(made), **found}


def _variables(function: Any, tensors: Iterable[str]) -> dict[str, str]:
    """The ONNX tensor by the variable that carries it; those whose names become one here are left out."""
    from deploykit.converters.coreml.origins import tensor_name

    made: dict[str, list[str]] = {}
    for tensor in tensors:
        made.setdefault(tensor_name(tensor), []).append(tensor)
    known = {variable.name for operation in function.operations for variable in operation.outputs}
    return {variable: names[0] for variable, names in made.items() if len(names) == 1 and variable in known}


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The package on Core ML where that is, otherwise simulated. Raises UnavailableError (DK502), InvalidFileError."""
    return CoreMLRuntime(path, options) if why_not_here() is None else SimulatedRuntime(path, options.taps)
