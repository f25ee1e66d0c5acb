"""What ONNX Runtime executed: kernels, their precision and their work, from its profiler and its optimised graph."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from deploykit.converters.onnxruntime.kernel_macs import macs_of
from deploykit.runtime import Kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import onnx_ir

    Shape = tuple[int, ...]

_SUFFIX = "_kernel_time"
_CONTROL_FLOW = {"If", "Loop", "Scan"}
# Kernels that compute in int8 whatever the type of their first input: the float input is quantized inside.
_INT8_KERNELS = (
    "QLinear",
    "QGemm",
    "MatMulInteger",
    "ConvInteger",
    "QAttention",
    "DynamicQuantize",
    "QEmbed",
    "QOrdered",
)
_PRECISIONS = {
    "float": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "double": "fp64",
    "uint8": "int8",
    "int8": "int8",
}


def kernels_of(profile: Path, optimised: Path, model: Path) -> list[Kernel]:
    """The kernels of the last call in a profile, in the order of their first execution.

    profile: what `InferenceSession.end_profiling` wrote. optimised: the graph that was executed. model: the artifact,
    whose node names the kernels are traced back to. A kernel that runs several times (in a Loop) is listed once, with
    the sums of its work and time.
    """
    import onnx_ir

    executed = list(_nodes(onnx_ir.load(optimised).graph))
    original = list(_nodes(onnx_ir.load(model).graph))
    origins = _origins(executed, original)
    by_name: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, executed_node in enumerate(executed):
        by_name[executed_node.name or "", executed_node.op_type].append(place)
    found: dict[tuple[str, str], Kernel] = {}
    for event in _last_call(json.loads(profile.read_text(encoding="utf-8"))):
        name, op = event["name"].removesuffix(_SUFFIX), event["args"]["op_name"]
        index = next(iter(by_name.get((name, op), ())), None)
        node = None if index is None else executed[index]
        key, before = (name, op), found.get((name, op))
        found[key] = Kernel(
            name=name,
            op=op,
            precision=_precision(op, event["args"]),
            nodes=() if index is None else tuple(_name(original[i], i) for i in origins[index]),
            macs=_macs(node, event["args"], [original[i] for i in origins[index]] if index is not None else [])
            + (before.macs if before else 0),
            # A control flow node's time is that of its body, whose kernels are listed themselves.
            microseconds=None if op in _CONTROL_FLOW else event["dur"] + (before.microseconds or 0 if before else 0),
        )
    return list(found.values())


def _nodes(graph: Any) -> Iterator[onnx_ir.Node]:
    """All nodes in topological order, those of bodies before the node that has them."""
    import onnx_ir

    for node in graph:
        for attribute in node.attributes.values():
            if attribute.type == onnx_ir.AttributeType.GRAPH:
                yield from _nodes(attribute.as_graph())
        yield node


def _last_call(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    start = max((event["ts"] for event in events if event.get("name") == "model_run"), default=0)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX) and event["ts"] >= start:
            yield event


def _precision(op: str, arguments: dict[str, Any]) -> str:
    if op.startswith(_INT8_KERNELS):
        return "int8"
    kinds = [kind for tensor in arguments.get("input_type_shape", ()) for kind in tensor]
    kinds += [kind for tensor in arguments.get("output_type_shape", ()) for kind in tensor]
    # The first floating-point tensor says what is computed in: indices, masks and shapes are integers everywhere.
    floating = [kind for kind in kinds if kind in ("float", "float16", "bfloat16", "double")]
    quantized = kinds and kinds[0] in ("uint8", "int8") and op != "DequantizeLinear"
    if floating and not quantized:
        return _PRECISIONS[floating[0]]
    return _PRECISIONS.get(kinds[0], kinds[0]) if kinds else "unknown"


def _name(node: onnx_ir.Node, position: int) -> str:
    return node.name or f"{node.op_type}_{position}"


def _macs(node: onnx_ir.Node | None, arguments: dict[str, Any], origins: Sequence[onnx_ir.Node]) -> int:
    outputs = [tuple(shape) for tensor in arguments.get("output_type_shape", ()) for shape in tensor.values()]
    if node is None or not outputs:
        return 0
    inputs, output = _input_shapes(node, arguments), outputs[0]
    weights = _weights_before_blocking(node, origins)
    if weights is not None:
        inputs[1], output = weights, (output[0], weights[0], *output[2:])
    return macs_of(node, inputs, output)


def _weights_before_blocking(node: onnx_ir.Node, origins: Sequence[onnx_ir.Node]) -> Shape | None:
    """The weights' shape in the artifact, where the executed convolution has channels padded to the CPU's block."""
    from onnx_ir.convenience import get_const_tensor

    if node.domain != "com.microsoft.nchwc" or node.op_type != "Conv":
        return None
    for origin in origins:
        if origin.op_type == "Conv" and (value := origin.inputs[1]) is not None:
            tensor = get_const_tensor(value)
            return None if tensor is None else tuple(int(str(size)) for size in tensor.shape)
    return None


def _input_shapes(node: onnx_ir.Node, arguments: dict[str, Any]) -> list[Shape | None]:
    """Shapes by input position: activations from the profile, weights from the graph.

    The profiler leaves out missing inputs, and weights that a kernel has repacked for itself.
    """
    told = [tuple(shape) for tensor in arguments.get("input_type_shape", ()) for shape in tensor.values()]
    shapes: list[Shape | None] = []
    for value in node.inputs:
        if value is None:
            shapes.append(None)
        elif value.const_value is not None:
            shape = tuple(int(str(size)) for size in value.const_value.shape)
            if told and told[0] == shape:
                told.pop(0)
            shapes.append(shape)
        else:
            shapes.append(told.pop(0) if told else None)
    return shapes


def _origins(executed: list[onnx_ir.Node], original: list[onnx_ir.Node]) -> list[list[int]]:
    """For each executed node the positions of the nodes of the artifact that went into it.

    ONNX Runtime keeps tensor names at the border of what it fuses and derives names from the nodes or tensors it
    replaces. So each executed node is anchored by its outputs and its name, and takes what lies before the anchor and
    belongs to nobody yet. What is left over (a Relu or QuantizeLinear that moved into its producer) goes to where its
    input was computed; folded constants go nowhere.
    """
    producer = {out.name: i for i, node in enumerate(original) for out in node.outputs if out.name}
    position = {node.name: i for i, node in enumerate(original) if node.name}
    owner: dict[int, int] = {}
    for index, node in enumerate(executed):
        anchors = [producer[out.name] for out in node.outputs if out.name in producer]
        anchors += [found for name in _former_names(node.name or "") if (found := position.get(name)) is not None]
        anchors += [found for name in _former_names(node.name or "") if (found := producer.get(name)) is not None]
        borders = {value.name for value in node.inputs if value is not None}
        pending = [anchor for anchor in dict.fromkeys(anchors) if anchor not in owner]
        while pending:
            current = pending.pop()
            if current in owner:
                continue
            owner[current] = index
            inside = [v.name for v in original[current].inputs if v is not None and v.name not in borders]
            pending.extend(producer[name] for name in inside if name in producer)
    for i, node in enumerate(original):
        if i not in owner:
            sources = [producer[v.name] for v in node.inputs if v is not None and v.name in producer]
            taken = [owner[source] for source in sources if source in owner]
            if taken:
                owner[i] = taken[0]
    groups: list[list[int]] = [[] for _ in executed]
    for i, index in sorted(owner.items()):
        groups[index].append(i)
    return groups


def _former_names(name: str) -> Iterable[str]:
    """Names that ONNX Runtime may have made `name` of: `X_nchwc`, `X_token_3`, `fused X`."""
    yield name
    stem = name.removeprefix("fused ").removesuffix("_nchwc").removesuffix("_nhwc")
    yield stem
    head, token, number = stem.rpartition("_token_")
    if token and number.isdigit():
        yield head
