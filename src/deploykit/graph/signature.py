"""What a model looks like from outside: inputs, outputs, opset, precision, and the Artifact of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deploykit.artifact import Artifact, TensorSpec, read_manifest
from deploykit.graph.naming import all_nodes
from deploykit.graph.reading import EXTERNAL_FILES, load

if TYPE_CHECKING:
    from pathlib import Path

FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}
_FLOAT_NAMES = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.DOUBLE: "fp64",
}
_INT4 = {ir.DataType.INT4, ir.DataType.UINT4}
_DYNAMIC = {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
_STATIC = {
    "QLinearConv",
    "QLinearMatMul",
    "QGemm",
    "QLinearAdd",
    "QLinearMul",
    "QLinearGlobalAveragePool",
    "QAttention",
}
_BLOCKWISE = {"MatMulNBits", "GatherBlockQuantized"}
# The share of weight bytes below which a second float type is a detail (kept scales, a float32 output layer).
_DETAIL = 0.05


def dtype_name(dtype: ir.DataType | None) -> str:
    """Numpy's name ("float32", "bool", "bfloat16", "int4"), "string", or "unknown"."""
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return "unknown"
    if dtype == ir.DataType.STRING:
        return "string"
    return str(np.dtype(dtype.numpy()).name)


def spec_of(value: ir.Value) -> TensorSpec:
    """Name, dtype and shape of a value; a dimension without number and name gets one of its own (`x_dim0`)."""
    name = value.name or ""
    if value.type is not None and not isinstance(value.type, (ir.TensorType, ir.SparseTensorType)):
        kind = "optional" if isinstance(value.type, ir.OptionalType) else "sequence"
        return TensorSpec(name, f"{kind}({dtype_name(value.dtype)})", None)
    if value.shape is None:
        return TensorSpec(name, dtype_name(value.dtype), None)
    shape: list[int | str] = []
    for at, dim in enumerate(value.shape):
        if isinstance(dim, int):
            # Some tools write -1 for "any"; 0 is a size like any other (an empty cache).
            shape.append(dim if dim >= 0 else f"{name}_dim{at}")
        else:
            shape.append(str(dim.value) if dim.value else f"{name}_dim{at}")
    return TensorSpec(name, dtype_name(value.dtype), tuple(shape))


def interface(model: ir.Model) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs that a caller must feed (initializers with an input of the same name are left out), and outputs."""
    constants = model.graph.initializers
    inputs = tuple(spec_of(value) for value in model.graph.inputs if value.name not in constants)
    return inputs, tuple(spec_of(value) for value in model.graph.outputs)


def opset(model: ir.Model) -> int:
    """Version of the standard operators; 0 when the model imports none."""
    imports = model.opset_imports
    return imports.get("", imports.get("ai.onnx", 0))


def precision_of(model: ir.Model) -> str:
    """Precision as `quantize` names it, told from the graph.

    "int8" (activations quantized), "int8-dynamic", "int8-weights" and "int4-weights" (only weights), or the float type
    of the weights: "fp32", "fp16", "bf16", "fp64", "mixed".
    """
    ops = {node.op_type for node in all_nodes(model)}
    if ops & _DYNAMIC:
        return "int8-dynamic"
    if "QuantizeLinear" in ops or ops & _STATIC:
        return "int8"
    if ops & _BLOCKWISE:
        return "int4-weights"
    weights = [tensor.dtype for node in all_nodes(model) if (tensor := _dequantized_weight(node)) is not None]
    if weights:
        return "int4-weights" if any(dtype in _INT4 for dtype in weights) else "int8-weights"
    return _float_precision(model)


def _dequantized_weight(node: ir.Node) -> ir.TensorProtocol | None:
    if node.op_type != "DequantizeLinear" or not node.inputs or node.inputs[0] is None:
        return None
    return constant_of(node.inputs[0])


# The short forms of a Constant's value.
_NUMBERS = {
    "value_int": ir.DataType.INT64,
    "value_ints": ir.DataType.INT64,
    "value_float": ir.DataType.FLOAT,
    "value_floats": ir.DataType.FLOAT,
}


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of a Constant node's output; None for anything computed."""
    if value is None:
        return None
    if value.const_value is not None and value.producer() is None:
        return value.const_value
    producer = value.producer()
    if producer is None or producer.op_type != "Constant" or len(producer.attributes) != 1:
        return None
    name, attribute = next(iter(producer.attributes.items()))
    if attribute.is_ref():
        return None
    if name == "value":
        # Not as_tensor(): its check of a protocol takes ten times as long as all else here.
        return None if attribute.type != ir.AttributeType.TENSOR else attribute.value
    kind = _NUMBERS.get(name)
    return None if kind is None else ir.tensor(attribute.value, dtype=kind, name=value.name)


def _float_precision(model: ir.Model) -> str:
    sizes: dict[ir.DataType, int] = {}
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype in FLOATS:
                dtype = value.const_value.dtype
                sizes[dtype] = sizes.get(dtype, 0) + value.const_value.size
    for node in all_nodes(model):
        tensor = constant_of(node.outputs[0]) if node.op_type == "Constant" else None
        if tensor is not None and tensor.dtype in FLOATS:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size
    if not sizes:
        kinds = [value.dtype for value in [*model.graph.inputs, *model.graph.outputs] if value.dtype in FLOATS]
        return _FLOAT_NAMES[kinds[0]] if kinds and kinds[0] is not None else "fp32"
    total = sum(sizes.values())
    main = [dtype for dtype, size in sizes.items() if size > _DETAIL * total]
    return _FLOAT_NAMES[main[0]] if len(main) == 1 else "mixed"


def describe(path: Path, model: ir.Model | None = None) -> Artifact:
    """The Artifact of an existing ONNX file, external data included in its files, size and digest.

    model: what `load(path)` gave, to save reading it again.
    Origin (parent, stage, options, target, precision) comes from the manifest when the manifest's digest is the file's.
    Raises InvalidFileError and ModelError as `load` does.
    """
    model = load(path) if model is None else model
    inputs, outputs = interface(model)
    found = Artifact.of(
        path,
        "onnx",
        files=(path.name, *model.meta[EXTERNAL_FILES]),
        inputs=inputs,
        outputs=outputs,
        opset=opset(model) or None,
        precision=precision_of(model),
    )
    claim = read_manifest(path)
    if claim is None or claim.sha256 != found.sha256 or claim.format != found.format:
        return found
    return _with_origin(found, claim)


def _with_origin(found: Artifact, claim: Artifact) -> Artifact:
    return Artifact(
        path=found.path,
        format=found.format,
        inputs=found.inputs,
        outputs=found.outputs,
        target=claim.target,
        precision=claim.precision,
        opset=found.opset,
        sha256=found.sha256,
        size_bytes=found.size_bytes,
        parent_sha256=claim.parent_sha256,
        execution=claim.execution,
        stage=claim.stage,
        options=claim.options,
        tool_versions=claim.tool_versions,
        files=found.files,
        # Only what still lies beside it: nothing that was made of the file can come with what is gone.
        companions=tuple(name for name in claim.companions if (found.path.parent / name).exists()),
    )
