"""Runs a package: with Core ML itself on a Mac, elsewhere with the interpreter, whose results are simulated."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.coreml import why_not_here
from deploykit.converters.coreml.shapes import shapes_in, typed
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deploykit.artifact import TensorSpec
    from deploykit.runtime import Feeds, Outputs

SIMULATOR = "deploykit's ML Program interpreter (Apple's documented semantics, not Apple's kernels)"


class _PackageRuntime(Runtime):
    """A package under the names that its model had, which Core ML may have spelled differently."""

    def __init__(self, facts: Mapping[str, Any], spec: Any) -> None:
        """facts, spec: of `inspect.open_package`."""
        self._names = names_in(spec)
        back = {made: name for name, made in self._names.items()}
        self._flexibility = shapes_in(spec).renamed(back)
        self.bounds = self._flexibility.bounds()
        self.inputs = self._specs(facts, "inputs")
        self.outputs = self._specs(facts, "outputs")

    def _specs(self, facts: Mapping[str, Any], kind: str) -> tuple[TensorSpec, ...]:
        import dataclasses

        from deploykit.converters.coreml.inspect import interface_of

        back = {made: name for name, made in self._names.items()}
        return tuple(dataclasses.replace(s, name=back.get(s.name, s.name)) for s in interface_of(facts, kind))

    def _typed(self, feeds: Feeds) -> dict[str, np.ndarray[Any, Any]]:
        made = {}
        for spec in self.inputs:
            array = typed(np.asarray(feeds[spec.name]), spec)
            # A scalar of the model is a vector of one in the package.
            made[spec.name] = array.reshape(1) if not array.ndim else array
        self._flexibility.check({name: array.shape for name, array in made.items()})
        return {self._names.get(name, name): array for name, array in made.items()}

    def _named(self, made: Mapping[str, Any]) -> Outputs:
        return {
            spec.name: np.asarray(made[self._names.get(spec.name, spec.name)]).astype(spec.dtype)
            for spec in self.outputs
        }


class CoreMLRuntime(_PackageRuntime):
    """A package loaded by `coremltools.models.MLModel`, which hands it to the system's Core ML."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """Compiles and loads. device cpu keeps it off GPU and Neural Engine, which compute in fp16."""
        import coremltools as ct

        from deploykit.converters.coreml.inspect import open_package

        units = {"cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "npu": "CPU_AND_NE"}[options.device]
        opened = open_package(path)
        super().__init__(opened.facts, opened.spec)
        self.engine = f"Core ML through coremltools {ct.__version__} ({units})"
        self._model: Any = ct.models.MLModel(str(path), compute_units=ct.ComputeUnit[units])

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name; feeds in the package's types."""
        return self._named(self._model.predict(self._typed(feeds)))


class SimulatedRuntime(_PackageRuntime):
    """A package evaluated by Apple's documented semantics."""

    execution = "simulated"
    engine = SIMULATOR

    def __init__(self, path: Path) -> None:
        """Raises UnavailableError (DK502) that names the operators which the interpreter lacks."""
        from deploykit.converters.coreml.inspect import open_package
        from deploykit.converters.coreml.simulator import Interpreter

        opened = open_package(path)
        super().__init__(opened.facts, opened.spec)
        self.operators = frozenset(opened.facts["operators"])
        self._interpreter = Interpreter(opened.function, path.name)

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name; feeds in the package's types. Raises what `Interpreter.run` raises."""
        return self._named(self._interpreter.run(self._typed(feeds)))


NAMES_KEY = "deploykit.onnx_names"


def names_in(spec: Any) -> dict[str, str]:
    """The package's name by the model's, for those that Core ML could not have; none in packages made elsewhere."""
    found = spec.description.metadata.userDefined
    return dict(json.loads(found[NAMES_KEY])) if NAMES_KEY in found else {}


def write_names(spec: Any, names: Mapping[str, str], order: Sequence[str]) -> None:
    """Keeps in the package which names it has changed; nothing where there are none."""
    changed = {name: names[name] for name in order if names[name] != name}
    if changed:
        spec.description.metadata.userDefined[NAMES_KEY] = json.dumps(changed)


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The package on Core ML where that is, otherwise simulated. Raises UnavailableError (DK502), InvalidFileError."""
    return CoreMLRuntime(path, options) if why_not_here() is None else SimulatedRuntime(path)
