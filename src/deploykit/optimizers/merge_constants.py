"""Makes one constant of two that are multiplied or added one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deploykit.optimizers.constants import Constants, cancels, vanishes
from deploykit.optimizers.editing import makes, nodes_of, put, same_graph, standard_opset, used_once
from deploykit.optimizers.manager import Pass

if TYPE_CHECKING:
    import onnx_ir as ir

_SINCE = 7
_MERGED = {"Mul": np.multiply, "Add": np.add}
_LOST = {"Mul": vanishes, "Add": cancels}


class MergeConstants(Pass):
    """(x * a) * b = x * (a * b), and the same with sums, for constants of floats; the file does not grow by it."""

    def run(self, model: ir.Model) -> bool:
        """Whether two nodes became one."""
        if standard_opset(model) < _SINCE:
            return False
        constants = Constants(model)
        changed = False
        for node in nodes_of(model, *_MERGED):
            for at in (0, 1):
                if _merge(node, at, constants):
                    changed = True
                    break
        return changed


def _merge(node: ir.Node, at: int, constants: Constants) -> bool:
    inner = makes(node.inputs[at], node.op_type)
    outer = constants.tensor(node.inputs[1 - at])
    if inner is None or outer is None or not used_once(inner.outputs[0]) or not same_graph(node, inner):
        return False
    for place in (0, 1):
        first, data = constants.tensor(inner.inputs[place]), inner.inputs[1 - place]
        if first is None or data is None or constants.tensor(data) is not None or first.dtype != outer.dtype:
            continue
        a, b = first.numpy(), outer.numpy()
        if a.dtype.kind != "f":
            return False
        wide = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            merged = _MERGED[node.op_type](*wide).astype(a.dtype)
            lost = _LOST[node.op_type](*wide, a.dtype)
        if lost or merged.size > max(a.size, b.size) or not np.isfinite(merged).all():
            return False
        name = node.inputs[1 - at]
        put(
            node,
            node.op_type,
            [data, constants.add(node, merged, (name.name if name is not None else None) or "merged")],
        )
        return True
    return False
