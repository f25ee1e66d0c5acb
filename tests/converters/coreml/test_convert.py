"""Packages: interface, precision, bytes, and what is refused."""

from __future__ import annotations

import contextvars

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import deploykit
from deploykit import io
from deploykit.errors import OutputError, UsageError
from deploykit.reference import Reference

NET = """
<ir_version: 9, opset_import: ["" : 19]>
net (float[batch,3,8,8] image) => (float[batch,4] scores)
<float[4,3,3,3] w = {WEIGHTS}, float[4] b = {0.1,-0.1,0.2,0.3},
 float[4,4] w2 = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, int64[2] s = {0,-1}>
{
  [features] c = Conv <pads=[1,1,1,1]> (image, w, b)
  [active] r = Relu (c)
  [pooled] p = GlobalAveragePool (r)
  [flat] f = Reshape (p, s)
  [classes] scores = Gemm (f, w2)
}""".replace("WEIGHTS", ",".join(f"{(i % 7) / 10 - 0.3:.1f}" for i in range(108)))
BATCH = {"batch": [1, 16]}


def errors(result):
    return [(f["code"], f["node"] or f["tensor"]) for f in result["findings"] if f["severity"] == "error"]


def images(count, dtype=np.float32):
    return {"image": np.random.default_rng(0).normal(size=(count, 3, 8, 8)).astype(dtype)}


@pytest.mark.parametrize("count", [1, 5, 16])
def test_a_dynamic_batch_keeps_names_types_and_values(build, save, evaluate, count):
    model = save(NET)
    result, package = build(model, dims=BATCH)
    assert result["findings"] == []
    assert result["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 3, 8, 8]}]
    assert result["outputs"] == [{"name": "scores", "dtype": "float32", "shape": ["batch", 4]}]
    assert result["metrics"]["precision"] == "fp32"
    feeds = images(count)
    expected = Reference(model).predict(feeds)["scores"]
    np.testing.assert_allclose(evaluate(package, feeds)["scores"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("system", "version"), [("iOS16", 7), ("iOS17", 8), ("iOS18", 9)])
def test_the_deployment_target_decides_the_specification(build, save, system, version):
    result, _ = build(save(NET), dims=BATCH, minimum_deployment_target=system)
    assert result["metrics"]["specification_version"] == version
    result, _ = build(save(NET), dims=BATCH, version=system)
    assert result["metrics"]["specification_version"] == version


def test_an_unknown_deployment_target_is_refused(build, save):
    with pytest.raises(UsageError, match="none of iOS16, iOS17, iOS18"):
        build(save(NET), minimum_deployment_target="iOS9")


def test_the_same_model_gives_the_same_bytes(build, save):
    model = save(NET)
    digests = {io.digest([build(model, dims=BATCH, output=f"{name}.mlpackage")[1] / "Data"]) for name in "ab"}
    manifests = {(build(model, dims=BATCH, output=f"{n}.mlpackage")[1] / "Manifest.json").read_bytes() for n in "ab"}
    assert len(digests) == len(manifests) == 1


def test_nothing_is_written_about_author_licence_or_date(build, save):
    import coremltools as ct

    _, package = build(save(NET), dims=BATCH)
    metadata = ct.models.MLModel(str(package), skip_model_load=True).get_spec().description.metadata
    assert (metadata.author, metadata.license, metadata.shortDescription) == ("", "", "")
    assert not any("date" in key for key in metadata.userDefined)


def half_model():
    """NET's first layers with fp16 weights and interface."""
    weight = np.linspace(-1, 1, 4 * 3 * 9).reshape(4, 3, 3, 3).astype(np.float16)
    return helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Conv", ["image", "w"], ["c"], name="features", pads=[1, 1, 1, 1]),
                helper.make_node("Relu", ["c"], ["y"], name="active"),
            ],
            "half",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT16, [1, 3, 8, 8])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [1, 4, 8, 8])],
            [numpy_helper.from_array(weight, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 19)],
        ir_version=9,
    )


def test_half_precision_stays_as_the_model_has_it(build, save, evaluate):
    result, package = build(save(half_model()))
    assert result["metrics"]["precision"] == "fp16"
    assert result["inputs"][0]["dtype"] == result["outputs"][0]["dtype"] == "float16"
    assert result["metrics"]["weights"]["bytes_by_dtype"]["float16"] == 4 * 3 * 9 * 2
    feeds = images(1, np.float16)
    made = evaluate(package, feeds)["y"]
    assert made.dtype == np.float16
    expected = Reference(save(half_model())).predict(feeds)["y"]
    np.testing.assert_allclose(made.astype(np.float32), expected.astype(np.float32), rtol=2e-3, atol=2e-3)


WEIGHTS_ONLY = """
<ir_version: 9, opset_import: ["" : 19]>
small (float[2,3,4,4] x) => (float[2,5] y)
<int8[2,3,3,3] w = {CONV}, float[2] ws = {0.01,0.02}, int8[2] wz = {0,0},
 int8[32,5] m = {DENSE}, float[5] ms = {0.01,0.02,0.03,0.04,0.05}, int8[5] mz = {0,0,0,0,0}, float[5] c = {1,2,3,4,5}>
{
  [dq1] wf = DequantizeLinear <axis=0> (w, ws, wz)
  [conv] a = Conv <pads=[1,1,1,1]> (x, wf)
  [flat] f = Flatten (a)
  [dq2] mf = DequantizeLinear <axis=1> (m, ms, mz)
  [dense] y = Gemm (f, mf, c)
}""".replace("CONV", ",".join(str(i % 255 - 127) for i in range(0, 54 * 11, 11))).replace(
    "DENSE", ",".join(str(i % 255 - 127) for i in range(0, 160 * 7, 7))
)


@pytest.mark.parametrize("system", ["iOS16", "iOS17", "iOS18"])
def test_int8_weights_stay_int8_in_the_package(build, save, evaluate, system):
    model = save(WEIGHTS_ONLY)
    result, package = build(model, minimum_deployment_target=system)
    assert errors(result) == []
    assert result["metrics"]["precision"] == "int8-weights"
    form = "constexpr_blockwise_shift_scale" if system == "iOS18" else "constexpr_affine_dequantize"
    assert result["metrics"]["operators"][form] == 2
    assert result["metrics"]["weights"]["bytes_by_dtype"]["int8"] >= 54 + 160
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 3, 4, 4)).astype(np.float32)}
    np.testing.assert_allclose(
        evaluate(package, feeds)["y"], Reference(model).predict(feeds)["y"], rtol=1e-5, atol=1e-5
    )


QDQ = """
<ir_version: 9, opset_import: ["" : 19]>
quantized (float[1,2,4,4] x) => (float[1,2,4,4] y)
<int8[2,2,1,1] w = {10,-20,30,40}, float[2] ws = {0.01,0.02}, int8[2] wz = {0,0}, int32[2] b = {100,-200},
 float[2] bs = {0.0005,0.001}, int32[2] bz = {0,0}, float s = {0.05}, int8 z = {3}, float t = {0.04}, uint8 u = {130}>
{
  [q] q = QuantizeLinear (x, s, z)
  [dq] d = DequantizeLinear (q, s, z)
  [dqw] wd = DequantizeLinear <axis=0> (w, ws, wz)
  [dqb] bd = DequantizeLinear <axis=0> (b, bs, bz)
  [conv] c = Conv (d, wd, bd)
  [q2] r = QuantizeLinear (c, t, u)
  [dq2] y = DequantizeLinear (r, t, u)
}"""


def test_quantized_activations_with_an_int32_bias(build, save, evaluate):
    model = save(QDQ)
    result, package = build(model)
    assert result["metrics"]["precision"] == "int8"
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)}
    made, expected = evaluate(package, feeds)["y"], Reference(model).predict(feeds)["y"]
    np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-6)


def test_changed_types_and_names_are_told(build, save, evaluate):
    model = save("""
    <ir_version: 9, opset_import: ["" : 19]>
    g (int64[2,3] "input.ids", bool[2,3] mask) => (bool[2,3] "out:0", int64[2,3] n) {
      [big] b = Equal ("input.ids", "input.ids")
      [both] "out:0" = And (b, mask)
      [same] n = Neg ("input.ids")
    }""")
    result, package = build(model)
    told = {(f["tensor"], f["severity"]) for f in result["findings"] if f["code"] == "DK529"}
    assert told == {("input.ids", "warning"), ("input.ids", "note"), ("mask", "note"), ("out:0", "warning"),
                    ("out:0", "note"), ("n", "note")}  # fmt: skip
    assert [(s["name"], s["dtype"]) for s in result["inputs"]] == [("input_ids", "int32"), ("mask", "float32")]
    assert [(s["name"], s["dtype"]) for s in result["outputs"]] == [("out_0", "float32"), ("n", "int32")]
    made = evaluate(package, {"input_ids": np.array([[1, 2, 3]] * 2, np.int32),
                              "mask": np.array([[1, 0, 1]] * 2, np.float32)})  # fmt: skip
    assert made["out_0"].tolist() == [[1, 0, 1]] * 2
    assert made["n"].tolist() == [[-1, -2, -3]] * 2


def test_all_refused_nodes_are_listed_before_anything_is_built(build, save):
    result, package = build(
        save("""
        <ir_version: 9, opset_import: ["" : 19, "mine" : 1]>
        bad (float[2,3,3] x, double[2] d) => (float[2] y, float[2,3,3] z, double[2] e) {
          [determinant] y = Det (x)
          [custom] z = mine.Thing (x)
          [wide] e = Exp (d)
        }""")
    )
    assert errors(result) == [("DK529", "d"), ("DK529", "e")]
    result, package = build(
        save("""
        <ir_version: 9, opset_import: ["" : 19, "mine" : 1]>
        bad (float[2,3,3] x) => (float[2] y, float[2,3,3] z) {
          [determinant] y = Det (x)
          [custom] z = mine.Thing (x)
        }""")
    )
    assert errors(result) == [("DK526", "determinant"), ("DK526", "custom")]
    assert not package.exists()


def test_an_integer_beyond_32_bits_is_refused_not_saturated(build, save):
    result, _ = build(
        save("""
        <ir_version: 9, opset_import: ["" : 19]>
        big (int64[2] x) => (int64[2] y) <int64[1] k = {4294967296}> { [sum] y = Add (x, k) }""")
    )
    assert errors(result) == [("DK526", "sum")]
    assert "32 bits" in next(f["message"] for f in result["findings"] if f["severity"] == "error")


def test_a_missing_bound_is_refused(build, save):
    assert errors(build(save(NET))[0]) == [("DK520", "image")]


def test_a_scalar_input_is_a_vector_of_one_and_the_report_says_so(build, save, evaluate):
    scalar = """
    <ir_version: 9, opset_import: ["" : 19]>
    s (float x) => (float y) { [a] y = Relu (x) }"""
    result, package = build(save(scalar))
    assert errors(result) == []
    assert [f["tensor"] for f in result["findings"] if "shape [1]" in f["message"]] == ["x"]
    assert result["inputs"] == [{"name": "x", "dtype": "float32", "shape": [1]}]
    assert evaluate(package, {"x": np.array([-2.0], np.float32)})["y"].tolist() == 0.0


def test_bounds_with_one_size_make_it_fixed(build, save):
    result, _ = build(save(NET), dims={"batch": [4, 4]})
    assert errors(result) == []


def test_an_output_may_be_an_input_or_a_constant_or_stand_twice(build, save, evaluate):
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Identity", ["x"], ["y"], name="same"),
                helper.make_node("Identity", ["k"], ["c"], name="fixed"),
                helper.make_node("Relu", ["x"], ["r"], name="relu"),
                helper.make_node("Identity", ["r"], ["again"], name="again"),
            ],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("y", "c", "r", "again")],
            [numpy_helper.from_array(np.array([1, 2], np.float32), "k")],
        ),
        opset_imports=[helper.make_opsetid("", 19)],
        ir_version=9,
    )
    onnx.checker.check_model(model)
    result, package = build(save(model))
    assert errors(result) == []
    made = evaluate(package, {"x": np.array([-1, 5], np.float32)})
    assert {name: array.tolist() for name, array in made.items()} == {
        "y": [-1, 5], "c": [1, 2], "r": [0, 5], "again": [0, 5],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("outputs", "name", "told"),
    [("(float[2] x, float[2] y)", "x", "is also an input"), ("(float[2] y, float[2] y)", "y", "is listed 2 times")],
)
def test_an_output_that_shares_its_name_is_refused_by_name(build, save, outputs, name, told):
    result, package = build(
        save(f'<ir_version: 9, opset_import: ["" : 19]> g (float[2] x) => {outputs} {{ y = Relu(x) }}')
    )
    assert errors(result) == [("DK202", name)]
    (found,) = [f for f in result["findings"] if f["severity"] == "error"]
    assert told in found["message"]
    assert not package.exists()


def test_a_full_disk_is_told_as_such_and_names_the_output(save, tmp_path):
    resource = pytest.importorskip("resource")
    weights = numpy_helper.from_array(np.ones((900, 9), np.float32), "w")
    text = '<ir_version: 9, opset_import: ["" : 19]> g (float[2,900] x) => (float[2,9] y) { y = MatMul(x, w) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(weights)
    path = save(model)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OutputError, match=r"no space left for .*m\.mlpackage") as caught:
            # In a context of its own: a worker that runs already has no such limit.
            contextvars.Context().run(deploykit.convert, path, to="coreml", output=tmp_path / "m.mlpackage")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code == "DK125"
    assert not (tmp_path / "m.mlpackage").exists()
