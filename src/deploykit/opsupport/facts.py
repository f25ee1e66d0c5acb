"""What rules are asked about: a node with its attributes, and its tensors with type, shape and constant value."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from deploykit import graph
from deploykit.graph.signature import constant_of, dtype_name
from deploykit.opsupport.registry import since_version

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    import onnx_ir as ir

# Constants above this many elements are known to be constant; their values are not looked at.
_LARGEST_VALUE = 65_536
# Operators that give a constant when their inputs are constant are all but these, and those with bodies.
_NEVER_CONSTANT = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
# Attributes that a Constant may have instead of a tensor, and the type that each means.
_CONSTANT_FORMS = {
    "value_float": "FLOAT",
    "value_floats": "FLOAT",
    "value_int": "INT64",
    "value_ints": "INT64",
    "value_string": "STRING",
    "value_strings": "STRING",
}
# Whether a value is foldable, by its id and by whether shapes count as constants.
Seen = dict[tuple[int, bool], bool]
# What onnx calls dimensions that it knows nothing of.
_MADE_UP = "unk__"


@dataclasses.dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is known of one input or output.

    dtype: numpy's name, "string", "sequence(...)", "optional(...)" or "unknown". shape: sizes, names of symbolic
    dimensions, None for a dimension without either; None when not even the rank is known.
    constant: an initializer or a Constant. foldable: constant, or computed from constants and fixed shapes only.
    sized: foldable once the dimensions of all shapes are fixed.
    used: whether a node or the model's interface takes it. producer: the operator that computes it, "" where none does.
    """

    name: str
    dtype: str = "unknown"
    shape: tuple[int | str | None, ...] | None = None
    constant: bool = False
    foldable: bool = False
    sized: bool = False
    used: bool = True
    producer: str = ""
    _tensor: ir.TensorProtocol | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def rank(self) -> int | None:
        """Number of dimensions; None when unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def value(self) -> np.ndarray[Any, Any] | None:
        """The values of a constant of up to 65,536 elements; None for anything else."""
        if self._tensor is None or self._tensor.size > _LARGEST_VALUE:
            return None
        return self._tensor.numpy()


@dataclasses.dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is known of one node.

    domain: "" for ONNX's own. since: the revision of the operator that `opset` (of its domain) means; None when the
    installed onnx does not know it. attributes: Python values as given (defaults are not filled in). inputs: None where
    an optional one is left out. symbols: names of the dynamic dimensions of the model's inputs.
    """

    name: str
    domain: str
    op: str
    opset: int
    since: int | None
    attributes: Mapping[str, Any]
    inputs: tuple[TensorFacts | None, ...]
    outputs: tuple[TensorFacts | None, ...]
    symbols: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """As the operator tables name it: `ai.onnx:Conv`."""
        return f"{self.domain or 'ai.onnx'}:{self.op}"


def facts_of(model: ir.Model, *, inferred: bool = False, dims: Mapping[str, int] | None = None) -> list[NodeFacts]:
    """Facts of every node, bodies of If, Loop and Scan included, in the order of `graph.all_nodes`.

    inferred: whether shape inference has been run on the model. dims: sizes of dimensions, by their names. Nodes
    without a name get one as `graph.name_nodes` gives it: the model given is changed in its names only.
    """
    known = model if inferred else _with_ranks(graph.infer_shapes(model))
    graph.name_nodes(known)
    shapes = (value.shape for value in known.graph.inputs if value.shape is not None)
    symbols = dict.fromkeys(dim.value for shape in shapes for dim in shape if not isinstance(dim, int) and dim.value)
    # Some exporters leave names in the interface that look like made up; there they are names like others.
    names: dict[str, int | str] = {**{name: name for name in symbols}, **(dims or {})}
    open_ = tuple(name for name in symbols if name not in (dims or {}))
    foldable: Seen = {}
    return [_facts(node, known, foldable, names, open_) for node in graph.all_nodes(known)]


def _with_ranks(model: ir.Model) -> ir.Model:
    """Adds ranks that inference leaves out: of a Reshape to computed sizes, the number of them; and what follows.

    Returns the same model.
    """
    import onnx_ir as ir

    while True:
        found = False
        for node in graph.all_nodes(model):
            if node.op_type != "Reshape" or len(node.inputs) < 2 or node.outputs[0].shape is not None:
                continue
            sizes = node.inputs[1]
            count = sizes.shape[0] if sizes is not None and sizes.shape is not None and len(sizes.shape) == 1 else None
            if isinstance(count, int):
                node.outputs[0].shape = ir.Shape([None] * count)
                found = True
        if not found:
            return model
        graph.infer_shapes(model)


def _facts(
    node: ir.Node, model: ir.Model, foldable: Seen, dims: Mapping[str, int | str], symbols: tuple[str, ...]
) -> NodeFacts:
    domain = "" if node.domain == "ai.onnx" else node.domain
    opset = node.version or model.opset_imports.get(node.domain) or model.opset_imports.get(domain) or 0
    if not opset and not domain:
        opset = graph.opset(model)
    return NodeFacts(
        name=node.name or "",
        domain=domain,
        op=node.op_type,
        opset=opset,
        since=since_version(domain, node.op_type, opset) if opset else None,
        attributes={name: attribute_value(attribute) for name, attribute in node.attributes.items()},
        inputs=tuple(None if value is None else tensor_facts(value, foldable, dims) for value in node.inputs),
        outputs=tuple(None if not value.name else tensor_facts(value, foldable, dims) for value in node.outputs),
        symbols=symbols,
    )


def attribute_value(attribute: ir.Attr) -> Any:
    """The Python value of an attribute: numbers, text, lists of them; a tensor as it is; None for a reference."""
    if attribute.is_ref():
        return None
    value = attribute.value
    if isinstance(value, (list, tuple)):
        return list(value)
    return int(value) if type(value).__name__ == "DataType" else value


def tensor_facts(
    value: ir.Value, foldable: Seen | None = None, dims: Mapping[str, int | str] | None = None
) -> TensorFacts:
    """Facts of one value. foldable: remembers what has been looked through. dims: sizes or names of dimensions."""
    import onnx_ir as ir

    tensor = _constant(value)
    seen: Seen = {} if foldable is None else foldable
    producer = value.producer()
    dtype = dtype_name(value.dtype if tensor is None else tensor.dtype)
    if value.type is not None and not isinstance(value.type, (ir.TensorType, ir.SparseTensorType)):
        kind = "optional" if isinstance(value.type, ir.OptionalType) else "sequence"
        return TensorFacts(value.name or "", f"{kind}({dtype})")
    shape: tuple[int | str | None, ...] | None = None
    if tensor is not None:
        shape = tuple(tensor.shape.numpy())
    elif value.shape is not None:
        shape = tuple(_dim(dim, dims or {}) for dim in value.shape)
    return TensorFacts(
        value.name or "",
        dtype,
        shape,
        constant=tensor is not None,
        foldable=tensor is not None or _is_foldable(value, seen),
        sized=tensor is not None or _is_foldable(value, seen, sized=True),
        used=bool(value.uses()) or value.is_graph_output(),
        producer="" if producer is None else producer.op_type,
        _tensor=tensor,
    )


def _dim(dim: int | ir.SymbolicDim, dims: Mapping[str, int | str]) -> int | str | None:
    """A size, a name, or None where neither is known: -1, and the names that shape inference makes up."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    name = dim.value
    return dims.get(name, None if name.startswith(_MADE_UP) else name) if name else None


def _constant(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of any form of Constant: a tensor, numbers or texts."""
    import onnx_ir as ir

    producer = value.producer()
    found = constant_of(value)
    if found is not None or producer is None or producer.op_type != "Constant":
        return found
    for name, dtype in _CONSTANT_FORMS.items():
        attribute = producer.attributes.get(name)
        if attribute is not None and not attribute.is_ref():
            return _tensor_of(attribute.value, ir.DataType[dtype])
    return None


def _tensor_of(given: Any, dtype: ir.DataType) -> ir.TensorProtocol:
    """A number or a text, or a tuple of them, as a tensor of rank 0 or 1."""
    import numpy as np
    import onnx_ir as ir

    if dtype != ir.DataType.STRING:
        return ir.tensor(np.array(given, dtype=dtype.numpy()))
    texts = [given] if isinstance(given, str) else list(given)
    shape = ir.Shape([] if isinstance(given, str) else [len(texts)])
    return ir.StringTensor([text.encode() for text in texts], shape=shape)


def _is_foldable(value: ir.Value, seen: Seen, *, sized: bool = False) -> bool:
    """Whether a value follows from constants alone. Iterative: chains can be thousands of nodes long.

    sized: whether all shapes count as constants.
    """
    pending = [value]
    while pending:
        current = pending[-1]
        if (id(current), sized) in seen:
            pending.pop()
            continue
        producer = current.producer()
        known = constant_of(current) is not None or (producer is not None and _gives_constant(producer, sized=sized))
        if known or producer is None or not producer.inputs or not _is_pure(producer):
            seen[id(current), sized] = known
            pending.pop()
            continue
        inputs = [given for given in producer.inputs if given is not None]
        unseen = [given for given in inputs if (id(given), sized) not in seen]
        if unseen:
            pending += unseen
            continue
        seen[id(current), sized] = all(seen[id(given), sized] for given in inputs)
        pending.pop()
    return seen[id(value), sized]


def _gives_constant(node: ir.Node, *, sized: bool) -> bool:
    """Whether the outputs are known without looking at the values of inputs: Constant, and Shape of fixed shapes."""
    if node.op_type == "Constant":
        return True
    if node.op_type not in ("Shape", "Size") or not node.inputs or node.inputs[0] is None:
        return False
    shape = node.inputs[0].shape
    return sized or (shape is not None and all(isinstance(dim, int) and dim >= 0 for dim in shape))


def _is_pure(node: ir.Node) -> bool:
    """Whether nothing but its inputs decides what it gives: a body can read any value outside it."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _NEVER_CONSTANT:
        return False
    return not any(a.type.name == "GRAPH" for a in node.attributes.values())
