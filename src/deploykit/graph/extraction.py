"""One node as a model of its own: its real dtypes, shapes and constants, to be run where the whole model cannot be."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from deploykit.errors import ModelError
from deploykit.graph.naming import all_nodes, name_nodes
from deploykit.graph.shapes import infer_shapes, set_dims
from deploykit.graph.signature import constant_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ORIGIN = "deploykit.node"
# A constant that is computed is computed here, when it and all before it are small: shapes, axes, scales.
_LARGEST_COMPUTED = 65_536
_LONGEST_CHAIN = 64
# What exporters compute shapes, axes, scales and masks with; each takes time and memory in proportion to its tensors.
_COMPUTED = frozenset(
    {
        "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape",
        "DequantizeLinear", "Div", "Equal", "Expand", "Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual",
        "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pad", "Pow",
        "QuantizeLinear", "Range", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape",
        "Round", "ScatterElements", "ScatterND", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile",
        "Transpose", "Trilu", "Unsqueeze", "Where",
    }
)  # fmt: skip


class NodeModels:
    """A model from which nodes are taken out by name, as often as wanted; the model given is left as it is.

    dims: sizes of symbolic dimensions; the others stay symbolic.
    """

    def __init__(self, model: ir.Model, *, dims: Mapping[str, int] | None = None) -> None:
        """Names the nodes as `graph.name_nodes` does, and infers shapes once."""
        self._dims = dict(dims or {})
        # Copying forgets what the model carries besides the graph: its external data stay mapped from their files.
        self._model = name_nodes(model.clone())
        if self._dims:
            _fix(self._model, self._dims)
        infer_shapes(self._model)
        self._nodes = {node.name: node for node in self._model.graph.all_nodes()}
        self._inlined: dict[str | None, ir.Node] | None = None

    def take(self, name: str) -> ir.Model:
        """The node of that name, alone.

        A node of a function body is taken from the first call of the function, which decides its types. Raises
        ModelError (DK227) for a node without known types, and for one in a function that nothing calls.
        """
        node = self._nodes.get(name)
        if node is None:
            node = self._in_functions().get(name)
        if node is None:
            raise ModelError(f"the model has no node {name!r} that is called", code="DK227", node=name)
        return node_model(self._model, node, dims=self._dims)

    def _in_functions(self) -> dict[str | None, ir.Node]:
        if self._inlined is None:
            work = self._model.clone()
            for node in all_nodes(work):
                node.metadata_props[_ORIGIN] = node.name or ""
            work = infer_shapes(InlinePass()(work).model)
            self._inlined = {}
            for node in work.graph.all_nodes():
                self._inlined.setdefault(node.metadata_props.pop(_ORIGIN, None), node)
            for origin, node in self._inlined.items():
                node.name = origin
        return self._inlined


def node_model(model: ir.Model, node: ir.Node, *, dims: Mapping[str, int] | None = None) -> ir.Model:
    """A model of that node alone; the model given is left as it is, and large constants are shared with it.

    model: with its shapes inferred. What the node computes with becomes an input, or an initializer where it is
    constant or follows from small constants; what the bodies of an If, Loop or Scan take from outside, too. Functions
    and opset imports go along. dims: sizes of symbolic dimensions; the others stay symbolic.
    Raises ModelError (DK227) when the type of an input is not known.
    """
    given = read_by(node)
    results = [value for value in node.outputs if value.name]
    if not results:
        raise ModelError(f"node {node.name!r} ({node.op_type}) has no output", code="DK227", node=node.name)
    opsets = dict(node.graph.opset_imports if node.graph is not None and node.graph.opset_imports else {})
    opsets = {**model.opset_imports, **opsets}
    alone = ir.GraphView(given, results, nodes=[node], opset_imports=opsets, name=node.op_type).clone()
    for original, copy in zip(given, list(alone.inputs), strict=True):
        tensor = constant_value(original, opsets)
        if tensor is not None:
            _make_constant(alone, copy, tensor)
        elif copy.type is None:
            what = f"node {node.name!r} ({node.op_type})"
            raise ModelError(
                f"{what} cannot stand alone: the type of its input {copy.name!r} is unknown",
                code="DK227",
                node=node.name,
                op=node.op_type,
                hint="declare the type of what custom operators return, in the model's value_info",
            )
    made = ir.Model(
        alone,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        functions=[function.clone() for function in functions_of(model, alone)],
    )
    if dims:
        _fix(made, dims)
    return infer_shapes(made)


def constant_value(value: ir.Value, opsets: Mapping[str, int]) -> ir.TensorProtocol | None:
    """The tensor of a value that is constant, or that follows from small constants; None for any other.

    opsets: what the graph of the value imports, by domain.
    """
    known = _literal(value)
    return known if known is not None else _computed(value, opsets)


def read_by(node: ir.Node) -> list[ir.Value]:
    """Inputs of the node, and what its bodies take from outside, each once."""
    found = dict.fromkeys(value for value in node.inputs if value is not None)
    for body in _bodies(node):
        found |= dict.fromkeys(_free_values(body))
    return list(found)


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _free_values(body: ir.Graph) -> list[ir.Value]:
    """Values that a body uses and does not make, at any depth, in the order of their use."""
    own: set[ir.Value] = set()
    used: dict[ir.Value, None] = {}
    pending = [body]
    while pending:
        current = pending.pop(0)
        own.update(current.inputs, current.initializers.values())
        used |= dict.fromkeys(current.outputs)
        for node in current:
            own.update(node.outputs)
            used |= dict.fromkeys(value for value in node.inputs if value is not None)
            pending += _bodies(node)
    return [value for value in used if value not in own]


def functions_of(model: ir.Model, graph: ir.Graph) -> list[ir.Function]:
    """The functions that the graph calls, and those that they call."""
    found: dict[Any, ir.Function] = {}
    pending = list(graph.all_nodes())
    while pending:
        identifier = pending.pop().op_identifier()
        function = model.functions.get(identifier)
        if function is not None and identifier not in found:
            found[identifier] = function
            pending += function.graph.all_nodes()
    return list(found.values())


def _make_constant(graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    graph.inputs.remove(value)
    value.const_value = tensor
    value.type = ir.TensorType(tensor.dtype)
    value.shape = ir.Shape(tensor.shape.numpy())
    graph.register_initializer(value)


def _fix(model: ir.Model, dims: Mapping[str, int]) -> None:
    """Puts sizes in the place of symbols; other symbols keep their names."""
    declared = {value: value.shape for value in model.graph.inputs}
    set_dims(model, dims)
    for value, shape in declared.items():
        if shape is not None:
            value.shape = ir.Shape([dim if isinstance(dim, int) else dims.get(str(dim.value), dim) for dim in shape])


def _literal(value: ir.Value) -> ir.TensorProtocol | None:
    """An initializer, what a Constant node holds in any of its attributes, or a shape that is known."""
    tensor = constant_of(value)
    producer = value.producer()
    if tensor is None and producer is not None and producer.op_type == "Shape" and producer.domain in ("", "ai.onnx"):
        return _known_shape(producer)
    if tensor is not None or producer is None or producer.op_type != "Constant" or len(producer.attributes) != 1:
        return tensor
    (attribute,) = producer.attributes.values()
    kind = _LITERALS.get(attribute.name)
    if kind is None or attribute.is_ref():
        return None
    if kind == ir.DataType.STRING:
        texts = [attribute.value] if attribute.name == "value_string" else list(attribute.value)
        encoded = [text if isinstance(text, bytes) else str(text).encode() for text in texts]
        return ir.StringTensor(encoded, shape=ir.Shape([] if attribute.name == "value_string" else [len(encoded)]))
    return ir.tensor(np.array(attribute.value, kind.numpy()), name=value.name)


def _known_shape(node: ir.Node) -> ir.TensorProtocol | None:
    """What a Shape node gives, where it reads numbers only."""
    (value,) = node.inputs
    sizes = list(value.shape) if value is not None and value.shape is not None else [None]
    chosen = sizes[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(sizes))]
    if not all(isinstance(size, int) for size in chosen) or sizes == [None]:
        return None
    return ir.tensor(np.array(chosen, np.int64), name=node.outputs[0].name)


_LITERALS = {
    "value_int": ir.DataType.INT64,
    "value_ints": ir.DataType.INT64,
    "value_float": ir.DataType.FLOAT,
    "value_floats": ir.DataType.FLOAT,
    "value_string": ir.DataType.STRING,
    "value_strings": ir.DataType.STRING,
}


def _computed(value: ir.Value, opsets: Mapping[str, int]) -> ir.TensorProtocol | None:
    """What a chain of nodes makes of constants; None when it is long, large, random or not only of constants.

    Sizes are known before anything is computed: a ConstantOfShape can ask for any amount of memory.
    """
    chain: dict[ir.Node, None] = {}  # in order: each node after those that it needs
    constants: dict[ir.Value, ir.TensorProtocol] = {}
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        current = pending[-1]
        tensor, producer = _literal(current), current.producer()
        if tensor is not None:
            if tensor.size > _LARGEST_COMPUTED:
                return None
            constants[current] = tensor
            pending.pop()
            continue
        if producer is None or len(seen) > _LONGEST_CHAIN or not _may_be_computed(producer):
            return None
        if current in seen or producer in chain:
            chain[producer] = None
            pending.pop()
            continue
        seen.add(current)
        pending += [given for given in producer.inputs if given is not None and given not in constants]
    return _evaluate(value, list(chain), constants, opsets)


def _may_be_computed(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or node.op_type not in _COMPUTED:
        return False
    return all(_size(value) is not None for value in node.outputs if value.name)


def _size(value: ir.Value) -> int | None:
    """Elements of a value with a small, known shape; None for any other."""
    size = 1
    for dim in value.shape if value.shape is not None else (None,):
        if not isinstance(dim, int):
            return None
        size *= dim
    return size if size <= _LARGEST_COMPUTED else None


def _evaluate(
    value: ir.Value,
    nodes: Sequence[ir.Node],
    constants: Mapping[ir.Value, ir.TensorProtocol],
    opsets: Mapping[str, int],
) -> ir.TensorProtocol | None:
    """The nodes' result by ONNX's own reference implementation; None when it has none for them."""
    from onnx.reference import ReferenceEvaluator

    view = ir.GraphView(list(constants), [value], nodes=nodes, opset_imports=dict(opsets), name="constant").clone()
    for given, tensor in zip(list(view.inputs), constants.values(), strict=True):
        _make_constant(view, given, tensor)
    proto = ir.to_proto(ir.Model(view, ir_version=10))
    with contextlib.suppress(Exception):  # whatever it does not do: the value is then an input like others
        (result,) = ReferenceEvaluator(proto).run(None, {})
        return ir.tensor(np.asarray(result), name=value.name)
    return None
