"""The variables inside a package, read while the interpreter runs it: simulated, on a Mac too."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

from deploykit.converters.coreml.origins import tensor_name
from deploykit.converters.coreml.runtime import SimulatedRuntime
from deploykit.taps import Inner, Taps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from deploykit.runtime import Feeds, Outputs, RuntimeOptions

    Array = np.ndarray[Any, np.dtype[Any]]

# What coremltools' pass to float16 puts behind the name of a variable that it computes in float16.
_ENDINGS = ("", "_cast_fp16")


class _Inside(SimulatedRuntime):
    """The package in the interpreter, its variables in sight."""

    @property
    def function(self) -> Any:
        """The MIL function."""
        return self._interpreter.function

    @property
    def names(self) -> Mapping[str, str]:
        """The package's name by the model's, of inputs and outputs that are called differently."""
        return self._names

    def read(self, feeds: Feeds, names: Sequence[str], given: Mapping[str, Array]) -> Outputs:
        """Variables by name, given ones in place of what is computed."""
        wanted, found = set(names), {}

        def observe(name: str, value: Any) -> Any:
            if name in given:
                value = given[name].astype(value.dtype).reshape(value.shape)
            if name in wanted:
                found[name] = value
            return value

        self._interpreter.run(self._typed(feeds), observe)
        return found


class CoreMLTaps(Taps):
    """An ML Program whose variables are named after the ONNX tensors that they carry, where deploykit has made it.

    In packages made elsewhere a variable is taken for the ONNX tensor of the same name.
    """

    execution = "simulated"

    def __init__(self, path: Path) -> None:
        """Opens the package. Raises what `SimulatedRuntime` does."""
        self._path = path
        self._inside = _Inside(path)
        self.engine = self._inside.engine
        self.inputs = self._inside.inputs
        self.tensors = {
            variable.name: Inner(variable.name, operation.name or variable.name, operation.op_type)
            for operation in self._inside.function.operations
            if operation.op_type != "const" and not operation.op_type.startswith("constexpr_")
            for variable in operation.outputs
        }

    def find(self, names: Iterable[str]) -> dict[str, str]:
        """By the names that the lowerings give. Two ONNX names that become one here are both left out."""
        made = {name: tensor_name(name) for name in names}
        shared = {name for name, count in collections.Counter(made.values()).items() if count > 1}
        found = {}
        for name, own in made.items():
            if name in self._inside.names:
                own = self._inside.names[name]
            elif own in shared:
                continue
            known = next((f"{own}{ending}" for ending in _ENDINGS if f"{own}{ending}" in self.tensors), None)
            if known is not None:
                found[name] = known
        return found

    def read(self, feeds: Feeds, names: Sequence[str], given: Mapping[str, Array] | None = None) -> Outputs:
        """Variables by name, of one run of the whole program."""
        return self._inside.read(feeds, names, given or {})

    def save_part(
        self,
        path: Path,
        names: Sequence[str],
        given: Mapping[str, Array],
        called: Mapping[str, str],
        like: Mapping[str, Array],
    ) -> tuple[Path, ...]:
        """The part as a package; () where one of its inputs or outputs is what the interface of a package has not."""
        from deploykit.converters.coreml.part import save_package_part

        package = path.with_suffix(".mlpackage")
        return (package,) if save_package_part(self._path, package, names, given, like, called) else ()


def open_taps(path: Path, options: RuntimeOptions) -> Taps:
    """The variables of a package. Raises UnavailableError (DK502), InvalidFileError (DK528)."""
    return CoreMLTaps(path)
