"""The other engines' results as they write them."""

from __future__ import annotations

import onnx
import pytest

from deploykit import graph, lazy
from deploykit.isolation import run_isolated, workers
from deploykit.optimizers.candidates import BLOCKED
from deploykit.optimizers.engines import count_nodes

MODEL = """<ir_version: 8, opset_import: ["": 17, "local": 1]> g (float[2] x, bool c) => (float[2] y) {
    a = Identity (x)
    one = Constant <value_float = 1.0> ()
    b = If (c) <
        then_branch = t () => (float[2] u) { two = Constant <value_float = 2.0> () u = Mul (a, two) },
        else_branch = e () => (float[2] v) { w = Add (a, one) v = Neg (w) }
    >
    y = local.twice (b)
}
"""
FUNCTION = """<opset_import: ["": 17], domain: "local"> twice (p) => (q) {
    three = Constant <value_float = 3.0> ()
    q = Mul (p, three)
}"""


@pytest.mark.parametrize("engine", ["onnxslim", "onnxsim"])
def test_what_is_written_is_told(tmp_path, engine):
    if not lazy.installed(engine):
        pytest.skip(f"{engine} is not installed")
    # onnxslim does not end on functions.
    onnx.save(onnx.parser.parse_model(MODEL.replace("local.twice", "Abs")), tmp_path / "in.onnx")
    given = {"engine": engine, "model": str(tmp_path / "in.onnx"), "output": str(tmp_path / "raw.onnx")}
    with workers():
        facts = run_isolated("foreign", "deploykit.optimizers.foreign:foreign_job", given, block=BLOCKED)
    assert facts["bytes"] == (tmp_path / "raw.onnx").stat().st_size
    assert facts["nodes"] == count_nodes(graph.load(tmp_path / "raw.onnx"))
    assert {engine, "onnx"} <= facts["versions"].keys()


def test_nodes_are_counted_alike(tmp_path):
    from deploykit.optimizers.foreign import _count

    model = onnx.parser.parse_model(MODEL + FUNCTION)
    onnx.save(model, tmp_path / "in.onnx")
    assert _count([model.graph, *model.functions]) == count_nodes(graph.load(tmp_path / "in.onnx")) == 7
