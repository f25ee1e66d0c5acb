"""Toolchains as data: every description is whole, and what is written is what its tool takes."""

from __future__ import annotations

import json
import subprocess
import sys
import types

import numpy as np
import onnx
import pytest

import deploykit
from deploykit import toolchain
from deploykit.converters.bundles import folder
from deploykit.errors import ExitCode, InvalidFileError, UsageError
from deploykit.isolation import workers
from deploykit.target import format_of, get_target, target_names

NAMES = sorted(file.stem for file in toolchain.DATA.glob("*.toml"))
CNN = """<ir_version: 9, opset_import: ["" : 17]>
cnn (float[n,2,4,4] x) => (float[n,3,4,4] y) <float[3,2,1,1] w = {1,2,3,4,5,6}> { c = Conv (x, w)  y = Relu (c) }"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    """Workers are started once."""
    with workers() as found:
        yield found


@pytest.fixture
def model(tmp_path):
    onnx.save(onnx.parser.parse_model(CNN), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


@pytest.fixture
def calib(tmp_path):
    values = np.arange(5 * 32, dtype=np.float32).reshape(5, 2, 4, 4)
    np.savez(tmp_path / "calib.npz", x=values)
    return values, str(tmp_path / "calib.npz")


def write(model, to, **options):
    return deploykit.convert(model, to=to, output=model.parent / to, dims={"n": [1, 1]}, **options)


def test_the_table_has_every_description():
    assert set(NAMES) <= set(target_names())
    assert len(NAMES) >= 8


@pytest.mark.parametrize("name", NAMES)
def test_a_description_is_whole_and_names_where_its_command_is_documented(name):
    found = toolchain.load(name)
    assert found.sources
    assert all(source.startswith("https://") for source in found.sources)
    assert found.steps
    target = get_target(name)
    assert target.bundle
    assert target.converter is None
    assert target.runtime is None
    assert set(target.options) == set(found.options)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "tf-trt"])
def test_each_writes_its_bundle(model, calib, name):
    found = toolchain.load(name)
    options = {key: "Ascend310P3" for key, option in found.options.items() if option.required}
    more = {"calib": calib[1]} if found.calibration else {}
    report = write(model, name, options=options, **more)
    assert (report.exit_code, report.status) == (ExitCode.UNAVAILABLE, "passed"), report.findings
    home = model.parent / name
    facts = json.loads((home / "bundle.json").read_text())
    assert facts["inputs"] == [{"name": "x", "dtype": "float32", "shape": [1, 2, 4, 4]}]
    assert len(facts["samples"]) == 3
    loaded = onnx.load(home / "model.onnx")
    onnx.checker.check_model(loaded)
    assert [d.dim_value for d in loaded.graph.input[0].type.tensor_type.shape.dim] == [1, 2, 4, 4]
    assert all(node.name for node in loaded.graph.node)
    subprocess.run(["sh", "-n", home / "run.sh"], check=True)
    for source in found.sources:
        assert source in (home / "README.md").read_text()
    assert deploykit.inspect(home).artifact.format == f"{name}-bundle"


def test_commands_are_filled_in(model, calib):
    write(model, "ascend", options={"soc_version": "Ascend310P3", "precision_mode": "force_fp16"})
    line = (model.parent / "ascend/run.sh").read_text().splitlines()[-1]
    assert line == (
        "atc --model=model.onnx --framework=5 --output=model --input_shape=x:1,2,4,4 --soc_version=Ascend310P3 "
        "--precision_mode=force_fp16"
    )
    write(model, "qnn")
    assert "--input_list" not in (model.parent / "qnn/run.sh").read_text()
    assert "-d x 1,2,4,4" in (model.parent / "qnn/run.sh").read_text()


def test_real_samples_go_along_in_the_form_that_the_tool_reads(model, calib):
    values, file = calib
    write(model, "qnn", calib=file)
    lines = (model.parent / "qnn/calibration/list.txt").read_text().splitlines()
    assert lines[1] == "x:=calibration/1.0.raw"
    raw = np.fromfile(model.parent / "qnn/calibration/1.0.raw", "<f4")
    np.testing.assert_array_equal(raw, values[1].ravel())
    write(model, "hailo", calib=file)
    stacked = np.load(model.parent / "hailo/calibration/samples.npy")
    np.testing.assert_array_equal(stacked, values.transpose(0, 2, 3, 1))  # channels last
    write(model, "rknn", calib=file)
    line = (model.parent / "rknn/calibration/list.txt").read_text().splitlines()[4]
    np.testing.assert_array_equal(np.load(model.parent / "rknn" / line)[0], values[4])


def test_what_has_to_be_given_is_asked_for(model):
    with pytest.raises(UsageError) as calibration:
        write(model, "hailo")
    assert calibration.value.code == "DK596"
    with pytest.raises(UsageError) as option:
        write(model, "ascend")
    assert (option.value.code, "soc_version" in option.value.message) == ("DK527", True)
    with pytest.raises(UsageError) as choice:
        write(model, "rknn", options={"target_platform": "rk9999"})
    assert "rk3588" in choice.value.message
    with pytest.raises(UsageError) as none:
        write(model, "stm32", calib="random:0")
    assert none.value.code == "DK803"


def test_documented_limits_are_errors_before_anything_is_written(model):
    report = deploykit.convert(model, to="hailo", output=model.parent / "h", calib="random:0")
    assert report.exit_code == ExitCode.GATE_FAILED
    assert [(f.code, f.tensor) for f in report.findings] == [("DK595", "x")]
    assert "--dim n=1..1" in report.findings[0].hint
    assert not (model.parent / "h").exists()
    two = """<ir_version: 9, opset_import: ["" : 17]>
    two (float[1,2,1,1,3] a, float[4,2] b) => (float[1,2,1,1,3] c, float[4,2] d) { c = Relu (a)  d = Relu (b) }"""
    onnx.save(onnx.parser.parse_model(two), model)
    report = deploykit.convert(model, to="hailo", output=model.parent / "h", calib="random:0")
    told = " ".join(f.message for f in report.findings)
    assert {f.code for f in report.findings} == {"DK595"}
    assert "the model has 2" in told
    assert "5 dimensions" in told
    assert "batch of 1" in told


def test_the_opset_is_brought_to_one_that_the_tool_takes(model):
    proto = onnx.load(model)
    proto.opset_import[0].version = 21
    onnx.save(proto, model)
    report = write(model, "ryzen-ai")
    assert report.artifact.opset == 17
    assert onnx.load(model.parent / "ryzen-ai/model.onnx").opset_import[0].version == 17
    assert any("opset 21 became 17" in f.message for f in report.findings)


def test_an_operator_table_speaks_where_there_is_one(model):
    text = """<ir_version: 9, opset_import: ["" : 17]>
    odd (float[2,3,3] x) => (float[2] y) { [determinant] y = Det (x) }"""
    onnx.save(onnx.parser.parse_model(text), model)
    report = deploykit.convert(model, to="qnn", output=model.parent / "q")
    assert report.exit_code == ExitCode.GATE_FAILED
    assert [(f.code, f.node) for f in report.findings if f.severity == "error"] == [("DK201", "determinant")]


def test_the_same_bundle_has_the_same_bytes_in_another_process(model):
    first = write(model, "stm32").artifact.sha256
    call = (
        "import deploykit; r = deploykit.convert('model.onnx', to='stm32', output='again', dims={'n': [1, 1]});"
        "print(r.artifact.sha256)"
    )
    subprocess.run([sys.executable, "-c", call], cwd=model.parent, check=True, capture_output=True)
    files = {p.name: p.read_bytes() for p in (model.parent / "stm32").rglob("*") if p.is_file()}
    again = {p.name: p.read_bytes() for p in (model.parent / "again").rglob("*") if p.is_file()}
    assert files == again
    assert first


def test_a_program_runs_the_calls_of_its_toolkit(model, calib, monkeypatch):
    write(model, "rknn", calib=calib[1], options={"target_platform": "rk3576"})
    called = []

    class RKNN:
        def __init__(self, verbose):
            pass

        def __getattr__(self, name):
            return lambda *given, **named: called.append((name, given, named)) or 0

    for name, contents in (("rknn", {}), ("rknn.api", {"RKNN": RKNN})):
        module = types.ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(model.parent)
    source = (model.parent / "rknn/build.py").read_text()
    scope = {"__name__": "__main__", "__file__": str(model.parent / "rknn/build.py")}
    exec(compile(source, "build.py", "exec"), scope)
    calls = {name: named for name, _, named in called}
    assert calls["config"] == {"target_platform": "rk3576"}
    assert calls["load_onnx"]["input_size_list"] == [[1, 2, 4, 4]]
    assert calls["build"] == {"do_quantization": True, "dataset": str(model.parent / "rknn/calibration/list.txt")}
    assert [name for name, *_ in called] == ["config", "load_onnx", "build", "export_rknn", "release"]


def test_tf_trt_takes_a_savedmodel_and_names_what_replaces_it(model):
    with pytest.raises(UsageError) as caught:
        deploykit.convert(model, to="tf-trt", output=model.parent / "t")
    assert caught.value.code == "DK596"
    assert "--to tensorrt" in caught.value.hint
    found = toolchain.load("tf-trt")
    assert {"precision_mode", "workspace", "minimum_segment_size"} == set(found.options)
    assert "dropped TF-TRT after 2.17" in found.instead
    program = (toolchain.SCRIPTS / found.script).read_text()
    assert all(word in program for word in ("max_workspace_size_bytes", "minimum_segment_size", "precision_mode"))


@pytest.mark.slow
def test_tf_trt_writes_the_savedmodel_with_its_program(tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    module = tensorflow.Module()
    spec = tensorflow.TensorSpec([1, 4], tensorflow.float32, name="x")
    module.double = tensorflow.function(lambda x: {"y": x * 2.0}, input_signature=[spec])
    tensorflow.saved_model.save(module, str(tmp_path / "saved"), signatures=module.double)
    report = deploykit.convert(
        tmp_path / "saved", to="tf-trt", output=tmp_path / "out", options={"precision_mode": "FP16"}
    )
    assert (report.exit_code, report.status) == (ExitCode.UNAVAILABLE, "passed")
    assert (tmp_path / "out/saved_model/saved_model.pb").is_file()
    assert json.loads((tmp_path / "out/bundle.json").read_text())["options"]["precision_mode"] == "FP16"
    assert "deploykit export" in next(f.message for f in report.findings if f.code == "DK590")


@pytest.mark.parametrize("odd", ["deep", {"inputs": None}, {"outputs": [3]}, {"samples": 1}, {"files": 2}])
def test_a_damaged_bundle_is_told_as_one(tmp_path, odd):
    facts = {"format": "deploykit.bundle/1", "target": "qnn", "files": [], "inputs": [], "outputs": []}
    whole = {**facts, "precision": "fp32", "samples": []}
    (tmp_path / "bundle.json").write_text(json.dumps(whole))
    assert folder.read_facts(tmp_path) == whole
    damaged = "[" * 200_000 + "]" * 200_000 if odd == "deep" else json.dumps({**whole, **odd})
    (tmp_path / "bundle.json").write_text(damaged)
    with pytest.raises(InvalidFileError, match="is no build bundle") as caught:
        folder.read_facts(tmp_path)
    assert caught.value.code == "DK528"
    assert format_of(tmp_path) == (None if odd == "deep" else "qnn-bundle")
