"""The reference computes the model as it is written."""

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx.reference
import onnxruntime
import pytest

from deploykit.errors import DataError, ModelError, VendorError
from deploykit.reference import Reference

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
ADD = "g (float[n,2] x, float[2] b) => (float[n,2] y, float[n,2] z) { y = Add(x, b)  z = Relu(y) }"


def content(text):
    return onnx.parser.parse_model(HEAD + text).SerializeToString()


def test_outputs_come_by_name_and_in_order():
    reference = Reference(content(ADD))
    x, b = np.array([[1, -5]], np.float32), np.array([1, 2], np.float32)
    outputs = reference.predict({"b": b, "x": x})
    assert list(outputs) == ["y", "z"]
    np.testing.assert_array_equal(outputs["z"], [[2, 0]])
    assert [spec.describe() for spec in reference.inputs] == ["float32 [n, 2]", "float32 [2]"]
    assert [spec.name for spec in reference.outputs] == ["y", "z"]
    reference.close()


def test_optimisation_is_off(monkeypatch):
    seen = []
    original = onnxruntime.InferenceSession

    def session(path, options, **more):
        seen.append(options.graph_optimization_level)
        return original(path, options, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    Reference(content(ADD))
    assert seen == [onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL]


@pytest.mark.parametrize(
    ("feeds", "code", "words"),
    [
        ({"x": np.zeros((1, 2), np.float32)}, "DK301", "no data for input 'b'"),
        ({"x": np.zeros((1, 2), np.float32), "b": np.zeros(2, np.float64)}, "DK312", "float64"),
        ({"x": np.zeros((1, 2), np.float32), "b": np.zeros(3, np.float32)}, "DK312", "[3]"),
        ({"x": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}, "DK312", "'x'"),
        ({"x": np.zeros((1, 2), np.float32), "b": np.zeros(2, np.float32), "c": np.zeros(1)}, "DK301", "'c'"),
    ],
)
def test_feeds_must_fit(feeds, code, words):
    with pytest.raises(DataError) as caught:
        Reference(content(ADD)).predict(feeds)
    assert caught.value.code == code
    assert words in caught.value.message


def test_what_onnxruntime_does_not_know_is_a_vendor_error():
    with pytest.raises(VendorError, match="Mystery"):
        Reference(content("g (float[1] x) => (float[1] y) { y = Mystery(x) }"))


def test_a_failing_run_is_a_vendor_error():
    reference = Reference(content("g (float[n] x, float[m] b) => (float[k] y) { y = Add(x, b) }"))
    with pytest.raises(VendorError, match="reference run failed"):
        reference.predict({"x": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)})


def test_hostile_bytes_are_refused():
    with pytest.raises(ModelError):
        Reference(b"<html>")


@pytest.mark.parametrize(
    ("name", "dtype"), [("bfloat16", ml_dtypes.bfloat16), ("float8e4m3fn", ml_dtypes.float8_e4m3fn)]
)
def test_types_that_the_binding_cannot_pass(name, dtype):
    text = f"g ({name}[3] x) => ({name}[3] y, {name}[3] x2) {{ y = Identity(x)  x2 = Identity(y) }}"
    x = np.array([1.1, -2.6, 3.3]).astype(dtype)
    reference = Reference(content(text))
    outputs = reference.predict({"x": x})
    assert all(array.dtype == np.dtype(dtype) for array in outputs.values())
    np.testing.assert_array_equal(outputs["x2"].astype(np.float32), x.astype(np.float32))
    assert reference.inputs[0].describe() == f"{np.dtype(dtype).name} [3]"


def test_a_bfloat16_value_that_is_output_and_used_inside():
    text = """g (bfloat16[2] x) => (bfloat16[2] x_out, float[2] y) {
        x_out = Identity(x)
        y = Cast <to=1> (x_out)
    }"""
    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    outputs = Reference(content(text)).predict({"x": x})
    np.testing.assert_array_equal(outputs["y"], [1.5, -2])
    np.testing.assert_array_equal(outputs["x_out"].astype(np.float32), [1.5, -2])


def test_strings_and_empty_tensors():
    outputs = Reference(content("g (string[n] x) => (string[n] y) { y = Identity(x) }")).predict(
        {"x": np.array(["a", "ü"])}
    )
    assert outputs["y"].tolist() == ["a", "ü"]
    empty = Reference(content("g (float[1,0,4] x) => (float[1,0,4] y) { y = Relu(x) }")).predict(
        {"x": np.zeros((1, 0, 4), np.float32)}
    )
    assert empty["y"].shape == (1, 0, 4)


def test_agrees_with_the_specification():
    text = """g (float[2,3,8,8] x) => (float[2,4,4,4] y) <float[4] b = {1,2,3,4}> {
        c = Conv <strides=[2,2], pads=[1,1,1,1]> (x, w, b)
        y = HardSwish(c)
    }"""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(HEAD + text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=(4, 3, 3, 3)).astype(np.float32), "w"))
    x = rng.normal(size=(2, 3, 8, 8)).astype(np.float32)
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    result = Reference(model.SerializeToString()).predict({"x": x})["y"]
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
