import subprocess
import sys

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.converters.onnxruntime.convert import convert_job
from deploykit.converters.onnxruntime.inspect import describe
from deploykit.converters.onnxruntime.runtime import load
from deploykit.errors import ModelError, OutputError, UsageError, VendorError
from deploykit.isolation import workers
from deploykit.reference import Reference
from deploykit.runtime import RuntimeOptions
from deploykit.target import format_of, target_of_format

CONV = """agraph (float[N,3,8,8] x) => (float[N,10] y) {
    [conv] c = Conv <pads = [1,1,1,1]> (x, w)
    [relu] r = Relu (c)
    [mean] m = GlobalAveragePool (r)
    [flat] f = Flatten (m)
    [gemm] y = Gemm <transB = 1> (f, g)
}"""


@pytest.fixture
def conv(onnx_file):
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(10, 3, 3, 3)), rng.normal(size=(10, 10))
    return onnx_file(CONV, w=w.astype(np.float32), g=g.astype(np.float32))


def convert(model, output, **options):
    return convert_job(str(model), str(output), {"format": "ort", **options}, {}, {}, "fp32")


def test_file_runs_like_the_model_and_the_list_names_its_operators(conv, tmp_path):
    made = convert(conv, tmp_path / "out.ort")
    assert made["format"] == "ort"
    assert (made["files"], made["companions"]) == (["out.ort"], ["out.required_operators.config"])
    listed = (tmp_path / "out.required_operators.config").read_text()
    assert "# - out.ort" in listed
    assert "com.microsoft;1;FusedConv" in listed
    assert str(tmp_path) not in listed
    x = np.random.default_rng(1).normal(size=(2, 3, 8, 8)).astype(np.float32)
    runtime = load(tmp_path / "out.ort", RuntimeOptions())
    np.testing.assert_allclose(
        runtime.predict({"x": x})["y"], Reference(conv).predict({"x": x})["y"], rtol=1e-4, atol=1e-5
    )
    assert [spec.shape for spec in runtime.inputs] == [("N", 3, 8, 8)]


def test_level_keeps_the_operators_of_the_standard(conv, tmp_path):
    convert(conv, tmp_path / "out.ort", optimization="basic")
    found = describe(tmp_path / "out.ort")
    assert found["operators"] == {"Conv": 1, "Flatten": 1, "Gemm": 1, "GlobalAveragePool": 1, "Relu": 1}
    assert found["parameters_by_dtype"]["float32"] == 270 + 100
    assert found["precision"] == "fp32"


def test_types_of_each_operator_are_listed_on_request(conv, tmp_path):
    made = convert(conv, tmp_path / "out.ort", types="true")
    assert made["companions"] == ["out.required_operators_and_types.config"]
    assert '"float"' in (tmp_path / made["companions"][0]).read_text()


def test_same_bytes_from_two_processes(shared_model, tmp_path):
    code = (
        "import sys; from deploykit.converters.onnxruntime.convert import convert_job; "
        "convert_job(sys.argv[1], sys.argv[2], {'format': 'ort'}, {}, {}, 'fp32')"
    )
    model = shared_model("magika/model.onnx")  # without fixed addresses its weights change places from run to run
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        subprocess.run([sys.executable, "-c", code, str(model), str(tmp_path / name / "m.ort")], check=True)
    assert (tmp_path / "a" / "m.ort").read_bytes() == (tmp_path / "b" / "m.ort").read_bytes()


def test_command_takes_the_suffix_and_publishes_both_files(conv, tmp_path):
    out = tmp_path / "net.ort"
    with workers():
        report = deploykit.convert(conv, to="onnxruntime", output=out, options={"format": "ort"})
        assert not report.failed
        assert (report.artifact.format, report.artifact.target) == ("ort", "onnxruntime")
        assert report.artifact.execution == "real"
        assert (tmp_path / "net.required_operators.config").is_file()
        assert deploykit.validate(conv, out).metrics["outputs"][0]["passed"]
        inspected = deploykit.inspect(out)
    assert inspected.artifact.format == format_of(out) == "ort"
    assert target_of_format("ort").name == "onnxruntime"
    assert inspected.metrics["required_operators"] == ["net.required_operators.config"]
    with pytest.raises(OutputError, match="ort"):
        deploykit.convert(conv, to="onnxruntime", output=tmp_path / "net.onnx", options={"format": "ort"})


@pytest.mark.parametrize("options", [{"format": "onx"}, {"types": "yes"}, {"provider": "cpu"}])
def test_wrong_options_are_refused(conv, tmp_path, options):
    with pytest.raises(UsageError) as caught:
        convert(conv, tmp_path / "out.ort", **options)
    assert caught.value.code == "DK527"


def test_what_the_tool_says_is_one_error(onnx_file, tmp_path):
    with pytest.raises(VendorError, match="Odd"):
        convert(onnx_file("agraph (float[2] x) => (float[2] y) { y = my.ops.Odd (x) }"), tmp_path / "out.ort")


@pytest.mark.parametrize("content", [b"\x08\x00\x00\x00ORTX" + bytes(64), b"abc", b"\xff" * 500])
def test_other_files_under_the_suffix_are_refused(tmp_path, content):
    (tmp_path / "m.ort").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        describe(tmp_path / "m.ort")
    assert caught.value.code == "DK528"


def test_damaged_file_is_refused(conv, tmp_path):
    convert(conv, tmp_path / "out.ort")
    content = (tmp_path / "out.ort").read_bytes()
    (tmp_path / "out.ort").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError):
        describe(tmp_path / "out.ort")


def test_all_leaves_out_the_layouts_of_this_cpu(conv, tmp_path):
    convert_job(str(conv), str(tmp_path / "out.onnx"), {"optimization": "all"}, {}, {}, "fp32")
    domains = {node.domain for node in onnx.load(tmp_path / "out.onnx").graph.node}
    assert domains == {"", "com.microsoft"}
