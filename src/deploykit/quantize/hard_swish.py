"""Hard swish spelled out in four nodes becomes two: each of them reads and writes a whole float tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from deploykit.quantize.prepare import constant_of, drop_unused_initializers, is_named, names_in, unique_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


def shorten_hard_swish(model: ir.Model, keep: Collection[str] = ()) -> int:
    """Writes x * Clip(x + 3, 0, 6) / 6 as x * HardSigmoid(x), with slope 1/6 and offset 1/2; returns how many.

    The division may stand before or behind the product. HardSigmoid is max(0, min(1, slope * x + offset)) (ONNX).
    keep: names of nodes and operators that stay as they are.
    """
    main = model.graph
    taken = names_in(model)
    found = 0
    for add in list(main):
        matched = _chain(add)
        if matched is None or any(is_named(node, keep) for node in matched[1]):
            continue
        value, nodes = matched
        last = nodes[-1]
        gate = ir.node("HardSigmoid", [value], attributes={"alpha": 1.0 / 6.0, "beta": 0.5})
        product = ir.node("Mul", [value, gate.outputs[0]])
        out, made = last.outputs[0], product.outputs[0]
        gate.outputs[0].name = unique_name(main, f"{out.name}_gate", taken)
        gate.name = unique_name(main, f"{out.name}/HardSigmoid", taken)
        gate.outputs[0].type, gate.outputs[0].shape = value.type, value.shape
        made.type, made.shape, name, product.name = out.type, out.shape, out.name, last.name
        main.insert_before(last, [gate, product])
        out.replace_all_uses_with(made, replace_graph_outputs=True)
        main.remove(list(reversed(nodes)), safe=True)
        made.name = name
        found += 1
    if found:
        drop_unused_initializers(main)
    return found


def _chain(add: ir.Node) -> tuple[ir.Value, list[ir.Node]] | None:
    """What the four nodes of a hard swish read, and the nodes in order, when `add` is the first of them."""
    value = _with_constant(add, "Add", 3.0)
    if value is None or value.dtype != ir.DataType.FLOAT:
        return None
    clip = _only_reader(add)
    if clip is None or not _clips(clip):
        return None
    nodes = [add, clip]
    for _ in range(2):
        reader = _only_reader(nodes[-1])
        if reader is None:
            return None
        nodes.append(reader)
    for product, division in ((nodes[2], nodes[3]), (nodes[3], nodes[2])):
        before = nodes[nodes.index(product) - 1].outputs[0]
        if product.op_type == "Mul" and set(product.inputs) == {value, before} and _is_sixth(division):
            return value, nodes
    return None


def _only_reader(node: ir.Node) -> ir.Node | None:
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or node.outputs[0].is_graph_output() or uses[0].node.domain:
        return None
    reader: ir.Node = uses[0].node
    return reader if reader.graph is node.graph else None


def _with_constant(node: ir.Node, op: str, number: float, *, tolerance: float = 0.0) -> ir.Value | None:
    """The computed operand of a node whose other operand is one number."""
    if node.op_type != op or node.domain or len(node.inputs) != 2:
        return None
    for value, other in _operands(node):
        array = constant_of(other)
        if array is not None and array.size == 1 and array.ndim <= 1 and abs(float(array.item()) - number) <= tolerance:
            return value
    return None


def _operands(node: ir.Node) -> Iterator[tuple[ir.Value | None, ir.Value | None]]:
    yield node.inputs[0], node.inputs[1]
    if node.op_type != "Div":
        yield node.inputs[1], node.inputs[0]


def _is_sixth(node: ir.Node) -> bool:
    by_product = _with_constant(node, "Mul", 1 / 6, tolerance=1e-7)
    return by_product is not None or _with_constant(node, "Div", 6.0) is not None


def _clips(node: ir.Node) -> bool:
    if node.op_type != "Clip" or node.domain:
        return False
    limits = [constant_of(value) for value in node.inputs[1:3]]
    return len(limits) == 2 and all(
        limit is not None and limit.size == 1 and float(np.asarray(limit).item()) == number
        for limit, number in zip(limits, (0.0, 6.0), strict=True)
    )
