"""A node on inputs that it gives numbers for, beside an engine's answer."""

import zipfile

import numpy as np
import onnx
import pytest
from onnx import parser

from deploykit.converters.trial import trial_job

HEAD = '<ir_version: 10, opset_import: ["": 20]>'


@pytest.fixture
def written(tmp_path):
    def write(text, name="node.onnx"):
        onnx.save(parser.parse_model(f"{HEAD} {text}"), tmp_path / name)
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Acosh", "Atanh", "Relu", "Softmax"])
def test_inputs_are_moved_to_where_the_node_gives_numbers(op, written, tmp_path):
    model = written(f"agraph (float[64] x) => (float[64] y) {{ y = {op} (x) }}")
    answer = trial_job(model, model, folder=str(tmp_path))
    assert (answer["passed"], answer["compared"], answer["reference"]) == (True, True, "")
    assert np.isfinite(np.load(tmp_path / "outputs.npz")["y"]).all()


def test_other_values_than_the_reference_s_do_not_pass(written):
    model = written("agraph (float[8] x) => (float[8] y) { y = Sin (x) }")
    other = written("agraph (float[8] x) => (float[8] y) { y = Cos (x) }", "other.onnx")
    answer = trial_job(model, other)
    assert (answer["ran"], answer["passed"]) == (True, False)
    assert "output 'y' differs" in answer["reason"]


def test_an_engine_that_fails_where_the_reference_runs_does_not_pass(written):
    model = written("agraph (float[n] x) => (float[m] y) { y = Abs (x) }")
    other = written(
        "agraph (float[n] x) => (float[m] y) { s = Constant <value_ints = [7, 7]> () y = Reshape (x, s) }", "other.onnx"
    )
    answer = trial_job(model, other, dims={"n": [3, 3]})
    assert (answer["ran"], answer["passed"]) == (False, False)
    assert "it fails when it is run" in answer["reason"]


def test_nothing_is_proven_by_inputs_that_the_reference_refuses(written):
    model = written(
        "agraph (float[3] x) => (float[m,n] y) { s = Constant <value_ints = [7, 7]> () y = Reshape (x, s) }"
    )
    answer = trial_job(model, model)
    assert answer["passed"] is None
    assert "Reshape" in answer["reference"]


def test_random_nodes_are_run_and_not_compared(written):
    model = written("agraph (float[8] x) => (float[8] y) { y = RandomNormalLike (x) }")
    answer = trial_job(model, model)
    assert (answer["ran"], answer["compared"], answer["passed"]) == (True, False, None)


def test_sequences_have_no_random_inputs(tmp_path):
    text = f"{HEAD} agraph (seq(float[2]) s) => (float[n] y) {{ y = ConcatFromSequence <axis = 0> (s) }}"
    onnx.save(parser.parse_model(text), tmp_path / "node.onnx")
    answer = trial_job(str(tmp_path / "node.onnx"), str(tmp_path / "node.onnx"), folder=str(tmp_path))
    assert answer["reference"]
    assert (answer["ran"], answer["passed"]) == (False, None)
    assert not (tmp_path / "inputs.npz").exists()


def test_arrays_are_written_under_any_name_and_load_with_numpy_alone(written, tmp_path):
    text = """agraph (float16[2] file, string[2] s, bool[2] allow_pickle, float v)
        => (float16[2] y, string[2] t, bool[2] u, float w) {
        y = Identity (file) t = Identity (s) u = Not (allow_pickle) w = Identity (v)
    }"""
    assert trial_job(written(text), folder=str(tmp_path))["reference"] == ""
    inputs, outputs = np.load(tmp_path / "inputs.npz"), np.load(tmp_path / "outputs.npz")
    assert inputs["file"].dtype == np.float16
    assert inputs["s"].dtype.kind == "U"
    assert inputs["v"].shape == ()
    np.testing.assert_array_equal(outputs["u"], ~inputs["allow_pickle"])
    np.testing.assert_array_equal(outputs["t"], inputs["s"])
    with zipfile.ZipFile(tmp_path / "inputs.npz") as archive:
        assert {info.date_time[0] for info in archive.infolist()} == {1980}  # the same bytes every time


def test_bfloat16_is_written_as_the_float32_that_holds_it(written, tmp_path):
    model = written("agraph (bfloat16[8] x) => (bfloat16[8] y) { y = Identity (x) }")
    assert trial_job(model, model, folder=str(tmp_path))["passed"] is True
    assert np.load(tmp_path / "inputs.npz")["x"].dtype == np.float32
    np.testing.assert_array_equal(np.load(tmp_path / "outputs.npz")["y"], np.load(tmp_path / "inputs.npz")["x"])


def test_a_type_without_arrays_is_no_fault_of_the_node(written):
    model = written("agraph (float16[4] x) => (float8e4m3fn[4] y) { y = Cast <saturate = 0, to = 17> (x) }")
    answer = trial_job(model, model)
    assert answer["passed"] is None
    assert answer["reference"] or answer["reason"]
