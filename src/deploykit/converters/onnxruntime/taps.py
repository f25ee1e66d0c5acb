"""The tensors inside an ONNX model, read by making them outputs of the part that computes them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph, io
from deploykit.converters.onnxruntime.runtime import OnnxRuntime
from deploykit.graph.parts import part_of
from deploykit.graph.signature import constant_of
from deploykit.taps import Inner, Taps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deploykit.runtime import Feeds, Outputs, RuntimeOptions

    Array = np.ndarray[Any, np.dtype[Any]]

# What the binding does not pass as arrays leaves through a Cast to float32, which holds all its values.
_CAST = {
    ir.DataType.BFLOAT16,
    ir.DataType.FLOAT8E4M3FN,
    ir.DataType.FLOAT8E4M3FNUZ,
    ir.DataType.FLOAT8E5M2,
    ir.DataType.FLOAT8E5M2FNUZ,
}
# Where operators that write integers have the scale and zero point of their output.
_OUTPUT_SCALE = {
    "QuantizeLinear": (1, 2),
    "QLinearConv": (6, 7),
    "QLinearMatMul": (6, 7),
    "QLinearAdd": (6, 7),
    "QLinearMul": (6, 7),
    "QGemm": (7, 8),
    "QLinearConcat": (0, 1),
    "QLinearSigmoid": (3, 4),
    "QLinearLeakyRelu": (3, 4),
    "QLinearSoftmax": (3, 4),
    "QLinearAveragePool": (3, 4),
    "QLinearGlobalAveragePool": (3, 4),
}
# What quantizers put behind the name of the tensor that the integers stand for.
_QUANTIZED = "_quantized"


class OnnxTaps(Taps):
    """An ONNX model that stays loaded, every node named; each reading is a session of the part that it needs."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """Loads the graph. Raises what `graph.load` does."""
        self._options = options
        self._graph = graph.load(path)
        self.model = self._graph
        self.own_names = frozenset(node.name for node in self._graph.graph if node.name)
        graph.name_nodes(self._graph)
        self.inputs, _ = graph.interface(self._graph)
        self.engine = f"ONNX Runtime, graph optimisation {'on' if options.optimize else 'off'}"
        self.tensors = {
            value.name: Inner(value.name, node.name or node.op_type, node.op_type)
            for node in self._graph.graph
            for value in node.outputs
            if value.name
        }
        self._scales = {
            value.name: scale
            for node in self._graph.graph
            for value in node.outputs[:1]
            if value.name and (scale := _output_scale(node)) is not None
        }

    def find(self, names: Iterable[str]) -> dict[str, str]:
        """By name; integers stand for the tensor that they quantize, and are read as what they stand for."""
        found = {}
        for name in names:
            if name in self.tensors and name not in self._scales:
                found[name] = name
            elif f"{name}{_QUANTIZED}" in self._scales:
                found[name] = f"{name}{_QUANTIZED}"
        return found

    def read(self, feeds: Feeds, names: Sequence[str], given: Mapping[str, Array] | None = None) -> Outputs:
        """Tensors by name, integers with a scale dequantized; given ones are quantized again."""
        stored = {name: self._stored(name, array) for name, array in (given or {}).items()}
        part = part_of(self._graph, names, stored)
        cast = _cast_out(part)
        with io.scratch_folder() as folder:
            path = Path(folder) / "part.onnx"
            graph.save(part, path)
            del part
            runtime = OnnxRuntime(path, self._options)
            try:
                wanted = {spec.name for spec in runtime.inputs}
                fed = {name: array for name, array in {**feeds, **stored}.items() if name in wanted}
                outputs = runtime.predict(fed)
            finally:
                runtime.close()
        return {name: self._meant(name, outputs[cast.get(name, name)]) for name in names}

    def save_part(
        self,
        path: Path,
        names: Sequence[str],
        given: Mapping[str, Array],
        called: Mapping[str, str],
        like: Mapping[str, Array],
    ) -> tuple[Path, ...]:
        """The part as an ONNX file, in the model's own types; () where integers stand for its inputs or outputs."""
        if any(name in self._scales for name in (*names, *given)):
            return ()
        part = part_of(self._graph, names, given)
        _rename(part, called)
        return tuple(path.with_name(name) for name in graph.save(graph.infer_shapes(part), path))

    def _meant(self, name: str, array: Array) -> Array:
        scale = self._scales.get(name)
        if scale is None or array.dtype.itemsize > 1:
            return array
        meant: Array = ((array.astype(np.float32) - np.float32(scale[1])) * scale[0]).astype(np.float32)
        return meant

    def _stored(self, name: str, array: Array) -> Array:
        scale = self._scales.get(name)
        if scale is None or array.dtype.kind != "f":
            return array
        limits = np.iinfo(scale[1].dtype)
        levels = np.clip(np.rint(array / scale[0]) + np.float32(scale[1]), limits.min, limits.max)
        stored: Array = levels.astype(scale[1].dtype)
        return stored


def open_taps(path: Path, options: RuntimeOptions) -> Taps:
    """The tensors of an ONNX file. Raises what `graph.load` does."""
    return OnnxTaps(path, options)


def _output_scale(node: ir.Node) -> tuple[Array, Array] | None:
    """Scale and zero point of a node's integer output, where it has one of each for the whole tensor."""
    at = _OUTPUT_SCALE.get(node.op_type)
    if at is None or len(node.inputs) <= at[1]:
        return None
    tensors = [constant_of(node.inputs[place]) for place in at]
    if any(tensor is None or tensor.size != 1 for tensor in tensors):
        return None
    scale, zero = (np.asarray(tensor.numpy()).reshape(()) for tensor in tensors if tensor is not None)
    return (scale.astype(np.float32), zero) if zero.dtype in (np.int8, np.uint8) else None


def _rename(part: ir.Model, called: Mapping[str, str]) -> None:
    """Renames tensors; another one that has such a name already gets a longer one."""
    values = [*part.graph.inputs, *part.graph.initializers.values()]
    values += [value for node in part.graph for value in node.outputs]
    moved = {name: value for value in values if (name := called.get(value.name or "")) is not None}
    for value in values:
        if value.name in moved and value is not moved[value.name]:
            value.name = f"{value.name}/candidate"
    for name, value in moved.items():
        value.name = name


def _cast_out(part: ir.Model) -> dict[str, str]:
    """Puts a Cast behind outputs that no array holds; the new names by the old ones."""
    renamed = {}
    for place, value in enumerate(list(part.graph.outputs)):
        if value.dtype not in _CAST:
            continue
        cast = ir.node("Cast", [value], attributes={"to": ir.DataType.FLOAT}, name=f"tap/{value.name}")
        outer = cast.outputs[0]
        outer.name, outer.dtype, outer.shape = f"tap/{value.name}/float", ir.DataType.FLOAT, value.shape
        part.graph.append(cast)
        part.graph.outputs[place] = outer
        renamed[value.name or ""] = outer.name
    return renamed
