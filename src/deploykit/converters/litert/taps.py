"""The tensors inside a LiteRT model, read by cutting the file: a part with them as outputs, run by the interpreter."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
from ai_edge_litert.schema_py_generated import BufferT, SubGraphT

from deploykit.converters.litert.flatbuffer import (
    cpu_threads,
    dtype_name,
    interpreter,
    operator_name,
    parse,
    read,
    serialize,
    text,
    versioned,
)
from deploykit.converters.litert.interface import AXES, Port, interface_of, quantization_of, traced_names
from deploykit.taps import Inner, Taps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from deploykit.runtime import Feeds, Outputs, RuntimeOptions

    Array = np.ndarray[Any, np.dtype[Any]]

_EIGHT_BITS = ("int8", "uint8", "int16")


class LiteRtTaps(Taps):
    """A model that stays loaded; each reading writes and runs the part that it needs.

    Integers that stand for real numbers are read as these.
    """

    def __init__(self, content: bytes, name: str, options: RuntimeOptions) -> None:
        """content: of the file of that name. Raises InvalidFileError (DK528), ModelError (DK202)."""
        self._name = name
        self._threads = options.threads or cpu_threads()
        self._optimize = options.optimize
        interpreter(content, name, delegates=False)
        self._model = parse(content, name)
        self._graph = self._model.subgraphs[0]
        found = interface_of(self._model)
        self._ports, self._doors = found.inputs, found.doors
        self.inputs = found.specs(found.inputs)
        self.engine = f"litert {versioned()} ({'XNNPACK' if options.optimize else 'CPU'})"
        self.tensors = {}
        self._index: dict[str, int] = {}
        for operator in self._graph.operators or []:
            op = operator_name(self._model, operator)
            for index in operator.outputs if operator.outputs is not None else []:
                tensor = text(self._graph.tensors[index].name) or f"tensor_{index}"
                tensor = tensor if tensor not in self._index else f"{tensor}#{index}"
                self._index[tensor] = int(index)
                self.tensors[tensor] = Inner(tensor, tensor, op)
        self._known = {port.name: self._called(port.tensor) for port in found.outputs}
        for name_there, place in traced_names(self._model).items():
            index, _, axes = place.partition(AXES)
            tensor = self._called(int(index)) if index.isdecimal() else ""
            if tensor and _is_order(axes):
                own = f"{tensor}{AXES}{axes}" if axes else tensor
                self._known.setdefault(name_there, own)
                self.tensors.setdefault(own, Inner(own, tensor, self.tensors[tensor].op))

    def _called(self, index: int) -> str:
        return next((name for name, found in self._index.items() if found == index), "")

    def find(self, names: Iterable[str]) -> dict[str, str]:
        """By what the conversion found to be the same values, and the outputs by name."""
        return {name: own for name in names if (own := self._known.get(name, "")) in self.tensors}

    def read(self, feeds: Feeds, names: Sequence[str], given: Mapping[str, Array] | None = None) -> Outputs:
        """Tensors by name, in the model's order of axes."""
        starts = {self._at(name)[0]: self._stored(name, array) for name, array in (given or {}).items()}
        part, inputs = self._part([self._at(name)[0] for name in names], list(starts))
        engine = interpreter(serialize(part), self._name, threads=self._threads, delegates=self._optimize)
        values = {port.tensor: self._fed(port, feeds) for port in self._ports if port.tensor in inputs} | starts
        for index in inputs:
            engine.resize_tensor_input(index, list(values[index].shape))
        engine.allocate_tensors()
        for index in inputs:
            engine.set_tensor(index, values[index])
        engine.invoke()
        return {name: self._meant(name, engine.get_tensor(self._at(name)[0])) for name in names}

    def save_part(
        self,
        path: Path,
        names: Sequence[str],
        given: Mapping[str, Array],
        called: Mapping[str, str],
        like: Mapping[str, Array],
    ) -> tuple[Path, ...]:
        """The part as a LiteRT file, its tensors as the file has them."""
        if any(AXES in name for name in (*names, *given)):
            return ()
        part, _ = self._part([self._at(name)[0] for name in names], [self._at(name)[0] for name in given])
        graph = part.subgraphs[0]
        graph.tensors = [copy.copy(tensor) for tensor in graph.tensors]
        for name in (*names, *given):
            graph.tensors[self._at(name)[0]].name = called.get(name, name)
        file = path.with_suffix(".tflite")
        file.write_bytes(serialize(part))
        return (file,)

    def _at(self, name: str) -> tuple[int, tuple[int, ...]]:
        tensor, _, axes = name.partition(AXES)
        return self._index[tensor], tuple(int(axis) for axis in axes.split(",")) if axes else ()

    def _fed(self, port: Port, feeds: Feeds) -> Array:
        array = np.asarray(feeds[port.name])
        return self._doors[port.name].given(array, port) if port.name in self._doors else np.ascontiguousarray(array)

    def _meant(self, name: str, array: Array) -> Array:
        index, order = self._at(name)
        scale, zero_point = quantization_of(self._graph.tensors[index])
        if scale and array.dtype.name in _EIGHT_BITS:
            array = ((array.astype(np.float32) - np.float32(zero_point)) * np.float32(scale)).astype(np.float32)
        return array.transpose(order) if order else array

    def _stored(self, name: str, array: Array) -> Array:
        index, order = self._at(name)
        tensor = self._graph.tensors[index]
        array = array.transpose(np.argsort(order)) if order else array
        scale, zero_point = quantization_of(tensor)
        kind = dtype_name(tensor.type)
        if scale and kind in _EIGHT_BITS and array.dtype.kind == "f":
            limits = np.iinfo(kind)
            array = np.clip(np.rint(array / np.float32(scale)) + zero_point, limits.min, limits.max)
        return np.ascontiguousarray(array.astype(kind))

    def _part(self, wanted: Sequence[int], given: Sequence[int]) -> tuple[Any, list[int]]:
        """A model of the operators that compute the wanted tensors from the given ones, and its inputs."""
        needed, operators = set(wanted), []
        for operator in reversed(self._graph.operators or []):
            outputs = {int(index) for index in operator.outputs}
            if (needed - set(given)) & outputs:
                operators.append(operator)
                needed |= {int(index) for index in operator.inputs if index >= 0}
        graph = copy.copy(self._graph)
        assert isinstance(graph, SubGraphT)
        graph.operators = operators[::-1]
        graph.inputs = [index for index in [*given, *(port.tensor for port in self._ports)] if index in needed]
        graph.outputs = list(dict.fromkeys(wanted))
        part = copy.copy(self._model)
        part.subgraphs = [graph, *self._model.subgraphs[1:]]
        part.signatureDefs, part.metadata = [], []
        read_by = [self._graph.tensors[index].buffer for index in needed]
        kept = {*read_by, *(tensor.buffer for other in self._model.subgraphs[1:] for tensor in other.tensors)}
        empty = BufferT()
        part.buffers = [buffer if at in kept else empty for at, buffer in enumerate(self._model.buffers)]
        return part, graph.inputs


def _is_order(axes: str) -> bool:
    return not axes or sorted(axes.split(",")) == [str(axis) for axis in range(len(axes.split(",")))]


def open_taps(path: Path, options: RuntimeOptions) -> Taps:
    """The tensors of a LiteRT file. Raises InvalidFileError (DK528), ModelError (DK202)."""
    return LiteRtTaps(read(path), path.name, options)
