"""Targets that deploykit checks and does not convert to: every command says so, or does what it can."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import deploykit
from deploykit.errors import ConfigError, ExitCode, UnavailableError, UsageError

MODEL = """<ir_version: 10, opset_import: ["": 20]>
g (float[2,4] x) => (float[2,3] y) <float[4,3] w = {1,2,3,4,5,6,7,8,9,1,2,3}> { h = MatMul (x, w) y = Softmax (h) }"""
CHECKED_ONLY = [
    "tensorrt",
    "tensorrt@10.9",
    "onnxruntime-web@webgpu",
    "tvm",
    "onnxruntime@cuda",
]


@pytest.fixture
def model(tmp_path):
    onnx.save(parser.parse_model(MODEL), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("to", [name for name in CHECKED_ONLY if name.startswith("onnxruntime@")])
def test_convert_says_so_and_how_it_is_done(model, tmp_path, to):
    output = tmp_path / "out.bin"
    with pytest.raises(UnavailableError) as caught:
        deploykit.convert(model, to=to, output=output)
    assert (caught.value.code, caught.value.exit_code) == ("DK214", ExitCode.UNAVAILABLE)
    assert caught.value.hint
    assert not output.exists()


def test_convert_says_so_before_it_looks_at_anything_else(deploykit_cli):
    done = deploykit_cli("convert", "no-such-file.onnx", "--to", "onnxruntime@cuda", "-o", "x.wrong")
    assert (done.code, done.stdout) == (3, "")
    assert "DK214" in done.stderr


def test_run_refuses_one_before_anything_is_done(model, tmp_path):
    with pytest.raises(UnavailableError) as caught:
        deploykit.run(str(model), to=("onnxruntime", "onnxruntime@cuda"), output=tmp_path / "out")
    assert caught.value.code == "DK214"
    config = tmp_path / "deploykit.yaml"
    config.write_text("source: model.onnx\ntargets:\n  onnxruntime: {}\n  onnxruntime@cuda: {}\n")
    with pytest.raises(ConfigError) as wrong:
        deploykit.run(str(config))
    assert wrong.value.code == "DK814"
    assert ":4:3" in wrong.value.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", CHECKED_ONLY)
def test_check_has_a_verdict_for_every_node(model, target):
    report = deploykit.check(model, targets=[target])
    (row,) = report.metrics["targets"]
    assert row["nodes"] == 2
    assert row["unknown"] == 0
    assert row["source"]
    assert row["verdict"]


def test_a_version_between_two_tables_is_told(model):
    report = deploykit.check(model, targets=["tensorrt@10.9"])
    assert [f.code for f in report.findings] == ["DK213"]
    assert report.exit_code == ExitCode.OK
    with pytest.raises(UsageError) as caught:
        deploykit.check(model, targets=["tensorrt@7"])
    assert caught.value.code == "DK802"


def test_quantize_writes_the_scheme_of_tensorrt(model, tmp_path):
    calib = tmp_path / "calib.npz"
    np.savez(calib, x=np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32))
    output = tmp_path / "int8.onnx"
    report = deploykit.quantize(model, output=output, precision="int8", calib=str(calib), target="tensorrt")
    assert report.exit_code == ExitCode.OK
    proto = onnx.load(output)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    points = [
        constants[node.input[2]] for node in proto.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    ]
    assert points
    assert all(point.dtype == np.int8 and not point.any() for point in points)
    assert deploykit.check(output, targets=["tensorrt"]).metrics["targets"][0]["verdict"] == "runs whole"


def test_an_asymmetric_model_is_refused_with_the_command_that_makes_a_symmetric_one(model, tmp_path):
    calib = tmp_path / "calib.npz"
    np.savez(calib, x=np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32))
    output = tmp_path / "int8.onnx"
    deploykit.quantize(model, output=output, precision="int8", calib=str(calib), target="onnxruntime")
    report = deploykit.check(output, targets=["tensorrt@11.1"])
    assert report.exit_code == ExitCode.GATE_FAILED
    refused = [f for f in report.findings if f.code == "DK201"]
    assert {f.op for f in refused} >= {"QuantizeLinear", "DequantizeLinear"}
    assert any("--fix" in f.hint for f in refused)
