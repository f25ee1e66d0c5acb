"""The plan: which nodes become integer, where Q/DQ goes, which tensors share a scale, and what stays float and why."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import onnx_ir as ir

from deploykit.errors import UsageError
from deploykit.quantize.families import (
    ARITHMETIC,
    AVERAGES,
    CONVOLUTIONS,
    EXTREMES,
    FUSED_ACTIVATIONS,
    MAC_OPS,
    PASS_THROUGH,
    RECURRENT,
)
from deploykit.quantize.places import constant_reader
from deploykit.quantize.prepare import is_constant
from deploykit.quantize.slices import why_not_integers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from deploykit.target import QuantizationScheme


@dataclasses.dataclass(frozen=True, slots=True)
class FloatNode:
    """A node that computes in float, and why; owner: op and name of the control-flow node it is inside of."""

    name: str
    op: str
    reason: str
    owner: tuple[str, str] | None = None


@dataclasses.dataclass(slots=True)
class Plan:
    """What `qdq.insert` carries out.

    nodes: become integer. readers: for each quantized tensor, the (node, input index) that read it through Q/DQ.
    groups: tensors that share one scale, as name -> another of them (`group` follows it to the representative).
    left: multiply-accumulate nodes that stay float. signed: tensors whose groups are int8 with zero point 0, unless
    nothing in them is negative.
    """

    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    readers: dict[ir.Value, list[tuple[ir.Node, int]]] = dataclasses.field(default_factory=dict)
    left: list[FloatNode] = dataclasses.field(default_factory=list)
    groups: dict[str, str] = dataclasses.field(default_factory=dict)
    signed: list[str] = dataclasses.field(default_factory=list)

    def read(self, value: ir.Value, node: ir.Node, index: int) -> bool:
        """Notes a reader; True when it is new."""
        readers = self.readers.setdefault(value, [])
        if (node, index) in readers:
            return False
        readers.append((node, index))
        return True

    def group(self, name: str) -> str:
        """The representative of the tensors that share a scale with `name`."""
        while (parent := self.groups.get(name, name)) != name:
            name = parent
        return name

    def is_signed(self, value: ir.Value) -> bool:
        """Whether the tensor is in a group that `signed` names."""
        return self.group(value.name or "") in {self.group(name) for name in self.signed}

    def join(self, one: ir.Value, other: ir.Value) -> None:
        """The two tensors share a scale from here on."""
        first, second = self.group(one.name or ""), self.group(other.name or "")
        if first != second:
            self.groups[second] = first


def is_float(value: ir.Value | None) -> bool:
    """Whether the value is known to be a float32 tensor."""
    return value is not None and value.dtype == ir.DataType.FLOAT


def observable(model: ir.Model) -> list[str]:
    """Tensors whose ranges any scheme may ask for; each one more costs time in calibration.

    What multiply-accumulate nodes read and write (a convolution after the activation that fuses into it), what nodes
    that only move values read and write, what an Add joins, and what a largest or smallest value is chosen from.
    """
    found: dict[str, None] = {}
    for node in model.graph:
        touched: list[ir.Value | None] = []
        if node.domain:
            continue
        if node.op_type in CONVOLUTIONS:
            touched = [*node.inputs, fused_output(node)]
        elif node.op_type in MAC_OPS or node.op_type in PASS_THROUGH:
            touched = [*node.inputs, *node.outputs]
        elif node.op_type == "Add" and not any(is_constant(value) for value in node.inputs):
            touched = [*node.inputs, *([fused_output(node)] if _only_averaged(fused_output(node)) else [])]
        elif node.op_type in EXTREMES:
            touched = [node.inputs[0], node.outputs[0]]
        for value in touched:
            if value is not None and value.name and is_float(value) and not is_constant(value):
                found.setdefault(value.name)
    return list(found)


def make_plan(
    model: ir.Model, scheme: QuantizationScheme, *, exclude: Sequence[str] = (), unseen: Collection[str] = ()
) -> Plan:
    """Decides for every multiply-accumulate node of the model.

    exclude: node names or op types to leave in float. unseen: tensors that calibration gives no range for.
    Raises UsageError (DK354) when an exclusion names nothing in the model.
    """
    check_exclusions(model, exclude)
    plan = Plan()
    around = owners(model.graph)
    for node in model.graph.all_nodes():
        owner = around.get(node)
        reason = _why_float(node, owner, scheme, exclude, unseen)
        if reason is None:
            plan.nodes.append(node)
        elif reason:
            place = None if owner is None else (owner.op_type, owner.name or "")
            plan.left.append(FloatNode(node.name or "", node.op_type, reason, place))
    _place(model.graph, plan, scheme, unseen)
    return plan


def check_exclusions(model: ir.Model, exclude: Sequence[str]) -> None:
    """Raises UsageError (DK354) when an exclusion names neither a node nor an operator of the model."""
    known = {name for node in model.graph.all_nodes() for name in (node.name, node.op_type)}
    unknown = [name for name in exclude if name not in known]
    if unknown:
        raise UsageError(
            f"--exclude {unknown[0]!r} names neither a node nor an operator of the model",
            code="DK354",
            hint="deploykit inspect MODEL lists the operators; node names are in the report of a first run",
        )


def activations_of(node: ir.Node) -> list[int]:
    """Input indices of a multiply-accumulate node that are computed, not constant (its bias is no activation)."""
    return [index for index in range(2) if not is_constant(node.inputs[index])]


def _why_float(
    node: ir.Node,
    owner: ir.Node | None,
    scheme: QuantizationScheme,
    exclude: Sequence[str],
    unseen: Collection[str],
) -> str | None:
    """None: quantize. A reason: stays float and is reported. An empty text: nothing that anyone would quantize."""
    if node.domain or node.op_type not in MAC_OPS | RECURRENT:
        return ""
    if owner is not None:
        return f"inside the body of {owner.op_type} {owner.name!r}: control-flow bodies stay float"
    if node.name in exclude or node.op_type in exclude:
        return "excluded"
    if node.op_type in RECURRENT:
        return "recurrent layers stay float: their state would carry the quantization error from step to step"
    if node.op_type not in scheme.operators:
        return f"the target's scheme does not quantize {node.op_type}"
    if not all(is_float(value) for value in node.inputs[:2]):
        return "its operands are not float32"
    computed = activations_of(node)
    if not computed:
        return "both operands are constant: simplify folds it"
    for index in computed:
        value = node.inputs[index]
        if value is not None and value.name in unseen:
            return f"its input {value.name!r} was empty or not finite in every calibration sample"
    for value in node.inputs[:2]:
        if constant_reader(value) and value is not None and (unfit := why_not_integers(value)):
            return unfit
    logarithm = _logarithm_behind(node)
    if logarithm is not None:
        return (
            f"{logarithm.name!r} takes the logarithm of what it computes: small values count as much as large ones "
            "there, and 8 bits over the whole range lose them"
        )
    return None


def _logarithm_behind(node: ir.Node) -> ir.Node | None:
    """A Log that the output reaches through arithmetic alone, as the power of a spectrum does."""
    pending, seen = [node], {node}
    while pending:
        for output in pending.pop().outputs:
            for use in output.uses():
                reader = use.node
                if reader.op_type == "Log" and not reader.domain:
                    return reader
                if reader.op_type in ARITHMETIC and not reader.domain and reader not in seen:
                    seen.add(reader)
                    pending.append(reader)
    return None


def owners(main: ir.Graph) -> dict[ir.Node, ir.Node]:
    """For each node inside a body, the control-flow node of the main graph around it."""
    found: dict[ir.Node, ir.Node] = {}
    for outer in main:
        for inner in _inside(outer):
            found[inner] = outer
    return found


def _inside(node: ir.Node) -> Iterator[ir.Node]:
    for attribute in node.attributes.values():
        bodies: Sequence[ir.Graph] = ()
        if attribute.type == ir.AttributeType.GRAPH:
            bodies = (attribute.as_graph(),)
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies = attribute.as_graphs()
        for body in bodies:
            for inner in body:
                yield inner
                yield from _inside(inner)


def _place(main: ir.Graph, plan: Plan, scheme: QuantizationScheme, unseen: Collection[str]) -> None:
    for node in plan.nodes:
        for index in activations_of(node):
            value = node.inputs[index]
            if value is not None:
                plan.read(value, node, index)
    trunk = _ancestors(plan.nodes)
    for node in plan.nodes:
        if node.op_type in CONVOLUTIONS and not (scheme.float_outputs and not _averaged(fused_output(node))):
            _quantize_output(fused_output(node), plan, main, trunk, unseen)
    if scheme.quantize_residual:
        _quantize_residuals(main, plan, scheme, trunk, unseen)
    if scheme.signed_products:
        plan.signed += _factors(plan)
    _propagate(main, plan, scheme, unseen)


def _factors(plan: Plan) -> list[str]:
    """Tensors that only matrix products read: of two computed factors, or the extreme values of something."""
    found = []
    for value, readers in plan.readers.items():
        producer = value.producer()
        extreme = producer is not None and producer.op_type in EXTREMES and not producer.domain
        matrices = all(node.op_type in {"MatMul", "Gemm"} for node, _ in readers)
        if matrices and (extreme or any(len(activations_of(node)) > 1 for node, _ in readers)):
            found.append(value.name or "")
    return found


def fused_output(node: ir.Node) -> ir.Value:
    """The tensor that the kernel of a convolution writes: after the activation that fuses into it, if there is one."""
    value = node.outputs[0]
    readers = list(value.uses())
    if len(readers) == 1 and not value.is_graph_output():
        reader = readers[0].node
        if reader.op_type in FUSED_ACTIVATIONS and not reader.domain and reader.graph is node.graph:
            fused: ir.Value = reader.outputs[0]
            return fused
    return value


def _ancestors(nodes: Iterable[ir.Node]) -> set[ir.Value]:
    """Tensors that a quantized node depends on. What is not among them is a head, and stays float."""
    found: set[ir.Value] = set()
    pending = [value for node in nodes for value in node.inputs if value is not None]
    while pending:
        value = pending.pop()
        if value in found:
            continue
        found.add(value)
        producer = value.producer()
        if producer is not None:
            pending.extend(v for v in producer.inputs if v is not None)
    return found


def _quantize_output(
    value: ir.Value, plan: Plan, main: ir.Graph, trunk: set[ir.Value], unseen: Collection[str]
) -> None:
    """All readers of a kernel's output read it through Q/DQ, so that the kernel ends in the QuantizeLinear."""
    if value.is_graph_output() or value not in trunk or value.name in unseen or not is_float(value):
        return
    for use in value.uses():
        if use.node.graph is main:
            plan.read(value, use.node, use.idx)


def _quantize_residuals(
    main: ir.Graph, plan: Plan, scheme: QuantizationScheme, trunk: set[ir.Value], unseen: Collection[str]
) -> None:
    """Both inputs of an Add that joins a convolution with another path get their own Q/DQ."""
    written = {fused_output(node) for node in plan.nodes if node.op_type in CONVOLUTIONS}
    for node in main:
        if node.op_type != "Add" or node.domain or node.outputs[0] not in trunk:
            continue
        operands = [value for value in node.inputs if value is not None]
        if any(is_constant(v) or not is_float(v) or v.name in unseen for v in operands):
            continue
        if any(value in written for value in operands):
            for index, value in enumerate(operands):
                plan.read(value, node, index)
            total = fused_output(node)
            if scheme.integer_sums and _only_averaged(total):
                _quantize_output(total, plan, main, trunk, unseen)


def _propagate(main: ir.Graph, plan: Plan, scheme: QuantizationScheme, unseen: Collection[str]) -> None:
    """Nodes that only move values before a QuantizeLinear work on integers too: Q/DQ of the same scale before them."""
    pending = list(plan.readers)
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None or node.graph is not main or node.domain or len(node.outputs) != 1:
            continue
        if scheme.lifted_pairs and not _read_in_integers_alone(value, plan):
            continue
        if scheme.lifted_pairs and _stops_lifting(node) and not plan.is_signed(value):
            continue
        moved = _moved(node, scheme, unseen)
        for index in moved:
            source = node.inputs[index]
            if source is None:
                continue
            plan.join(value, source)
            if plan.read(source, node, index):
                pending.append(source)
        if moved and scheme.lifted_pairs:
            plan.readers.pop(value, None)


def _read_in_integers_alone(value: ir.Value, plan: Plan) -> bool:
    """Whether everything that reads the value reads it through Q/DQ."""
    readers = plan.readers.get(value, [])
    return not value.is_graph_output() and all((use.node, use.idx) in readers for use in value.uses())


def _moved(node: ir.Node, scheme: QuantizationScheme, unseen: Collection[str]) -> range:
    """Indices of the inputs whose values the node hands on, when they may share its output's scale; else none."""
    if node.op_type in EXTREMES and scheme.lifted_pairs:
        source = node.inputs[0]
        fit = is_float(source) and source is not None and not is_constant(source) and source.name not in unseen
        return range(1 if fit else 0)
    if node.op_type not in PASS_THROUGH:
        return range(0)
    count = PASS_THROUGH[node.op_type]
    sources = node.inputs if count is None else node.inputs[:count]
    return range(len(sources) if all(_can_share(source, unseen) for source in sources) else 0)


def _only_averaged(value: ir.Value) -> bool:
    """Whether nothing but averages reads the value, for which integer kernels exist."""
    readers = list(value.uses())
    return bool(readers) and all(use.node.op_type in AVERAGES and not use.node.domain for use in readers)


def _averaged(value: ir.Value) -> bool:
    """Whether an average reads the value: OpenVINO may apply the scale of a convolution's float output twice there."""
    return any(use.node.op_type in AVERAGES and not use.node.domain for use in value.uses())


def _stops_lifting(node: ir.Node) -> bool:
    """Whether a zero point would get lost behind the Concat that the node is, or that it reads."""
    above = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    joins = node.op_type == "Concat" or (above is not None and above.op_type == "Concat")
    return joins and node.op_type not in EXTREMES


def _can_share(source: ir.Value | None, unseen: Collection[str]) -> bool:
    return is_float(source) and source is not None and source.producer() is not None and source.name not in unseen
