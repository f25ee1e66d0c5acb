"""The native simplifier: its passes in order, and what each of them may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.optimizers.common_subexpressions import ShareCommonSubexpressions
from deploykit.optimizers.dead_nodes import RemoveDeadNodes
from deploykit.optimizers.declared_shapes import DeclaredShapes
from deploykit.optimizers.drop_expand import DropExpand
from deploykit.optimizers.drop_zero_state import DropZeroState
from deploykit.optimizers.fold_constants import FoldConstants
from deploykit.optimizers.fuse_affine import FuseAffine
from deploykit.optimizers.fuse_gemm import FuseGemm
from deploykit.optimizers.fuse_layer_norm import FuseLayerNorm
from deploykit.optimizers.fuse_pad import FusePad
from deploykit.optimizers.inline_branches import InlineBranches
from deploykit.optimizers.manager import Pass, PassManager
from deploykit.optimizers.merge_constants import MergeConstants
from deploykit.optimizers.merge_pairs import MergePairs
from deploykit.optimizers.merge_reshapes import MergeReshapes
from deploykit.optimizers.remove_neutral import RemoveNeutral
from deploykit.optimizers.remove_nops import RemoveNops
from deploykit.optimizers.resolve_shapes import ResolveShapes
from deploykit.optimizers.share_constants import ShareConstants

if TYPE_CHECKING:
    import onnx_ir as ir

# The share of the file by which stored results may enlarge it, below what `--max-growth` allows by default.
_FOLDING_GROWTH = 0.02
# Passes that compute with weights: equal in real numbers, and in floats but for rounding.
_ROUNDING: tuple[type[Pass], ...] = (FuseLayerNorm, FuseAffine, MergeConstants, FuseGemm)


def simplify_natively(model: ir.Model, size: int, *, exact: bool = False) -> ir.Model:
    """Rewrites the model in place until no pass changes anything; returns it.

    size: bytes of the model's files, for what folding may add. exact: without the passes that change rounding.
    """
    passes: list[Pass] = [
        ShareConstants(),
        InlineBranches(),
        ResolveShapes(),
        FoldConstants(int(size * _FOLDING_GROWTH)),
        RemoveNops(),
        RemoveNeutral(),
        MergeReshapes(),
        MergePairs(),
        DropZeroState(),
        DropExpand(),
        FuseLayerNorm(),
        FusePad(),
        FuseAffine(),
        MergeConstants(),
        FuseGemm(),
        ShareCommonSubexpressions(),
        RemoveDeadNodes(),
    ]
    declared = DeclaredShapes(model)
    PassManager([step for step in passes if not (exact and isinstance(step, _ROUNDING))]).run(model)
    declared.give_back(model)
    return model
