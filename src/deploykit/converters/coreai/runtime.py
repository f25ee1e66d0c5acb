"""A Core AI asset in Apple's own runtime, which is asynchronous: one loop a loaded model drives it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from deploykit.converters.coreai.asset import ENTRY, NARROWED, expect_whole, kept
from deploykit.converters.coreai.inspect import own_specs, summary_of
from deploykit.errors import DataError, UnavailableError, VendorError
from deploykit.lazy import versions_of
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.runtime import Feeds, Outputs

    Array = np.ndarray[Any, Any]


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The asset, compiled for the CPU.

    Raises UnavailableError (DK222) for another device, InvalidFileError (DK528), VendorError where it does not load.
    """
    return CoreAIRuntime(path, options)


class CoreAIRuntime(Runtime):
    """A compiled asset. The runtime chooses its own threads."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """Compiles and loads; see `load` for what it raises."""
        if options.device not in ("cpu", "all"):
            raise UnavailableError(
                f"Core AI runs on the CPU here, not on {options.device}",
                code="DK222",
                hint="leave --device away; on a Mac the system chooses",
                target="coreai",
            )
        from coreai.authoring import AIModelAsset

        metadata = expect_whole(path)
        inputs, outputs, self.bounds = kept(metadata)
        summary = summary_of(path)
        self.inputs = tuple(inputs or own_specs(summary, "inputs"))
        self.outputs = tuple(outputs or own_specs(summary, "outputs"))
        self.engine = f"Core AI {versions_of('coreai-core').get('coreai-core', '?')} (CPU)"
        self._loop = asyncio.new_event_loop()
        self._opened = AIModelAsset.load(path).executable()
        try:
            model = self._loop.run_until_complete(self._opened.__aenter__())
            self._function = model.load_function(ENTRY)
        except RuntimeError as problem:
            self._loop.close()
            raise VendorError(
                f"{self.engine} does not load {path.name}: {' '.join(str(problem).split())[:400]}",
                target="coreai",
                hint="the runtime is a beta; in float32 most programs load",
            ) from problem

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name, in the model's dtypes. Raises DataError (DK302) for integers that do not fit 32 bits."""
        from coreai.runtime import NDArray

        given = {spec.name: NDArray(_narrow(spec.name, feeds[spec.name])) for spec in self.inputs}
        found = self._loop.run_until_complete(self._function(given))
        return {spec.name: _typed(found[spec.name].numpy(), spec.dtype) for spec in self.outputs}

    def close(self) -> None:
        """Frees the compiled model."""
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._opened.__aexit__(None, None, None))
            self._loop.close()


def _narrow(name: str, array: Array) -> Array:
    to = NARROWED.get(str(array.dtype))
    if to is None:
        return np.ascontiguousarray(array)
    made = array.astype(to)
    if array.dtype.kind in "iu" and (made != array).any():
        wrong = array[made != array].flat[0]
        raise DataError(
            f"input {name!r} holds {wrong}, and Core AI has integers of 32 bits",
            code="DK586",
            tensor=name,
            hint="give values that fit int32",
        )
    return np.ascontiguousarray(made)


def _typed(array: Array, dtype: str) -> Array:
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return np.array(array, dtype=kind)  # its memory is the runtime's
