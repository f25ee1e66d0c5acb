"""NNEF in tract's own engine (runs in a worker)."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tract

from deploykit.errors import ModelError
from deploykit.lazy import versions_of
from deploykit.runtime import Kernel, Runtime, RuntimeOptions
from deploykit_tract.archive import dialect, specs_of

if TYPE_CHECKING:
    from deploykit.runtime import Feeds, Outputs


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The model, ready to run on the CPU. Raises ModelError (DK202) for a file that tract does not read."""
    return TractRuntime(path)


class TractRuntime(Runtime):
    """A model that tract has optimised for this processor; it computes in one thread."""

    def __init__(self, path: Path) -> None:
        """Reads and optimises the model; see `load` for what it raises."""
        self.inputs, self.outputs = specs_of(path)
        self.engine = f"tract {versions_of('tract')['tract']} (CPU)"
        with tempfile.TemporaryDirectory() as scratch:
            named = Path(scratch, "model.tar")  # tract goes by the name
            named.symlink_to(path.resolve())
            try:
                self._model = dialect().load(named).into_runnable()
            except tract.TractError as problem:
                reason = str(problem).partition("Stack backtrace")[0]
                raise ModelError(
                    f"tract does not read {path.name}: {' '.join(reason.split())}",
                    code="DK202",
                    file=path,
                    target="tract",
                ) from problem

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name, in the artifact's own dtypes; feeds by input name in the declared dtypes."""
        results = self._model.run(self._ordered(feeds))
        return {spec.name: result.to_numpy() for spec, result in zip(self.outputs, results, strict=True)}

    def _ordered(self, feeds: Feeds) -> list[np.ndarray]:
        return [np.ascontiguousarray(feeds[spec.name]) for spec in self.inputs]

    def kernels(self, feeds: Feeds) -> list[Kernel] | None:
        """tract's own profile of one call, for `bench --per-op`."""
        profile = json.loads(self._model.profile_json(self._ordered(feeds)))
        return [
            Kernel(node["node_name"], node["op_name"], "fp32", microseconds=node["secs_per_iter"] * 1e6)
            for node in profile["nodes"]
            if "secs_per_iter" in node
        ]
