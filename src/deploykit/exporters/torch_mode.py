"""Evaluation mode: modules are exported as they are used, not as they are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deploykit.report import Finding, note

if TYPE_CHECKING:
    import torch

_BY_MODE = ("Dropout", "BatchNorm", "AlphaDropout", "FeatureAlphaDropout", "SyncBatchNorm", "LazyBatchNorm", "RReLU")
_SHOWN = 4


def switched_to_evaluation(module: torch.nn.Module) -> list[Finding]:
    """Puts the module into evaluation mode, and says so where that changes what it computes."""
    layers = [
        f"{name or 'the module'} ({getattr(layer, 'original_name', type(layer).__name__)})"
        for name, layer in module.named_modules()
        if layer.training and getattr(layer, "original_name", type(layer).__name__).startswith(_BY_MODE)
    ]
    module.eval()
    if not layers:
        return []
    shown = ", ".join(layers[:_SHOWN]) + (f" and {len(layers) - _SHOWN} more" if len(layers) > _SHOWN else "")
    return [note("DK684", f"switched from training to evaluation mode, which changes {shown}")]
