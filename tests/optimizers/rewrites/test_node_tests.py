"""All structural rewrites on all node-test models of onnx: what applies gives the values that onnxruntime gives."""

from __future__ import annotations

import collections

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.errors import DeploykitError
from deploykit.optimizers.rewrites import all_rewrites
from deploykit.reference import Reference

STRUCTURAL = [
    "constant-indices", "explicit-windows", "resize-form", "two-dimensions", "sequence-first", "inline-functions",
    "unroll-control-flow", "unpack-sequences", "reduce-rank", "decompose-com-microsoft", "decompose-layouts",
    "decompose-einsum", "decompose-arithmetic", "decompose-normalizations", "decompose-reductions", "decompose-resize",
    "decompose-spectra", "decompose-attention", "constant-results",
]  # fmt: skip
# Formulas with another rounding near a pole; and a transform that onnxruntime itself has 3e-4 off where sums are 540,
# while the matrices are within 2e-5 of what onnx expects.
LOOSE = {"decompose-arithmetic": 1e-4, "decompose-spectra": 1e-3}


def outcome(rewrite, case):
    """None where nothing applies or onnxruntime cannot run the original; "" when equal; what differs otherwise."""
    made = graph.infer_shapes(graph.name_nodes(ir.from_proto(case.model)))
    nodes = [node for node in graph.all_nodes(made) if rewrite.applies(node, made)]
    if not nodes or not case.data_sets:
        return None
    inputs = [onnx.numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in case.data_sets[0][0]]
    if any(not isinstance(value, (np.ndarray, np.generic)) for value in inputs):
        return None
    feeds = {v.name: np.asarray(array) for v, array in zip(case.model.graph.input, inputs, strict=True)}
    try:
        before = Reference(case.model.SerializeToString()).predict(feeds)
    except DeploykitError:
        return None
    interface = graph.interface(made)
    if not rewrite.apply(made, nodes):
        return "it applies and changes nothing"
    if graph.interface(made) != interface:
        return "the interface differs"
    result = ir.to_proto(made)
    try:
        onnx.checker.check_model(result, full_check=True)
        after = Reference(result.SerializeToString()).predict(feeds)
    except (DeploykitError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as problem:
        # onnxruntime has few kernels for bfloat16.
        return None if "bfloat16" in case.name and "NOT_IMPLEMENTED" in str(problem) else str(problem)[:300]
    for name, wanted in before.items():
        got, wanted = np.asarray(after[name]), np.asarray(wanted)
        if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
            return f"{wanted.dtype}{wanted.shape} became {got.dtype}{got.shape}"
        if wanted.dtype.kind not in "fV":
            same = np.array_equal(got, wanted)
        else:
            close = 1e-2 if wanted.dtype.itemsize <= 2 else LOOSE.get(rewrite.name, 2e-5)
            same = np.allclose(got.astype(float), wanted.astype(float), rtol=close, atol=close, equal_nan=True)
        if not same:
            return "the values differ"
    return ""


@pytest.mark.slow
def test_structural_rewrites_on_all_node_tests():
    from onnx.backend.test.case.node import collect_testcases

    rewrites = [rewrite for rewrite in all_rewrites() if rewrite.name in STRUCTURAL]
    assert len(rewrites) == len(STRUCTURAL)
    done, wrong = collections.Counter(), []
    for case in collect_testcases(None):
        if case.model is None:
            continue
        for rewrite in rewrites:
            found = outcome(rewrite, case)
            if found is not None:
                done[rewrite.name] += 1
            if found:
                wrong.append(f"{rewrite.name} on {case.name}: {found}")
    print(dict(done))
    assert not wrong, "\n".join(wrong)
    assert sum(done.values()) > 500
