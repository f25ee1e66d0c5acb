import numpy as np
import onnx
import pytest

from deploykit import graph
from deploykit.converters.onnxruntime.convert import convert_job
from deploykit.converters.onnxruntime.runtime import load
from deploykit.errors import GateError, ModelError, UsageError
from deploykit.runtime import RuntimeOptions

TEXT = """agraph (float[N,4] x) => (float[N,3] y) {
    [mm] h = MatMul (x, w)
    [add] a = Add (h, b)
    [relu] y = Relu (a)
}"""
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def dense(onnx_file):
    rng = np.random.default_rng(1)
    return onnx_file(TEXT, w=rng.normal(size=(4, 3)).astype(np.float32), b=rng.normal(size=3).astype(np.float32))


def convert(model, output, dims=None, **options):
    return convert_job(str(model), str(output), {"version": "cpu", **options}, dims or {}, {}, "fp32")


def test_default_keeps_the_graph_and_its_numbers(dense, tmp_path):
    made = convert(dense, tmp_path / "out.onnx")
    assert made["files"] == ["out.onnx"]
    assert made["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["N", 4]}]
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node] == ["MatMul", "Add", "Relu"]
    before = load(dense, RuntimeOptions(optimize=False)).predict({"x": X})["y"]
    np.testing.assert_array_equal(
        load(tmp_path / "out.onnx", RuntimeOptions(optimize=False)).predict({"x": X})["y"], before
    )


@pytest.mark.parametrize("level", ["none", "basic", "extended", "all"])
def test_same_input_gives_the_same_bytes(dense, tmp_path, level):
    for name in ("a.onnx", "b.onnx"):
        convert(dense, tmp_path / name, optimization=level)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "b.onnx", "model.onnx"]


def test_optimising_ahead_fuses_and_says_that_the_file_is_tied(dense, tmp_path):
    made = convert(dense, tmp_path / "out.onnx", optimization="extended")
    assert [f["code"] for f in made["findings"]] == ["DK207"]
    assert made["metrics"]["nodes"] < 3
    expected = load(dense, RuntimeOptions(optimize=False)).predict({"x": X})["y"]
    np.testing.assert_allclose(
        load(tmp_path / "out.onnx", RuntimeOptions()).predict({"x": X})["y"], expected, rtol=1e-6
    )


def test_dimension_with_one_size_is_fixed_everywhere(dense, tmp_path):
    made = convert(dense, tmp_path / "out.onnx", dims={"N": [2, 2]})
    assert made["inputs"][0]["shape"] == [2, 4]
    assert made["outputs"][0]["shape"] == [2, 3]
    assert graph.interface(graph.load(tmp_path / "out.onnx"))[0][0].shape == (2, 4)


def test_dimension_without_a_name_has_one_name_for_graph_runtime_and_bounds(onnx_file, tmp_path):
    model = onnx_file("agraph (float[?,4] x) => (float[?,4] y) { y = Relu (x) }")
    (known,), _ = graph.interface(graph.load(model))
    assert known.shape == ("x_dim0", 4)
    assert load(model, RuntimeOptions()).inputs[0].shape == known.shape
    made = convert(model, tmp_path / "out.onnx", {"x_dim0": [3, 3]})
    assert made["findings"] == []
    assert made["inputs"][0]["shape"] == [3, 4]


def test_sizes_that_the_model_contradicts_are_named_with_the_users_file(onnx_file, tmp_path):
    model = onnx_file("agraph (float[N,4] x) => (float[N,M] y) { [mm] y = MatMul (x, x) }")
    with pytest.raises(ModelError, match="with N=3 fixed, ONNX Runtime") as caught:
        convert(model, tmp_path / "out.onnx", {"N": [3, 3]})
    assert (caught.value.code, caught.value.file) == ("DK202", str(model))
    assert "--dim" in caught.value.hint


def test_bounds_that_leave_several_sizes_keep_the_symbol(dense, tmp_path):
    assert convert(dense, tmp_path / "out.onnx", dims={"N": [1, 64]})["inputs"][0]["shape"] == ["N", 4]


def test_bounds_of_a_dimension_that_is_not_there_are_reported_with_the_nearest(dense, tmp_path):
    (found,) = convert(dense, tmp_path / "out.onnx", dims={"n": [1, 64], "N": [1, 4]})["findings"]
    assert (found["code"], found["severity"]) == ("DK204", "warning")
    assert "'n'" in found["message"]


def test_unknown_level_is_refused(dense, tmp_path):
    with pytest.raises(UsageError, match="none, basic, extended, all") as caught:
        convert(dense, tmp_path / "out.onnx", optimization="ultra")
    assert caught.value.code == "DK206"


def test_model_that_the_engine_does_not_load_is_not_an_artifact(onnx_file, tmp_path):
    path = onnx_file("agraph (float[2] x) => (float[2] y) { [odd] y = my.ops.Odd (x) }")
    with pytest.raises(GateError):
        convert(path, tmp_path / "out.onnx")
