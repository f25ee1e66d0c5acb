"""LiteRT files and SavedModels from ONNX. What runs onnx2tf needs its managed environment, and is skipped without."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.environments import is_ready
from deploykit.errors import ExitCode, UnavailableError
from deploykit.isolation import run_isolated, workers
from deploykit.reference import Reference
from deploykit.target import comparison_worker, get_target

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("ai_edge_litert")

# Channels that stay in front, and a batch of any size.
CNN = """<ir_version: 8, opset_import: ["" : 17]>
agraph (float[n,3,8,8] x) => (float[n,4,4,4] maps, float[n,4] scores) <int64[2] s = {0,-1}> {
  [conv] c = Conv<pads=[1,1,1,1]>(x, w, b)
  [act] r = Relu(c)
  [pool] maps = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
  [mean] g = GlobalAveragePool(maps)
  [flat] scores = Reshape(g, s)
}"""
# Names that TensorFlow's signatures do not take.
CALLED = {"x": "x:0", "scores": "scores/all"}


def cnn(folder: Path) -> Path:
    model = onnx.parser.parse_model(CNN)
    random = np.random.default_rng(0)
    for name, shape in (("w", (4, 3, 3, 3)), ("b", (4,))):
        values = random.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    for value in (*model.graph.input, *model.graph.output):
        value.name = CALLED.get(value.name, value.name)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [CALLED.get(name, name) for name in names]
    path = folder / "cnn.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def pool():
    with workers() as found:
        yield found


@pytest.fixture
def onnx2tf(pool) -> None:
    if not is_ready("onnx2tf"):
        pytest.skip("the managed environment is not there: deploykit doctor --install onnx2tf")


def test_without_the_environment_the_command_that_makes_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOYKIT_ENVIRONMENTS", str(tmp_path / "none"))
    for name, output in (("litert", "m.tflite"), ("savedmodel", "m")):
        with pytest.raises(UnavailableError) as refused:
            deploykit.convert(cnn(tmp_path), to=name, output=tmp_path / output)
        assert refused.value.exit_code == ExitCode.UNAVAILABLE
        assert (refused.value.code, refused.value.hint) == ("DK561", "deploykit doctor --install onnx2tf")
        assert not (tmp_path / output).exists()
    rows = {row["name"]: row for row in deploykit.targets().metrics["targets"]}
    assert "deploykit doctor --install onnx2tf" in rows["savedmodel"]["missing"]
    assert not rows["savedmodel"]["convert"]


@pytest.mark.slow
@pytest.mark.usefixtures("onnx2tf")
def test_layout_names_and_batch_are_those_of_the_onnx_file(tmp_path: Path) -> None:
    model, output = cnn(tmp_path), tmp_path / "m.tflite"
    report = deploykit.convert(model, to="litert", output=output)
    assert report.exit_code == 0, report.findings
    made = report.artifact
    assert made is not None
    assert [(spec.name, spec.dtype, spec.shape) for spec in made.inputs] == [("x:0", "float32", ("n", 3, 8, 8))]
    assert [spec.name for spec in made.outputs] == ["maps", "scores/all"]
    x = np.random.default_rng(1).standard_normal((5, 3, 8, 8)).astype(np.float32)
    from deploykit.runtime import open_runtime

    found = open_runtime(output).predict({"x:0": x})
    wanted = Reference(model).predict({"x:0": x})
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
    again = tmp_path / "again.tflite"
    deploykit.convert(model, to="litert", output=again)
    assert again.read_bytes() == output.read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("onnx2tf")
def test_a_depthwise_convolution_of_fixed_size_is_verified(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    agraph (float[n,4,a,a] x) => (float[n,4,a,a] y) { [depthwise] y = Conv<group=4, pads=[1,1,1,1]>(x, w) }"""
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((4, 1, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(model, tmp_path / "m.onnx")
    shape = (1, 4, 6, 6)
    report = deploykit.convert(
        tmp_path / "m.onnx", to="litert", output=tmp_path / "m.tflite", profiles={"x": (shape, shape, shape)}
    )
    assert report.exit_code == 0, report.findings
    assert report.artifact is not None
    assert report.artifact.inputs[0].shape == shape
    assert report.artifact.execution == "real"


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        (("n", 3, "h", "h"), "--dim n=SIZE --dim h=SIZE"),
        (("?", 3, "?", 8), "--profile x=SIZEx3xSIZEx8:SIZEx3xSIZEx8:SIZEx3xSIZEx8"),
        ((1, 3), ""),
    ],
)
def test_what_fixes_open_sizes_is_told(shape: tuple[int | str, ...], wanted: str) -> None:
    from deploykit.artifact import TensorSpec
    from deploykit.converters.litert.from_onnx import _fixing

    assert _fixing([TensorSpec("x", "float32", shape)]) == wanted


@pytest.mark.usefixtures("onnx2tf")
def test_what_takes_too_long_with_open_sizes_is_refused_with_what_fixes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deploykit.converters.litert import from_onnx

    monkeypatch.setattr(from_onnx, "_LIMIT_S", 0)
    with pytest.raises(deploykit.errors.GateError) as refused:
        from_onnx.convert(cnn(tmp_path), tmp_path / "m.tflite", "litert", {}, {}, target="litert")
    assert (refused.value.code, refused.value.exit_code) == ("DK564", ExitCode.GATE_FAILED)
    assert refused.value.hint == "with fixed sizes it needs less: --dim n=SIZE"
    assert not (tmp_path / "m.tflite").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("onnx2tf")
def test_a_node_that_onnx2tf_lacks_is_named(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
    agraph (float[n,2] x) => (float[n,2] y) {
      [scale] s = ai.onnx.ml.Scaler<offset=[1.0,2.0], scale=[1.0,1.0]>(x)
      [act] y = Relu(s)
    }"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    report = deploykit.convert(path, to="savedmodel", output=tmp_path / "m")
    assert report.exit_code == ExitCode.GATE_FAILED
    assert report.error is not None
    assert (report.error.code, report.error.node, report.error.op) == ("DK526", "scale", "Scaler")
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("onnx2tf")
def test_a_saved_model_is_verified_reproducible_and_served_by_name(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    model = cnn(tmp_path)
    report = deploykit.convert(model, to="savedmodel", output=tmp_path / "m")
    assert report.exit_code == 0, report.findings
    assert {finding.tensor for finding in report.findings if finding.code == "DK529"} == {"x:0", "scores/all"}
    assert report.metrics["parity"]["parent"]["execution"] == "real"
    function = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
    x = np.random.default_rng(1).standard_normal((5, 3, 8, 8)).astype(np.float32)
    found = function(x_0=tf.constant(x))
    wanted = Reference(model).predict({"x:0": x})
    np.testing.assert_allclose(found["scores_all"].numpy(), wanted["scores/all"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["maps"].numpy(), wanted["maps"], rtol=1e-4, atol=1e-5)

    looked = deploykit.inspect(tmp_path / "m")
    assert [spec["name"] for spec in looked.metrics["inputs"]] == ["x:0"]
    assert looked.metrics["signatures"] == ["serving_default"]
    assert deploykit.validate(model, tmp_path / "m").exit_code == 0

    deploykit.convert(model, to="savedmodel", output=tmp_path / "again")
    assert digests(tmp_path / "m") == digests(tmp_path / "again")


def digests(folder: Path) -> dict[str, str]:
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def test_a_folder_that_is_no_whole_saved_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"\x0a\xff\xff\xff\xff")
    target = get_target("savedmodel")
    assert target.inspect is not None
    with pytest.raises(deploykit.errors.InvalidFileError) as refused:
        run_isolated(comparison_worker(target), target.inspect, {"path": str(folder)})
    assert refused.value.code == "DK528"
