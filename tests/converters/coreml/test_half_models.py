"""ONNX models in fp16: their types are the package's, every operator rounds, casts around islands stay."""

import numpy as np
import pytest

import deploykit
from deploykit.artifact import read_manifest
from deploykit.converters.coreml.inspect import open_package
from deploykit.reference import Reference

RNG = np.random.default_rng(5)
HEAD = '<ir_version: 9, opset_import: ["" : 18]>'
# 26624 and 15667 are the bits of 2048 and 1.3 in fp16.
ROUNDS = (
    HEAD
    + """g (float16[3,5] x) => (float16[3,5] y) <float16[1] big = {26624}, float16[1] k = {15667}> {
    a = Mul (x, k)
    b = Add (a, big)
    y = Sub (b, big)
}"""
)
ISLAND = (
    HEAD
    + """g (float16[3,5] x) => (float16[3,5] y) <float16[1] k = {15667}, float[1] big = {2048}> {
    a = Mul (x, k)
    [up] w = Cast <to: int = 1> (a)
    b = Add (w, big)
    c = Sub (b, big)
    [down] y = Cast <to: int = 10> (c)
}"""
)


def test_every_operator_rounds(save, build, evaluate):
    result, package = build(save(ROUNDS))
    x = RNG.normal(size=(3, 5)).astype(np.float16)
    expected = (x * np.float16(1.3) + np.float16(2048)) - np.float16(2048)
    np.testing.assert_array_equal(evaluate(package, {"x": x})["y"], expected)
    assert not np.array_equal(expected, x * np.float16(1.3))  # it has something to round
    assert [result[kind][0]["dtype"] for kind in ("inputs", "outputs")] == ["float16", "float16"]


def test_casts_around_an_island_stay(save, build, evaluate):
    result, package = build(save(ISLAND))
    x = RNG.normal(size=(3, 5)).astype(np.float16)
    wide = (x * np.float16(1.3)).astype(np.float32)
    expected = ((wide + np.float32(2048)) - np.float32(2048)).astype(np.float16)
    np.testing.assert_array_equal(evaluate(package, {"x": x})["y"], expected)
    kinds = {o.outputs[0].name: o.outputs[0].dtype.__name__ for o in open_package(package).function.operations}
    assert kinds["b"] == kinds["c"] == "fp32"
    assert result["metrics"]["operators"]["cast"] == 2


PLAIN = (
    HEAD
    + """g (float[3,8] x) => (float[3,8] y) <float[8,8] w = {MATRIX}> {
    a = MatMul (x, w)
    [up] b = Mul (a, a)
    y = Tanh (b)
}""".replace("MATRIX", ",".join(f"{value:.5f}" for value in RNG.normal(size=64) / 4))
)


@pytest.mark.parametrize("keep_io", [False, True])
def test_the_way_through_quantize_keeps_working(keep_io, save, tmp_path, evaluate):
    path, half, package = save(PLAIN), tmp_path / "half.onnx", tmp_path / "half.mlpackage"
    np.savez(tmp_path / "x.npz", x=RNG.normal(size=(8, 3, 8)).astype(np.float32))
    calib = tmp_path / "x.npz"
    deploykit.quantize(path, output=half, precision="fp16", target="coreml", calib=calib, keep_io=keep_io)
    report = deploykit.convert(half, to="coreml", output=package, reference=path, data=str(calib))
    assert report.status == "passed"
    made = read_manifest(package)
    assert made.precision == "fp16"
    kind = "float32" if keep_io else "float16"
    assert [spec.dtype for spec in (*made.inputs, *made.outputs)] == [kind, kind]
    x = RNG.normal(size=(3, 8)).astype(kind)
    expected = Reference(path).predict({"x": x.astype(np.float32)})["y"]
    np.testing.assert_allclose(evaluate(package, {"x": x})["y"], expected, rtol=1e-2, atol=2e-3)
    assert set(report.metrics["parity"]) == {"parent", "source"}


def test_convert_makes_fp16_itself_and_the_manifest_says_so(save, tmp_path):
    path, package = save(PLAIN), tmp_path / "made.mlpackage"
    np.savez(tmp_path / "x.npz", x=RNG.normal(size=(8, 3, 8)).astype(np.float32))
    report = deploykit.convert(
        path, to="coreml", output=package, options={"compute_precision": "fp16"}, calib=tmp_path / "x.npz"
    )
    assert report.status == "passed"
    made = read_manifest(package)
    assert made.precision == "fp16"
    assert [spec.dtype for spec in (*made.inputs, *made.outputs)] == ["float32", "float32"]
    assert made.options["calib_sha256"]
    facts = report.metrics["compute_precision"]
    assert (facts["fp16"], facts["fp32"], facts["samples"]) == (4, 0, 8)  # an identity gives the output its name
    row = report.metrics["parity"]["parent"]["outputs"][0]
    assert row["passed"]
    assert 50 < row["sqnr_db"] < 90  # rounded, and no more than that
