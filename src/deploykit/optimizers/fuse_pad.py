"""Gives the zeros that a Pad adds to the convolution after it."""

from __future__ import annotations

import onnx_ir as ir

from deploykit.optimizers.constants import Constants
from deploykit.optimizers.editing import input_at, integers, makes, nodes_of, rank_of, same_graph, standard_opset
from deploykit.optimizers.manager import INFERRED_SHAPES, Pass

_SINCE = 11  # pads are an input
_SHORT = 64


class FusePad(Pass):
    """Pad of spatial axes with zeros, and a Conv that pads by numbers: one Conv with both pads."""

    requires = (INFERRED_SHAPES,)

    def run(self, model: ir.Model) -> bool:
        """Whether a Pad was fused."""
        if standard_opset(model) < _SINCE:
            return False
        constants = Constants(model)
        changed = False
        for node in nodes_of(model, "Conv"):
            before = makes(node.inputs[0], "Pad")
            if before is not None and same_graph(node, before):
                changed = _fuse(node, before, constants) or changed
        return changed


def _fuse(node: ir.Node, before: ir.Node, constants: Constants) -> bool:
    source, weights = before.inputs[0], constants.tensor(node.inputs[1])
    rank = rank_of(source) or (len(weights.shape) if weights is not None else None)
    mode, auto = before.attributes.get("mode"), node.attributes.get("auto_pad")
    if source is None or rank is None or (mode is not None and mode.value != "constant"):
        return False
    if auto is not None and auto.value != "NOTSET":
        return False
    pads, fill = _pads(before, rank, constants), constants.array(input_at(before, 2), 1)
    if pads is None or min(pads) < 0 or any(pads[:2]) or any(pads[rank : rank + 2]):
        return False
    if input_at(before, 2) is not None and (fill is None or fill.any()):
        return False
    spatial = pads[2:rank] + pads[rank + 2 :]
    given = integers(node, "pads") or [0] * len(spatial)
    node.attributes["pads"] = ir.AttrInt64s("pads", [a + b for a, b in zip(given, spatial, strict=True)])
    node.replace_input_with(0, source)
    return True


def _pads(node: ir.Node, rank: int, constants: Constants) -> list[int] | None:
    """Zeros before and after every axis."""
    given = constants.integers(input_at(node, 1), _SHORT)
    axes = list(range(rank))
    if input_at(node, 3) is not None:
        named = constants.integers(node.inputs[3], _SHORT)
        if named is None:
            return None
        axes = [axis % rank for axis in named]
    if given is None or len(given) != 2 * len(axes):
        return None
    pads = [0] * (2 * rank)
    for at, axis in enumerate(axes):
        pads[axis], pads[rank + axis] = given[at], given[len(axes) + at]
    return pads
