"""Thresholds of trees as float32 that decide like the double ones: the largest float32 that is not above each.

scikit-learn's trees and LightGBM's ask `x <= t` with a t in double precision. Converters round t to the nearest
float32; where that is above t, a float32 x that equals it goes left in the file and right in the model. (skl2onnx 1.20
does what is done here for most trees, but not for HistGradientBoosting and forests of several outputs; onnxmltools 1.16
for none. xgboost's thresholds are float32.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from deploykit import graph
from deploykit.exporters.sklearn_data import thresholds_of
from deploykit.exporters.sklearn_parts import objects

if TYPE_CHECKING:
    from collections.abc import Iterable

_TREES = ("TreeEnsembleRegressor", "TreeEnsembleClassifier")


def decide_alike(model: ir.Model, estimator: Any) -> None:
    """Changes the float32 thresholds of trees with double ones, where the nearest float32 is above."""
    doubles = [found for part in objects(estimator) if _asks_in_double(part) for found in thresholds_of(part)]
    if not doubles:
        return
    lower = _lowered(doubles)
    for node in graph.all_nodes(model):
        if node.op_type in _TREES and "nodes_values" in node.attributes:
            features = node.attributes["nodes_featureids"].as_ints()
            modes = node.attributes["nodes_modes"].as_strings()
            values = node.attributes["nodes_values"].as_floats()
            settled = [
                lower.get((int(feature), float(np.float32(value))), value) if mode == "BRANCH_LEQ" else value
                for feature, value, mode in zip(features, values, modes, strict=True)
            ]
            node.attributes["nodes_values"] = ir.AttrFloat32s("nodes_values", settled)


def _asks_in_double(part: Any) -> bool:
    held = vars(part) if hasattr(part, "get_params") else {}
    return any(name in held for name in ("tree_", "_predictors", "_Booster")) and not _is_xgboost(part)


def _is_xgboost(part: Any) -> bool:
    return type(part).__module__.partition(".")[0] == "xgboost"


def _lowered(doubles: Iterable[tuple[int, float]]) -> dict[tuple[int, float], float]:
    """By feature and nearest float32: the float32 that decides alike.

    None where thresholds are so close that a float32 stands for two of them: which one is meant cannot be told.
    """
    wanted: dict[tuple[int, float], set[float]] = {}
    settled: set[tuple[int, float]] = set()
    for feature, threshold in doubles:
        if not np.isfinite(threshold):
            continue
        nearest = np.float32(threshold)
        below = nearest if float(nearest) <= threshold else np.nextafter(nearest, np.float32(-np.inf))
        wanted.setdefault((feature, float(nearest)), set()).add(float(below))
        if below != nearest:
            settled.add((feature, float(below)))
    return {key: values.pop() for key, values in wanted.items() if len(values) == 1 and key not in settled}
