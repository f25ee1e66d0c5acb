"""Folds batch normalization at inference into the convolution or Gemm before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxscript.rewriter import RewriteRuleSet
from onnxscript.rewriter.rules.common import (
    fuse_batchnorm_into_conv_rule,
    fuse_batchnorm_into_conv_transpose_rule,
    fuse_batchnorm_into_gemm_rule,
)

from deploykit.optimizers.manager import Pass

if TYPE_CHECKING:
    import onnx_ir as ir


class FuseBatchNorm(Pass):
    """Multiplies the scale of BatchNormalization into the weights of what feeds it alone.

    w' = w * scale / sqrt(var + eps), b' = (b - mean) * scale / sqrt(var + eps) + bias
    (Ioffe and Szegedy 2015, section 3.1).
    """

    def run(self, model: ir.Model) -> bool:
        """Whether a node was fused."""
        rules = RewriteRuleSet(
            [
                fuse_batchnorm_into_conv_rule,
                fuse_batchnorm_into_conv_transpose_rule,
                fuse_batchnorm_into_gemm_rule,
            ]
        )
        return bool(rules.apply_to_model(model))
