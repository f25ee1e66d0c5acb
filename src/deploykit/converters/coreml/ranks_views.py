"""What lowerings on views are written with: the table of them, and a node's own rule applied to other inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx_ir as ir

from deploykit.converters.coreml.lowering.body import lower_inner
from deploykit.converters.coreml.lowering.context import Environment, OpContext, Refused, positive_axis
from deploykit.converters.coreml.lowering.node import Node
from deploykit.converters.coreml.ranks import Size, Wide
from deploykit.converters.coreml.ranks_values import wide
from deploykit.graph.signature import constant_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coremltools.converters.mil.mil import Var

# From a node with its environment to its outputs, tensors of any rank.
Handler: TypeAlias = Callable[[OpContext], tuple[Wide, ...]]
HANDLERS: dict[str, Handler] = {}


def handles(*operators: str) -> Callable[[Handler], Handler]:
    """Registers the lowering of operators on tensors of any rank."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(operators, handler))
        return handler

    return register


def on_views(
    op: OpContext, inputs: Sequence[Var | np.ndarray[Any, Any] | int | None], **attributes: Any
) -> tuple[Var | None, ...]:
    """The node's own rule on other inputs: variables, arrays that are constants, or the position of an input as it is.

    attributes: those that change.
    """
    environment = op.environment.inner()
    values: list[ir.Value | None] = []
    for place, given in enumerate(inputs):
        source = op.raw.inputs[given if isinstance(given, int) else place] if place < len(op.raw.inputs) else None
        if given is None or (isinstance(given, int) and source is None):
            values.append(None)
            continue
        # A value of its own: the model's would count this node among those that use it.
        value = ir.Value(name=f"{op.name}_{place}", type=source.type if source is not None else None)
        if isinstance(given, np.ndarray):
            value.const_value = ir.tensor(given)
        elif isinstance(given, int):
            value.shape, value.const_value = op.value(given).shape, constant_of(op.value(given))
            if value.const_value is None:
                environment.bind(value, op.input(given))
        else:
            environment.bind(value, given)
        values.append(value)
    kept = {name: a for name, a in op.raw.attributes.items() if name not in attributes}
    changed = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
    node = ir.Node(
        op.raw.domain,
        op.op,
        values,
        [*(ir.Attr(name, a.type, a.value) for name, a in kept.items()), *changed],
        outputs=[ir.Value(name=f"{value.name}_view", type=value.type) for value in op.raw.outputs],
        name=op.name,
    )
    for value, made in zip(op.raw.outputs, node.outputs, strict=True):
        if value.name and (value.uses() or value.is_graph_output()):
            # What counts as used is asked of the node: a reader makes it so.
            ir.Node("", "Identity", [made])
    try:
        return lower_inner(Node(node, op.opset, op.dims), environment)
    except Refused as problem:
        reason = problem.verdict.reason.removeprefix(f"it is made of {op.op} too: ")
        raise Refused(reason, problem.verdict.remedy) from problem


def first(op: OpContext, inputs: Sequence[Any], **attributes: Any) -> Var:
    """The first output of `on_views`."""
    made = on_views(op, inputs, **attributes)[0]
    if made is None:
        raise Refused("its first output is left out", "use it")
    return made


def tensor_of(op: OpContext, position: int = 0) -> Wide:
    """An input as a tensor of any rank."""
    return wide(op.value(position), op.environment)


def axis_of(op: OpContext, rank: int, default: int) -> int:
    """The attribute `axis`, from the front."""
    return positive_axis(op.integer("axis", default), rank)


def wide_sizes(variable: Var) -> tuple[Size, ...]:
    """The sizes of a variable."""
    value = ir.Value(name="view")
    environment = Environment()
    environment.bind(value, variable)
    return wide(value, environment).sizes
