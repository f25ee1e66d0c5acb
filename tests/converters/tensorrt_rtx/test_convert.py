"""Engines are really built here, without a GPU; nothing is executed."""

from __future__ import annotations

import hashlib
import shutil

import pytest

import deploykit
from deploykit.errors import UsageError, VendorError
from deploykit.isolation import WorkerPool

CNN = """
<ir_version: 9, opset_import: ["" : 19]>
cnn (float[batch,1,8,8] image) => (float[batch,3] scores)
<float[2,1,3,3] w = {0.1,-0.2,0.3,0.4,-0.5,0.6,0.7,0.8,-0.9,0.1,0.2,0.3,-0.4,0.5,0.6,-0.7,0.8,0.9},
 float[2] b = {0.1,-0.1}, float[2,3] w2 = {0.1,-0.2,0.3,0.4,0.5,-0.6}>
{
  [features] c = Conv <pads=[1,1,1,1]> (image, w, b)
  [active] r = Relu (c)
  [pooled] p = GlobalAveragePool (r)
  [flat] f = Flatten (p)
  [classes] scores = MatMul (f, w2)
}"""
HALF = """
<ir_version: 9, opset_import: ["" : 19]>
half (float[1,16] x) => (float[1,16] y) <float[16,16] w32 = {WEIGHTS}> {
  [weights] w = Cast <to=10> (w32)
  [narrow] a = Cast <to=10> (x)
  [product] b = MatMul (a, w)
  [wide] y = Cast <to=1> (b)
}""".replace("WEIGHTS", ",".join(["0.5"] * 256))
QDQ = """
<ir_version: 9, opset_import: ["" : 19]>
quantized (float[1,2,8,8] x) => (float[1,2,8,8] y)
<int8[2,2,1,1] w = {10,-20,30,40}, float[2] ws = {0.01,0.02}, int8[2] wz = {0,0}, float[2] b = {0.1,0.2},
 float s = {0.05}, int8 z = {0}>
{
  [q] q = QuantizeLinear (x, s, z)
  [dq] d = DequantizeLinear (q, s, z)
  [dqw] wd = DequantizeLinear <axis=0> (w, ws, wz)
  [conv] y = Conv (d, wd, b)
}"""


def severities(result):
    return [finding["severity"] for finding in result["findings"]]


def test_one_engine_for_two_gpu_generations(build, save):
    result, engine = build(save(CNN), dims={"batch": [1, 64]})
    assert result["findings"] == []
    check = result["metrics"]["static_check"]
    assert check["accelerators"] == ["sm89", "sm120"]
    assert check["bytes"] == engine.stat().st_size
    assert check["tf32"] is False
    assert "nothing was executed" in check["method"]
    assert result["metrics"]["profiles"] == {"image": "1x1x8x8:8x1x8x8:64x1x8x8"}
    assert result["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 1, 8, 8]}]
    assert result["outputs"] == [{"name": "scores", "dtype": "float32", "shape": ["batch", 3]}]
    assert result["versions"]["tensorrt_rtx"]


@pytest.mark.parametrize("value", ["86", 86, [86], "sm86", "8.6"])
def test_the_gpu_can_be_named_in_several_ways(build, save, value):
    result, _ = build(save(CNN), dims={"batch": [1, 4]}, sm=value)
    assert result["metrics"]["static_check"]["accelerators"] == ["sm86"]


def test_an_unknown_gpu_lists_those_that_the_installed_version_has(build, save):
    with pytest.raises(UsageError, match="cannot build for sm90") as caught:
        build(save(CNN), sm="89,90")
    assert caught.value.code == "DK522"
    assert "sm89" in caught.value.context[0]


def test_a_dimension_without_a_bound_is_told_before_any_build(build, save):
    result, engine = build(save(CNN))
    assert [(f["code"], f["tensor"]) for f in result["findings"]] == [("DK520", "image")]
    assert "--dim batch=1..64" in result["findings"][0]["hint"]
    assert not engine.exists()


def test_two_builds_in_two_processes_are_the_same_bytes(build, save):
    model = save(CNN)
    digests = set()
    for name in ("a.engine", "b.engine"):
        _, engine = build(model, dims={"batch": [1, 8]}, output=name)
        digests.add(hashlib.sha256(engine.read_bytes()).hexdigest())
    arguments = {
        "model": str(model),
        "output": str(engine),
        "options": {},
        "dims": {"batch": [1, 8]},
        "profiles": {},
        "precision": "fp32",
    }
    with WorkerPool() as fresh:
        fresh.get("another").call("deploykit.converters.tensorrt_rtx.convert:convert_job", arguments)
    digests.add(hashlib.sha256(engine.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_reduced_precision_is_in_the_model_and_builds(build, save):
    for text in (HALF, HALF.replace("to=10", "to=16"), QDQ):
        result, engine = build(save(text))
        assert severities(result) == []
        assert engine.stat().st_size > 0


def test_tf32_is_on_only_when_asked_for(build, save):
    result, _ = build(save(CNN), dims={"batch": [1, 4]}, tf32="true")
    assert result["metrics"]["static_check"]["tf32"] is True
    with pytest.raises(UsageError, match="true or false"):
        build(save(CNN), tf32="maybe")


def test_refused_nodes_are_all_named(build, save):
    result, engine = build(
        save("""
        <ir_version: 9, opset_import: ["" : 19, "mine" : 1]>
        bad (float[2,3,3] x) => (float[2] y, float[2,3,3] z) {
          [determinant] y = Det (x)
          [custom] z = mine.Thing (x)
        }""")
    )
    assert [(f["code"], f["node"], f["op"]) for f in result["findings"]] == [
        ("DK526", "determinant", "Det"),
        ("DK526", "custom", "Thing"),
    ]
    assert not engine.exists()


def test_a_build_failure_names_the_layer_and_keeps_the_log(build, save):
    with pytest.raises(VendorError, match="at 'best'") as caught:
        build(
            save("""
            <ir_version: 9, opset_import: ["" : 19]>
            top (float[1,5000] x) => (float[1,4000] y, int64[1,4000] i) <int64[1] k = {4000}> {
              [best] y, i = TopK (x, k)
            }""")
        )
    assert (caught.value.code, caught.value.node) == ("DK525", "best")
    assert any("3840" in line for line in caught.value.log)
    assert "request.json" in caught.value.reproduce


def test_paths_with_spaces_and_other_alphabets(build, save):
    result, engine = build(save(CNN, "мо дель ü.onnx"), dims={"batch": [1, 4]}, output="äö ü.engine")
    assert result["findings"] == []
    assert engine.exists()


def test_a_profile_with_a_shape_that_the_model_does_not_run_in_is_refused_with_it(build, save):
    path = save("""
        <ir_version: 9, opset_import: ["" : 19]>
        halves (float[n] x) => (float[m] y) <int64[1] zero = {0}, int64[1] two = {2}, int64[1] one = {1}> {
          size = Shape (x)
          half = Div (size, two)
          a = Slice (x, zero, half, zero)
          b = Slice (x, half, size, zero)
          [sum] y = Add (a, b)
        }""")
    with pytest.raises(UsageError) as caught:
        build(path, profiles={"x": [[8], [11], [16]]})
    assert (caught.value.code, caught.value.node) == ("DK521", "sum")
    assert "OPT shape of its profile, x=11" in caught.value.message
    assert "--profile" in caught.value.hint


def test_int8_engines_are_the_same_bytes_from_every_folder_and_process(save, tmp_path):
    model = save(QDQ)
    digests = set()
    for folder in ("a", "a much longer name of a folder", "ß 模型"):
        (tmp_path / folder).mkdir()
        shutil.copy(model, tmp_path / folder / "model.onnx")
        engine = tmp_path / folder / "out.engine"
        report = deploykit.convert(tmp_path / folder / "model.onnx", to="tensorrt-rtx", output=engine)
        assert report.exit_code == 0, [finding.message for finding in report.findings]
        digests.add(report.artifact.sha256)
    assert len(digests) == 1
