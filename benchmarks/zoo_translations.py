"""How both exporters write `zoo::nms`, for `deploykit export --custom-ops`: as ONNX's NonMaxSuppression."""

from __future__ import annotations

import onnxscript
import torch
from onnxscript import opset20 as op
from zoo_nms import LOWEST, MOST, OVERLAP


def translated(boxes: onnxscript.FLOAT, scores: onnxscript.FLOAT) -> onnxscript.INT64:
    """For the dynamo exporter."""
    most = op.Constant(value_ints=[MOST])
    overlap, lowest = op.Constant(value_floats=[OVERLAP]), op.Constant(value_floats=[LOWEST])
    return op.NonMaxSuppression(boxes, scores, most, overlap, lowest)


def symbolic(g, boxes, scores):
    """For the TorchScript exporter."""
    most = g.op("Constant", value_t=torch.tensor([MOST]))
    overlap, lowest = (g.op("Constant", value_t=torch.tensor([value])) for value in (OVERLAP, LOWEST))
    return g.op("NonMaxSuppression", boxes, scores, most, overlap, lowest)


TRANSLATIONS = {"zoo::nms": translated}
SYMBOLICS = {"zoo::nms": symbolic}
