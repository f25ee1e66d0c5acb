"""DepthToSpace and SpaceToDepth as reshapes around a transpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from deploykit.optimizers.editing import rank_of
from deploykit.optimizers.rewrites.decomposition import Decomposition
from deploykit.optimizers.rewrites.normalizations import integer
from deploykit.optimizers.rewrites.permuting import permute
from deploykit.optimizers.rewrites.shaping import Product, dim, reshape_to

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from deploykit.optimizers.rewrites.decomposition import Builder
    from deploykit.optimizers.rewrites.emitting import Emitter


def depth_to_space(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Moves x [N, C, H, W] to [N, C / b^2, H * b, W * b] (spec): DCR has the block before the depth."""
    x, block = node.inputs[0], integer(node, "blocksize", 0)
    if x is None or rank_of(x) != 4 or block < 1:
        return None
    batch, height, width = dim(x, 0), dim(x, 2), dim(x, 3)
    depth, side = dim(x, 1, over=block * block), Product((), block)
    if node.attributes.get_string("mode", "DCR") == "DCR":
        moved = permute(op, x, [batch, side, side, depth, height, width], [0, 3, 4, 1, 5, 2])
    else:
        moved = permute(op, x, [batch, depth, side, side, height, width], [0, 1, 4, 2, 5, 3])
    return [reshape_to(op, moved, [batch, depth, dim(x, 2, block), dim(x, 3, block)])]


def space_to_depth(op: Emitter, node: ir.Node) -> Sequence[ir.Value] | None:
    """Moves x [N, C, H, W] to [N, C * b^2, H / b, W / b] (spec, SpaceToDepth-28)."""
    x, block = node.inputs[0], integer(node, "blocksize", 0)
    if x is None or rank_of(x) != 4 or block < 1:
        return None
    batch, depth, side = dim(x, 0), dim(x, 1), Product((), block)
    height, width = dim(x, 2, over=block), dim(x, 3, over=block)
    blocks_first = node.attributes.get_string("mode", "DCR") == "DCR"
    order = [0, 3, 5, 1, 2, 4] if blocks_first else [0, 1, 3, 5, 2, 4]
    moved = permute(op, x, [batch, depth, height, side, width, side], order)
    return [reshape_to(op, moved, [batch, dim(x, 1, block * block), height, width])]


class DecomposeLayouts(Decomposition):
    """DepthToSpace and SpaceToDepth within rank 5."""

    name: ClassVar[str] = "decompose-layouts"
    title: ClassVar[str] = "writes DepthToSpace and SpaceToDepth as Reshape, Transpose, Reshape"
    builders: ClassVar[Mapping[tuple[str, str], Builder]] = {
        ("", "DepthToSpace"): depth_to_space,
        ("", "SpaceToDepth"): space_to_depth,
    }
