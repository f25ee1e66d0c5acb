"""Calls replaced by what they mean: model-local functions, and ONNX's own operators that are defined by others."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir
from onnx_ir.passes import common as common_passes

from deploykit import graph
from deploykit.optimizers.rewrites.decomposition import Decomposition, in_function
from deploykit.optimizers.rewrites.emitting import Emitter, Names
from deploykit.optimizers.rewrites.splicing import splice_graph
from deploykit.optimizers.rewriting import Change

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from deploykit.optimizers.rewrites.decomposition import Builder


class InlineFunctions(Decomposition):
    """Calls of functions that the model itself holds, by their bodies; for a node inside one, its callers' calls."""

    name: ClassVar[str] = "inline-functions"
    title: ClassVar[str] = "puts the body of a model-local function in the place of its call"

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether the node calls a function of the model, or is part of one."""
        inside = _around([node], model)
        if inside:
            return all(versions_agree(model.functions[identifier], model) for identifier in inside)
        function = model.functions.get(node.op_identifier())
        return function is not None and node.graph is not None and versions_agree(function, model)

    def apply(self, model: ir.Model, nodes: Sequence[ir.Node]) -> list[Change]:
        """Inlines the calls; functions that nobody calls any more go."""
        inside = _around(nodes, model)
        changes: list[Change] = []
        while True:
            calls = [
                node
                for node in ir.traversal.RecursiveGraphIterator(model.graph)
                if node.op_identifier() in model.functions
                and (any(node is wanted for wanted in nodes) or _reaches(node.op_identifier(), inside, model))
                and versions_agree(model.functions[node.op_identifier()], model)
            ]
            if not calls:
                break
            changes += self._inline(model, calls)
        if changes:
            common_passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
        return changes

    def _inline(self, model: ir.Model, calls: Sequence[ir.Node]) -> list[Change]:
        names = Names(model)
        changes = []
        for call in calls:
            function = model.functions[call.op_identifier()]
            emitter = Emitter(call, model)
            outputs = splice_graph(emitter, function.graph, call.inputs, {**function.attributes, **call.attributes})
            name = call.name or call.op_type
            for domain, version in function.opset_imports.items():
                model.opset_imports.setdefault(domain, version)
            changes.append(
                Change((name,), emitter.commit(outputs, names), f"the body of function {call.op_type} for its call")
            )
        return changes


def _around(nodes: Sequence[ir.Node], model: ir.Model) -> set[ir.OperatorIdentifier]:
    """The functions that hold any of these nodes."""
    wanted = {id(node) for node in nodes}
    return {
        identifier
        for identifier, function in model.functions.items()
        if any(id(inner) in wanted for inner in function.all_nodes())
    }


def _reaches(identifier: ir.OperatorIdentifier, inside: set[ir.OperatorIdentifier], model: ir.Model) -> bool:
    """Whether a function is one of these, or calls one, through others too."""
    if not inside:
        return False
    seen: set[ir.OperatorIdentifier] = set()
    pending = [identifier]
    while pending:
        current = pending.pop()
        if current in inside:
            return True
        if current in seen or current not in model.functions:
            continue
        seen.add(current)
        pending += [node.op_identifier() for node in model.functions[current].all_nodes()]
    return False


class ExpandOperators(Decomposition):
    """Operators that ONNX defines by a function body, by that body: LayerNormalization, Mish, Attention, ...

    The body comes from the installed onnx, for the revision of the operator that the model's opset means, and with the
    types of the node's inputs where the body depends on them. Numbers that it makes from attributes become constants.
    """

    name: ClassVar[str] = "expand-operators"
    title: ClassVar[str] = "puts the body by which ONNX defines an operator in its place"

    def applies(self, node: ir.Node, model: ir.Model) -> bool:
        """Whether onnx has a body for the node; written out only where the opset may lack what the body needs."""
        if self.builder(node) is None or node.graph is None or in_function(node, model):
            return False
        body = body_of(node, model)
        if body is None or graph.opset(model) >= max(_FOLDED_AWAY.values()):
            return body is not None
        return super().applies(node, model)

    def builder(self, node: ir.Node) -> Builder | None:
        """One for all standard operators but those whose body is no help."""
        return _expand if node.domain in ("", "ai.onnx") and node.op_type not in _KEPT else None

    def sentence(self, node: ir.Node, made: Sequence[ir.Node]) -> str:
        """Says where the form comes from."""
        return f"{node.op_type} as ONNX defines it: {', '.join(dict.fromkeys(new.op_type for new in made))}"


def _expand(emitter: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    body = body_of(node, emitter.model)
    if body is None:
        return None
    function, attributes = body
    outputs = splice_graph(emitter, function.graph, node.inputs, attributes)
    # What the body casts by the type of another tensor, when that is not known, stays: newer than some models.
    if any(emitter.opset < _FOLDED_AWAY.get(new.op_type, 0) for new in emitter.nodes):
        return None
    return outputs


def body_of(node: ir.Node, model: ir.Model) -> tuple[ir.Function, dict[str, ir.Attr]] | None:
    """The function that defines a standard operator, and the attributes that it is called with; None without one."""
    import onnx

    version = node.version or graph.opset(model)
    if not version or not onnx.defs.has(node.op_type, version, ""):
        return None
    schema = onnx.defs.get_schema(node.op_type, version, "")
    attributes = {
        name: ir.serde.deserialize_attribute(attribute.default_value)
        for name, attribute in schema.attributes.items()
        if attribute.default_value.name
    }
    attributes.update({name: value for name, value in node.attributes.items() if not value.is_ref()})
    for content in _contents(schema, node, version):
        function = ir.from_proto(_complete(onnx.FunctionProto.FromString(content)))
        if isinstance(function, ir.Function) and len(function) and versions_agree(function, model):
            return function, attributes
    return None


def _complete(function: onnx.FunctionProto) -> onnx.FunctionProto:
    """Outputs that the body does not make, since the node leaves them out, stand for one that it makes."""
    made = {name for node in function.node for name in node.output} | set(function.input)
    first = next((name for name in function.output if name in made), "")
    outputs = [name if name in made else first for name in function.output]
    del function.output[:]
    function.output.extend(outputs)
    return function


def _contents(schema: onnx.defs.OpSchema, node: ir.Node, version: int) -> list[bytes]:
    """The bodies that onnx has for the node, best first: written for the newest opset that is not above the model's."""
    plain = schema.function_opset_versions
    dependent = schema.context_dependent_function_opset_versions
    found = [schema.get_function_with_opset_version(written) for written in _by_nearness(plain, version)]
    types = [_type_of(value) for value in node.inputs]
    if not dependent or any(kind is None for kind in types):
        return found
    proto = ir.serde.serialize_node(node)
    for written in _by_nearness(dependent, version):
        try:
            content = schema.get_context_dependent_function_with_opset_version(
                written, proto.SerializeToString(), [kind for kind in types if kind is not None]
            )
        except Exception:  # the library's own classes, for a node that has no body in this context
            continue
        if content:
            found.append(content)
    return found


def _by_nearness(versions: Sequence[int], opset: int) -> list[int]:
    return sorted(versions, key=lambda written: (written > opset, -written if written <= opset else written))


def _type_of(value: ir.Value | None) -> bytes | None:
    """The type of an input as onnx wants it; empty for one that is left out, None when it is not known."""
    import onnx

    if value is None:
        return bytes(onnx.TypeProto().SerializeToString())
    if value.type is None or value.dtype is None:
        return None
    proto: Any = onnx.TypeProto()
    ir.serde.serialize_type_into(proto, value.type)
    if value.shape is not None:
        ir.serde.serialize_shape_into(proto, value.shape)
    return bytes(proto.SerializeToString())


def versions_agree(function: ir.Function, model: ir.Model) -> bool:
    """Whether the body means the same in the model's opsets as in its own."""
    for domain, written in function.opset_imports.items():
        ours = model.opset_imports.get(domain)
        if ours is None or ours == written:
            continue
        if domain not in ("", "ai.onnx"):
            return False
        standard = [node for node in function.all_nodes() if node.domain in ("", "ai.onnx")]
        if not all(node.op_type in _FOLDED_AWAY or _means_the_same(node, written, ours) for node in standard):
            return False
    return True


def _means_the_same(node: ir.Node, written: int, ours: int) -> bool:
    """Whether a node of a body keeps its meaning: its operator is of one revision in both opsets, or takes its form."""
    import onnx

    if not onnx.defs.has(node.op_type, written, "") or not onnx.defs.has(node.op_type, ours, ""):
        return False
    theirs, mine = _schema(node.op_type, written), _schema(node.op_type, ours)
    if theirs.since_version == mine.since_version:
        return True
    if (node.op_type in _CHANGED) or not set(node.attributes) <= set(mine.attributes):
        return False
    used = len(node.inputs)
    return used <= mine.max_input and [i.name for i in theirs.inputs[:used]] == [i.name for i in mine.inputs[:used]]


@functools.cache
def _schema(op_type: str, version: int) -> Any:
    import onnx

    return onnx.defs.get_schema(op_type, version, "")


# Operators whose revisions differ in what the same attributes and inputs mean.
_CHANGED = frozenset(
    {"GroupNormalization", "Resize", "Softmax", "LogSoftmax", "Hardmax", "Dropout", "BatchNormalization"}
)

# Operators of bodies that splicing computes when it can, and the opset from which on the body's form of them exists.
_FOLDED_AWAY = {"CastLike": 15, "Constant": 13}
# Range turns into a Loop, which fewer targets take. Random numbers drawn by another operator are other numbers.
_KEPT = frozenset({"Range", "Bernoulli"})
