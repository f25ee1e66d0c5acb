"""SavedModels in TensorFlow, on the CPU."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from deploykit.converters.savedmodel.folder import NAME, meta_graph, signature_of
from deploykit.errors import InvalidFileError, UnavailableError
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.converters.savedmodel.folder import Port
    from deploykit.runtime import Feeds, Outputs


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The model in TensorFlow.

    Raises InvalidFileError (DK528) for no whole SavedModel, UnavailableError (DK502) for another device than the CPU.
    """
    return SavedModelRuntime(path, options)


class SavedModelRuntime(Runtime):
    """The signature that TF Serving would call."""

    concurrent = True

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """See `load`."""
        if options.device not in ("cpu", "all"):
            raise UnavailableError(
                f"SavedModels are run on the CPU here, not on {options.device}",
                code="DK502",
                target=NAME,
                hint="leave --device away",
            )
        meta = meta_graph(path)
        signature = signature_of(path, meta)
        if options.threads is not None:
            with contextlib.suppress(RuntimeError):  # TensorFlow has started: it keeps its threads
                tf.config.threading.set_intra_op_parallelism_threads(options.threads)
        try:
            self._loaded = tf.saved_model.load(str(path), tags=list(meta.meta_info_def.tags))
            self._function = self._loaded.signatures[signature.name]
        except Exception as problem:  # OSError, ValueError, KeyError and TensorFlow's own, by what is missing
            raise InvalidFileError(
                f"TensorFlow {tf.__version__} does not load {path.name}: {' '.join(str(problem).split())[:600]}",
                code="DK528",
                file=path,
                hint="copy the folder again, or convert it again",
            ) from problem
        self._ports, self._results = signature.inputs, signature.outputs
        self.inputs = tuple(port.spec for port in signature.inputs)
        self.outputs = tuple(port.spec for port in signature.outputs)
        self.engine = f"tensorflow {tf.__version__} (CPU)"

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name in the model's dtypes."""
        given = {port.called: tf.constant(feeds[port.spec.name]) for port in self._ports}
        found = self._function(**given)
        return {port.spec.name: _taken(port, found[port.called]) for port in self._results}

    def close(self) -> None:
        """Frees the model."""
        del self._function, self._loaded


def _taken(port: Port, tensor: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(tensor.numpy())
    if port.spec.dtype == "string":
        texts = [text.decode("utf-8", errors="replace") for text in array.ravel()]
        return np.array(texts, dtype=object).reshape(array.shape)
    return array
