"""The tensors inside a library, read and replaced while it runs: its machine shows every call of a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.converters.tvm.runtime import TvmRuntime
from deploykit.taps import Inner, Taps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import numpy as np

    from deploykit.runtime import Feeds, Outputs, RuntimeOptions

    Array = np.ndarray[Any, np.dtype[Any]]


class TvmTaps(Taps):
    """The loaded library itself, unchanged; tensors that a merged function keeps to itself are not there.

    Memory is that of the run and of the tensors that are read.
    """

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """Raises what opening the runtime raises."""
        self._runtime = TvmRuntime(path, options)
        self.engine = self._runtime.engine
        self.inputs = self._runtime.inputs
        self._outputs = {spec.name for spec in self._runtime.outputs}
        calls = self._runtime.watched.calls
        self.tensors = {tensor: Inner(tensor, node or name, name) for name, tensor, node in calls if tensor}
        # An output that is no function's own result, a view of another tensor, is read as an output.
        self.tensors |= {name: Inner(name, name, "") for name in self._outputs if name not in self.tensors}

    def read(self, feeds: Feeds, names: Sequence[str], given: Mapping[str, Array] | None = None) -> Outputs:
        """Tensors by name; `given` is written over what the library has just computed."""
        inner = [name for name in names if name not in self._outputs]
        put = {name: array for name, array in (given or {}).items() if name not in self._outputs}
        outputs, found = self._runtime.watched.read(feeds, inner, put)
        return {name: outputs[name] if name in self._outputs else found[name] for name in names}


def open_taps(path: Path, options: RuntimeOptions) -> Taps:
    """The tensors of a library. Raises what opening its runtime raises."""
    return TvmTaps(path, options)
