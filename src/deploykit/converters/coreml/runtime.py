"""Runs a package with Core ML itself, on a Mac; elsewhere it says why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.coreml import why_not_here
from deploykit.errors import UnavailableError
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.runtime import Feeds, Outputs


class CoreMLRuntime(Runtime):
    """A package loaded by `coremltools.models.MLModel`, which hands it to the system's Core ML."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """Compiles and loads. device cpu keeps it off GPU and Neural Engine, which compute in fp16."""
        import coremltools as ct

        from deploykit.converters.coreml.inspect import interface_of, reload

        units = {"cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "npu": "CPU_AND_NE"}[options.device]
        facts = reload(path)
        self.engine = f"Core ML through coremltools {ct.__version__} ({units})"
        self.inputs = tuple(interface_of(facts, "inputs"))
        self.outputs = tuple(interface_of(facts, "outputs"))
        self._model: Any = ct.models.MLModel(str(path), compute_units=ct.ComputeUnit[units])

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name; feeds in the package's types."""
        typed = {spec.name: np.asarray(feeds[spec.name]).astype(spec.dtype) for spec in self.inputs}
        made = self._model.predict(typed)
        return {spec.name: np.asarray(made[spec.name]).astype(spec.dtype) for spec in self.outputs}


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The package on this Mac. Raises UnavailableError (DK502) on other systems."""
    reason = why_not_here()
    if reason is not None:
        raise UnavailableError(reason, code="DK502", file=path, target="coreml", hint="copy the package to a Mac")
    return CoreMLRuntime(path, options)
