import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import deploykit
from deploykit import lazy
from deploykit.comparison import evaluate_job
from deploykit.errors import DataError, DeploykitError, ModelError, UsageError
from deploykit.isolation import run_isolated, workers

if TYPE_CHECKING:
    from deploykit.progress import Progress

INT8_CASES = [
    "convtranspose_per_channel",
    "conv_bias_overflow",
    "calib_scalar_tensor",
    "calib_dynamic_seq",
    "if_shared_init",
    "gemm_transb_valueinfo",
    "u8s8_saturation",
    "zero_dim_input",
    "softmax_symmetric_trt",
]
FP16_CASES = ["fp16_cast_to_float", "fp16_if_subgraph", "fp16_keepio_fanout", "if_shared_init"]


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    """All tests of this file share their worker processes: imports are paid once."""
    with workers():
        yield


def run(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    halves = {value.name for value in session.get_inputs() if value.type == "tensor(float16)"}
    ready = {name: feed.astype(np.float16) if name in halves else feed for name, feed in feeds.items()}
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, ready), strict=True))


def pairs(shared: Path, name: str) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Inputs and expected outputs of a case."""
    files = sorted((shared / "cases").glob(f"{name}.in*.npz"))
    return [(dict(np.load(file)), dict(np.load(file.with_name(file.name.replace(".in", ".out"))))) for file in files]


def calibration_of(shared: Path, name: str, folder: Path) -> str:
    folder.mkdir()
    for file in sorted((shared / "cases").glob(f"{name}.in*.npz")):
        shutil.copy(file, folder)
    return str(folder)


def check_interface(source: Path, made: Path) -> None:
    onnx.checker.check_model(str(made), full_check=True)
    before, after = onnx.load(source).graph, onnx.load(made).graph
    assert [value.name for value in after.output] == [value.name for value in before.output]
    assert [value.name for value in after.input] == [value.name for value in before.input]
    dims = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in before.input]
    assert [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in after.input] == dims


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt-rtx"])
@pytest.mark.parametrize("name", INT8_CASES)
def test_int8_case(shared, tmp_path, name, target):
    source, out = shared / "cases" / f"{name}.onnx", tmp_path / "out.onnx"
    calib = calibration_of(shared, name, tmp_path / "calib")
    report = deploykit.quantize(source, output=out, precision="int8", target=target, calib=calib)
    assert report.exit_code == 0
    check_interface(source, out)
    for feeds, expected in pairs(shared, name):
        for output, value in run(out, feeds).items():
            noise = np.sum((value.astype(np.float64) - expected[output]) ** 2)
            assert 10 * np.log10(np.sum(expected[output].astype(np.float64) ** 2) / max(noise, 1e-300)) >= 20
    if name == "if_shared_init":
        assert "branch" in {finding.node for finding in report.findings}
    if name == "conv_bias_overflow":
        assert np.abs(run(out, feeds)["y"] - expected["y"]).max() < 0.15


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse", "auto"])
@pytest.mark.parametrize("name", ["calib_scalar_tensor", "calib_dynamic_seq"])
def test_every_method_takes_scalars_and_lengths(shared, tmp_path, name, method):
    calib = calibration_of(shared, name, tmp_path / "calib")
    report = deploykit.quantize(
        shared / "cases" / f"{name}.onnx", output=tmp_path / "out.onnx", precision="int8", calib=calib, method=method
    )
    assert report.exit_code == 0
    assert report.metrics["outputs"][0]["sqnr_db"] >= 20


def test_convtranspose_channels_keep_their_own_scale(shared, tmp_path):
    name = "convtranspose_per_channel"
    source, out = shared / "cases" / f"{name}.onnx", tmp_path / "out.onnx"
    calib = calibration_of(shared, name, tmp_path / "calib")
    deploykit.quantize(source, output=out, precision="int8", target="tensorrt-rtx", calib=calib)
    made = onnx.load(out).graph
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.initializer}
    node = next(
        n for n in made.node if n.op_type == "DequantizeLinear" and weights.get(n.input[0], np.empty(0)).ndim == 4
    )
    assert onnx.helper.get_node_attr_value(node, "axis") == 1
    scale = weights[node.input[1]]
    assert scale.size == 6
    original = onnx.numpy_helper.to_array(onnx.load(source).graph.initializer[0])
    error = np.abs(weights[node.input[0]] * scale[None, :, None, None] - original).max(axis=(0, 2, 3))
    assert np.all(error <= 0.005 * np.abs(original).max(axis=(0, 2, 3)))


def test_pair_sums_do_not_saturate_int16_for_a_cpu_without_vnni(shared, tmp_path, deploykit_cli):
    out = tmp_path / "out.onnx"
    calib = calibration_of(shared, "u8s8_saturation", tmp_path / "calib")
    model = shared / "cases" / "u8s8_saturation.onnx"
    made = deploykit_cli("quantize", model, "--calib", calib, "-o", out, "--precision", "int8", DEPLOYKIT_VNNI="0")
    assert made.code == 0
    assert json.loads(Path(f"{out}.deploykit.json").read_text())["options"]["scheme"]["reduce_range"] is True
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(out).graph.initializer]
    weight = next(array for array in arrays if array.ndim == 2).astype(np.int32)
    pairs_ = 255 * (weight[0::2] + weight[1::2])
    assert np.abs(pairs_).max() <= np.iinfo(np.int16).max


@pytest.mark.parametrize("keep_io", [False, True])
@pytest.mark.parametrize("name", FP16_CASES)
def test_fp16_case(shared, tmp_path, name, keep_io):
    source, out = shared / "cases" / f"{name}.onnx", tmp_path / "out.onnx"
    report = deploykit.quantize(source, output=out, precision="fp16", keep_io=keep_io)
    assert report.exit_code == 0
    check_interface(source, out)
    if keep_io:
        assert {value.type.tensor_type.elem_type for value in onnx.load(out).graph.output} == {onnx.TensorProto.FLOAT}
    for feeds, expected in pairs(shared, name):
        for output, value in run(out, feeds).items():
            assert np.allclose(value.astype(np.float32), expected[output], rtol=1e-2, atol=2e-3)


@pytest.fixture(scope="session")
def digits(shared_model):
    return {
        "model": shared_model("digits/digits_cnn.onnx"),
        "calib": str(shared_model("digits/digits_cnn_calib.npz")),
        "test": str(shared_model("digits/digits_cnn_test.npz")),
    }


@pytest.mark.parametrize("target", ["onnxruntime", "openvino", "tensorrt-rtx", "coreml"])
def test_digits_keep_their_accuracy_in_int8(digits, tmp_path, target):
    steps: list[Progress] = []
    report = deploykit.quantize(
        digits["model"],
        output=tmp_path / "d.onnx",
        precision="int8",
        target=target,
        calib=digits["calib"],
        eval=digits["test"],
        max_drop=0.5,
        on_progress=steps.append,
    )
    assert report.exit_code == 0
    metrics = report.metrics
    assert metrics["accuracy"]["reference"] == pytest.approx(99.33, abs=0.01)
    assert metrics["accuracy"]["drop"] <= 0.5
    assert metrics["quantized_nodes"] == 5
    assert metrics["float_nodes"] == 0
    assert metrics["int8_macs_share"] == 1.0
    assert metrics["size_ratio"] < 0.3
    assert metrics["calibration"]["samples"] + metrics["calibration"]["held_out"] == 200
    assert metrics["parity"]["held_out"]
    assert report.artifact.execution == "real"
    assert report.artifact.precision == "int8"
    calibrating = [step for step in steps if step.stage == "calibrating"]
    assert calibrating[-1].done == calibrating[-1].total


def test_onnxruntime_runs_the_digits_in_int8_kernels(digits, tmp_path):
    out = tmp_path / "d.onnx"
    deploykit.quantize(digits["model"], output=out, precision="int8", calib=digits["calib"])
    request = {"samples": 8, "seed": 0, "label": None, "dims": {}, "contract": None, "purpose": "accuracy"}
    assert evaluate_job(str(out), {"source": digits["test"], **request}, "top1")["int8_macs_share"] >= 0.9


def test_openvino_runs_the_digits_in_int8_kernels(digits, tmp_path):
    openvino = pytest.importorskip("openvino")
    out = tmp_path / "d.onnx"
    deploykit.quantize(digits["model"], output=out, precision="int8", target="openvino", calib=digits["calib"])
    compiled = openvino.Core().compile_model(openvino.Core().read_model(out), "CPU")
    layers = [op.get_rt_info() for op in compiled.get_runtime_model().get_ops()]
    heavy = [info for info in layers if info["layerType"].value in {"Convolution", "FullyConnected", "MatMul"}]
    assert len(heavy) == 5
    assert {info["runtimePrecision"].value for info in heavy} <= {"u8", "i8"}


def test_tensorrt_parser_takes_the_digits(digits, tmp_path):
    if not lazy.installed("tensorrt_rtx"):
        pytest.skip("tensorrt-rtx is not installed")
    out = tmp_path / "d.onnx"
    deploykit.quantize(digits["model"], output=out, precision="int8", target="tensorrt-rtx", calib=digits["calib"])
    arguments = {"model": str(out), "options": {}, "dims": {}, "profiles": {}}
    support = run_isolated("tensorrt-rtx", "deploykit.converters.tensorrt_rtx.support:support_job", arguments)
    assert {row["verdict"] for row in support["nodes"]} <= {"supported", "conditional"}


def test_the_same_call_gives_the_same_bytes_and_manifest(digits, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        deploykit.quantize(digits["model"], output=tmp_path / name / "d.onnx", precision="int8", calib=digits["calib"])
    for file in ("d.onnx", "d.onnx.deploykit.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    manifest = json.loads((tmp_path / "a" / "d.onnx.deploykit.json").read_text())
    assert manifest["options"]["scheme"]["activation"] == "uint8"
    assert str(tmp_path) not in json.dumps(manifest)


def test_ranges_are_saved_and_reused_by_another_scheme(digits, tmp_path):
    ranges = tmp_path / "ranges.json"
    common = {"precision": "int8", "calib": digits["calib"], "ranges": ranges}
    first = deploykit.quantize(digits["model"], output=tmp_path / "a.onnx", **common)
    second = deploykit.quantize(digits["model"], output=tmp_path / "b.onnx", target="tensorrt-rtx", **common)
    assert not first.metrics["calibration"]["reused"]
    assert second.metrics["calibration"]["reused"]
    direct = deploykit.quantize(
        digits["model"], output=tmp_path / "c.onnx", precision="int8", target="tensorrt-rtx", calib=digits["calib"]
    )
    assert second.artifact.sha256 == direct.artifact.sha256
    with pytest.raises(DataError) as caught:
        deploykit.quantize(digits["model"], output=tmp_path / "d.onnx", method="mse", **common)
    assert caught.value.code == "DK362"
    assert not (tmp_path / "d.onnx").exists()


def test_a_drop_beyond_the_limit_fails_and_writes_nothing(digits, tmp_path):
    out = tmp_path / "d.onnx"
    report = deploykit.quantize(digits["model"], output=out, precision="int8-weights", eval=digits["test"], max_drop=-1)
    assert report.exit_code == 1
    assert "DK375" in {finding.code for finding in report.findings if finding.severity == "error"}
    assert report.artifact is None
    assert not list(tmp_path.iterdir())


def test_random_calibration_is_the_first_thing_said(digits, tmp_path):
    report = deploykit.quantize(
        digits["model"], output=tmp_path / "d.onnx", precision="int8", calib="random", exclude=["Gemm"]
    )
    assert report.findings[0].code == "DK359"
    assert {f.node for f in report.findings if f.code == "DK355"} == {"/h/h.2/Gemm", "/h/h.4/Gemm"}


@pytest.mark.parametrize("target", ["coreml", "onnxruntime"])
def test_int8_weights(digits, tmp_path, target):
    report = deploykit.quantize(digits["model"], output=tmp_path / "d.onnx", precision="int8-weights", target=target)
    assert report.exit_code == 0
    assert report.metrics["outputs"][0]["sqnr_db"] > 30
    assert report.metrics["size_ratio"] < 0.3
    assert report.artifact.precision == "int8-weights"
    assert {node.op_type for node in onnx.load(tmp_path / "d.onnx").graph.node}.isdisjoint({"QuantizeLinear"})


@pytest.mark.parametrize(
    ("options", "kind", "code"),
    [
        ({"precision": "int8"}, DataError, "DK304"),
        ({"precision": "int7"}, UsageError, "DK380"),
        ({"precision": "int8-weights", "target": "tensorrt-rtx"}, UsageError, "DK381"),
        ({"precision": "int8", "calib": "random", "method": "kl"}, UsageError, "DK382"),
        ({"precision": "int8", "calib": "random", "samples": 0}, UsageError, "DK383"),
        ({"precision": "fp16", "max_drop": 1.0}, UsageError, "DK384"),
        ({"precision": "fp16", "exclude": ["nothing"]}, UsageError, "DK354"),
    ],
)
def test_wrong_options_are_refused_and_nothing_is_written(digits, tmp_path, options, kind, code):
    with pytest.raises(kind) as caught:
        deploykit.quantize(digits["model"], output=tmp_path / "d.onnx", **options)
    assert caught.value.code == code
    assert not list(tmp_path.iterdir())


def test_a_quantized_model_is_refused(digits, tmp_path):
    deploykit.quantize(digits["model"], output=tmp_path / "d.onnx", precision="int8", calib=digits["calib"])
    for precision in ("int8", "fp16", "int8-weights"):
        with pytest.raises(ModelError) as caught:
            deploykit.quantize(tmp_path / "d.onnx", output=tmp_path / "e.onnx", precision=precision, calib="random")
        assert caught.value.code == "DK350"


def test_data_for_another_model_is_refused(digits, tmp_path):
    np.savez(tmp_path / "calib.npz", input=np.zeros((4, 3, 9, 9), np.float32))
    with pytest.raises(DeploykitError) as caught:
        deploykit.quantize(
            digits["model"], output=tmp_path / "d.onnx", precision="int8", calib=str(tmp_path / "calib.npz")
        )
    assert caught.value.exit_code == 2
    assert not (tmp_path / "d.onnx").exists()


def test_random_data_that_the_float_model_refuses_is_no_failure_but_said(shared_model, tmp_path):
    model = shared_model("silero_vad/silero_vad.onnx")
    report = deploykit.quantize(model, output=tmp_path / "v.onnx", precision="fp16")
    assert report.exit_code == 0
    assert report.artifact.execution == "none"
    assert "DK377" in {finding.code for finding in report.findings}


@pytest.mark.parametrize("name", ["silero_vad", "silero_vad_op18_ifless"])
def test_voice_activity_in_half_precision_with_carried_state(shared_model, tmp_path, name):
    stream = np.load(shared_model("silero_vad/vad_stream_dev.npz"))
    frames = (stream["x"].astype(np.float32) / 32768).reshape(-1, 512)
    context = np.concatenate([np.zeros((1, 64), np.float32), frames[:-1, -64:]])
    folder = tmp_path / "stream"
    folder.mkdir()
    for index, frame in enumerate(np.concatenate([context, frames], axis=1)):
        label = stream["y"][index : index + 1].astype(np.int64)
        np.savez(folder / f"{index:04d}.npz", input=frame[None], sr=np.array(16000), y=label)
    report = deploykit.quantize(
        shared_model(f"silero_vad/{name}.onnx"),
        output=tmp_path / "v.onnx",
        precision="fp16",
        calib=str(folder),
        eval=str(folder),
        metric="top1",
        max_drop=0.5,
        contract={"state": {"carry": "stateN"}},
    )
    assert report.exit_code == 0
    assert report.metrics["accuracy"]["candidate"] >= 94
    assert report.metrics["size_ratio"] < 0.65


def test_lstm_stays_float_and_says_so(shared_model, tmp_path):
    data = np.load(shared_model("jvowels/jvowels_test.npz"))
    folder = tmp_path / "series"
    folder.mkdir()
    for index in range(40):
        np.savez(folder / f"{index:03d}.npz", x=data[f"x{index:03d}"][None], y=data["y"][index : index + 1])
    report = deploykit.quantize(
        shared_model("jvowels/jvowels_lstm.onnx"),
        output=tmp_path / "j.onnx",
        precision="int8",
        calib=str(folder),
        eval=str(folder),
        max_drop=0.5,
    )
    assert report.exit_code == 0
    assert report.metrics["float_nodes"] == 1
    assert {finding.op for finding in report.findings if finding.code == "DK355"} == {"LSTM"}
