"""LiteRT models in LiteRT's own interpreter, on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deploykit.converters.litert.flatbuffer import NAME, cpu_threads, interpreter, parse, read, versioned
from deploykit.converters.litert.interface import interface_of
from deploykit.converters.litert.kernels import kernels_of
from deploykit.errors import ModelError, UnavailableError
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.converters.litert.interface import Port
    from deploykit.runtime import Feeds, Kernel, Outputs

    Array = np.ndarray[Any, Any]


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The model in LiteRT.

    Raises InvalidFileError (DK528), ModelError (DK202) for a model with operators that LiteRT lacks, UnavailableError
    (DK502) for another device than the CPU.
    """
    return LiteRtRuntime(path, options)


class LiteRtRuntime(Runtime):
    """An interpreter whose inputs are resized when the sizes change."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """See `load`."""
        if options.device not in ("cpu", "all"):
            raise UnavailableError(
                f"LiteRT's Python package runs models on the CPU only, not on {options.device}",
                code="DK502",
                target=NAME,
                hint="leave --device away",
            )
        content = read(path)
        # Its own default is one thread, whatever the machine; the others take all.
        threads = options.threads or cpu_threads()
        self._interpreter = interpreter(content, path.name, threads=threads, delegates=options.optimize)
        model = parse(content, path.name)
        found = interface_of(model)
        self._ports, self._results, self._doors = found.inputs, found.outputs, found.doors
        self.inputs, self.outputs = found.specs(found.inputs), found.specs(found.outputs)
        self._content, self._file = content, path.name
        self._stateful = any(tensor.isVariable for graph in model.subgraphs for tensor in graph.tensors or [])
        self._sizes: dict[int, tuple[int, ...]] = {}
        self.engine = f"litert {versioned()} ({'XNNPACK' if options.optimize else 'CPU'})"
        if not any(isinstance(size, str) for port in found.inputs for size in port.shape):
            self._allocate(path.name)
        self._name = path.name

    def _allocate(self, name: str) -> None:
        try:
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as problem:
            raise ModelError(
                f"LiteRT {versioned()} does not run {name}: {' '.join(str(problem).split())[:600]}",
                code="DK202",
                file=name,
                hint="it has operators that are not LiteRT's own: Select TensorFlow or custom ones",
            ) from problem

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name in the model's dtypes. Raises ValueError for sizes that the model does not take."""
        given = [self._given(port, np.asarray(feeds[port.name])) for port in self._ports]
        sizes = {port.tensor: array.shape for port, array in zip(self._ports, given, strict=True)}
        if sizes != self._sizes:
            for tensor, shape in sizes.items():
                self._interpreter.resize_tensor_input(tensor, list(shape))
            self._interpreter.allocate_tensors()
            self._sizes = sizes
        if self._stateful:
            # Fused recurrent kernels go on from the last call's state; a model of ONNX or Keras starts anew.
            self._interpreter.reset_all_variables()
        for port, array in zip(self._ports, given, strict=True):
            self._interpreter.set_tensor(port.tensor, array)
        self._interpreter.invoke()
        return {port.name: self._taken(port, self._interpreter.get_tensor(port.tensor)) for port in self._results}

    def _given(self, port: Port, array: Array) -> Array:
        if port.name in self._doors:
            array = self._doors[port.name].given(array, port)
        if port.dtype == "string":
            texts = [text if isinstance(text, bytes) else str(text).encode() for text in array.ravel()]
            return np.array(texts, dtype=np.bytes_).reshape(array.shape)
        return np.ascontiguousarray(array)

    def _taken(self, port: Port, array: Array) -> Array:
        if port.dtype == "string":
            texts = [text.decode("utf-8", errors="replace") for text in array.ravel()]
            return np.array(texts, dtype=object).reshape(array.shape)
        return self._doors[port.name].taken(array, port) if port.name in self._doors else array

    def kernels(self, feeds: Feeds) -> list[Kernel] | None:
        """The operators of one call with their types and work; the Python interpreter gives no times."""
        # Tensors between operators that a delegate took keep the sizes of the file.
        plain = interpreter(self._content, self._file, delegates=False)
        given = {port.tensor: self._given(port, np.asarray(feeds[port.name])) for port in self._ports}
        for tensor, array in given.items():
            plain.resize_tensor_input(tensor, list(array.shape))
        plain.allocate_tensors()
        for tensor, array in given.items():
            plain.set_tensor(tensor, array)
        plain.invoke()
        shapes = {detail["index"]: detail["shape"] for detail in plain.get_tensor_details()}
        return kernels_of(parse(self._content, self._file), shapes)

    def close(self) -> None:
        """Frees the interpreter."""
        del self._interpreter
