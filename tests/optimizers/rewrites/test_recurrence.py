"""Recurrent layers in the layout that engines know."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from deploykit import graph
from deploykit.optimizers.rewrites.recurrence import SequenceFirst
from deploykit.reference import Reference


@pytest.mark.parametrize(("op", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("state", [False, True])
def test_recurrent_layers_with_the_batch_first(op, gates, state):
    """Against onnx's own evaluator: onnxruntime does not have this layout."""
    rng = np.random.default_rng(0)
    outputs = ["y", "h"] + (["c"] if op == "LSTM" else [])
    given = (", , , h0" + (", c0" if op == "LSTM" else "")) if state else ""
    states = ", float[2, 1, 3] h0" + (", float[2, 1, 3] c0" if op == "LSTM" else "") if state else ""
    out = "float[2, 5, 1, 3] y, " + ", ".join(f"float[2, 1, 3] {name}" for name in outputs[1:])
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 14]>
    agraph (float[2, 5, 4] x, float[1, {3 * gates}, 4] w, float[1, {3 * gates}, 3] r{states}) => ({out}) {{
        {", ".join(outputs)} = {op} <hidden_size = 3, layout = 1> (x, w, r{given})
    }}""")
    feeds = {
        value.name: rng.normal(size=[dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in proto.graph.input
    }
    made = graph.infer_shapes(graph.name_nodes(ir.from_proto(proto)))
    assert SequenceFirst().apply(made, list(made.graph))
    result = ir.to_proto(made)
    onnx.checker.check_model(result, full_check=True)
    got = Reference(result.SerializeToString()).predict(feeds)
    wanted = dict(zip(outputs, ReferenceEvaluator(proto).run(None, feeds), strict=True))
    names = outputs if op != "LSTM" else outputs[:2]
    for name in names:
        np.testing.assert_allclose(got[name].ravel(), np.asarray(wanted[name]).ravel(), rtol=1e-4, atol=1e-5)
