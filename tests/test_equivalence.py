"""What counts as the same model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
import pytest

from deploykit import graph
from deploykit.equivalence import (
    Plan,
    Probe,
    compare_models,
    interface_differences,
    kept_differences,
    pin_seeds,
    stand_in,
    unknown_nodes,
)
from deploykit.reference import Reference

if TYPE_CHECKING:
    from pathlib import Path

HEADER = '<ir_version: 8, opset_import: ["": 17, "my.ops": 1]>\n'


def parse(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEADER + text))


def save(path: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(HEADER + text), path)
    return path


RELU = "agraph (float[n,4] x) => (float[n,4] y) { y = Relu(x) }"


def probe(path: Path) -> Probe:
    plan = Plan.of(graph.load(path), {}, seed=0, samples=5)
    assert plan is not None
    return Probe(plan, Reference(path))


def differences(tmp_path: Path, original: str, candidate: str) -> list[str]:
    first, second = save(tmp_path / "a.onnx", original), save(tmp_path / "b.onnx", candidate)
    outcome = compare_models(first, second)
    return sorted({finding["code"] for finding in outcome["findings"] if finding["severity"] == "error"})


@pytest.mark.parametrize(
    ("candidate", "code"),
    [
        ("agraph (float[n,4] x) => (float[n,4] y) { y = Relu(x) }", None),
        ("agraph (float[n,4] x) => (float[n,4] y) { z = Neg(x) y = Relu(z) }", "DK401"),
        ("agraph (float[1,4] x) => (float[1,4] y) { y = Relu(x) }", "DK633"),
        ("agraph (float[m,4] x) => (float[m,4] y) { y = Relu(x) }", "DK633"),
        ("agraph (float[n,4] x) => (float[n,4] z) { z = Relu(x) }", "DK633"),
        ("agraph (float[n,4] q) => (float[n,4] y) { y = Relu(q) }", "DK633"),
        ("agraph (float16[n,4] x) => (float16[n,4] y) { y = Relu(x) }", "DK633"),
        ("agraph (float[n,4] x, float[n,4] u) => (float[n,4] y) { y = Relu(x) }", "DK633"),
        # Right at a batch of one only: the minimum alone would not tell.
        (
            "agraph (float[n,4] x) => (float[n,4] y) <int64[2] s = {1, 4}> { r = Relu(x) y = Reshape(r, s) }",
            "DK636",
        ),
    ],
)
def test_differences_are_found(tmp_path, candidate, code):
    assert differences(tmp_path, RELU, candidate) == ([code] if code else [])


def test_lost_quantization_is_a_difference():
    quantized = """agraph (float[4] x) => (float[4] y) <float s = {0.5}, int8 z = {0}>
        { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    found = kept_differences(parse(quantized), parse("agraph (float[4] x) => (float[4] y) { y = Identity(x) }"))
    assert [finding.code for finding in found] == ["DK634"]


def test_random_nodes_are_compared_with_the_same_seeds(tmp_path):
    text = "agraph (float[4] x) => (float[4] y) { r = RandomNormalLike(x) y = Add(x, r) }"
    outcome = compare_models(save(tmp_path / "a.onnx", text), save(tmp_path / "b.onnx", text))
    assert outcome["outputs"][0]["exact"]
    model = parse(text)
    assert pin_seeds(model)
    assert "seed" in next(iter(model.graph)).attributes


def test_operators_without_a_kernel_are_stood_in_for(tmp_path):
    text = "agraph (float[4] x) => (float[4] y) {{ a = my.ops.Scale <alpha = 2.0> (x) y = {op}(a) }}"
    model = parse(text.format(op="Relu"))
    assert [node.op_type for node in unknown_nodes(model)] == ["Scale"]
    assert stand_in(model) == ["(unnamed) (Scale)"]
    assert not unknown_nodes(model)
    assert differences(tmp_path, text.format(op="Relu"), text.format(op="Relu")) == []
    assert differences(tmp_path, text.format(op="Relu"), text.format(op="Neg")) == ["DK401"]
    assert "DK634" in differences(tmp_path, text.format(op="Relu"), text.replace("2.0", "3.0").format(op="Relu"))


def test_an_unnamed_output_dimension_may_become_known():
    known = parse("agraph (float[4] x) => (float[4] y) { y = Relu(x) }")
    unknown = parse("agraph (float[4] x) => (float[?] y) { y = Relu(x) }")
    unknown.graph.outputs[0].shape = ir.Shape([None])
    assert [f.code for f in interface_differences(known, parse("agraph (float[4] x) => (float[5] y) { y = Relu(x) }"))]
    assert interface_differences(unknown, unknown) == []


def test_sizes_that_the_model_takes_are_looked_for(tmp_path):
    # Only lengths that are a multiple of 64 can be reshaped.
    text = """agraph (float[n] x) => (float[a,b] y) <int64[2] s = {-1, 64}> { y = Reshape(x, s) }"""
    path = save(tmp_path / "a.onnx", text)
    sizes = [sample.feeds["x"].size for sample in probe(path).samples()]
    assert len(sizes) >= 3
    assert all(size % 64 == 0 for size in sizes)


def test_both_ways_of_an_if_are_taken(tmp_path):
    text = """agraph (float[4] x, int64 rate) => (float[4] y) <int64 wanted = {16000}>
        { c = Equal(rate, wanted)
          y = If (c) <then_branch = t () => (float[4] a) { a = Relu(x) },
                      else_branch = e () => (float[4] b) { b = Neg(x) }> }"""
    path = save(tmp_path / "a.onnx", text)
    rates = {int(sample.feeds["rate"]) for sample in probe(path).samples()}
    assert 16000 in rates
    assert rates - {16000}
    other = save(tmp_path / "b.onnx", text.replace("b = Neg(x)", "b = Abs(x)"))
    assert not compare_models(path, other)["outputs"][0]["passed"]
