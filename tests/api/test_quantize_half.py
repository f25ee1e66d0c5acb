"""fp16 and bf16 through the public function: real models, the engine that ran them, and what onnxruntime crashed on."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.errors import UsageError
from deploykit.isolation import workers
from deploykit.quantize.half_job import quantize_half
from deploykit.quantize.settings import Settings

CASES = ["fp16_cast_to_float", "fp16_if_subgraph", "fp16_keepio_fanout", "if_shared_init", "gemm_transb_valueinfo"]
RNG = np.random.default_rng(0)
# Loads the files it is given with every optimisation, and says which it got to.
LOADS = """
import sys
import onnxruntime
options = onnxruntime.SessionOptions()
options.log_severity_level = 4
for path in sys.argv[1:]:
    print(path, flush=True)
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
print("all", flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    """All tests of this file share their worker processes: imports are paid once."""
    with workers():
        yield


def loads(*paths: Path) -> str:
    """The word "all" when onnxruntime loads all of them, otherwise the file at which it died or refused, and why."""
    ran = subprocess.run([sys.executable, "-c", LOADS, *map(str, paths)], capture_output=True, text=True, check=False)
    last = ran.stdout.split()[-1]
    return last if ran.returncode == 0 else f"{last}: {ran.returncode} {ran.stderr[-300:]}"


def speech_features(shared: Path, folder: Path) -> str:
    """What nsnet2 takes: log power spectra of real speech, 100 frames of 20 ms a sample."""
    sound = np.load(shared / "models" / "silero_vad" / "vad_stream_dev.npz")["x"].astype(np.float32) / 32768
    window = np.sqrt(np.hanning(321)[:-1]).astype(np.float32)
    frames = np.lib.stride_tricks.sliding_window_view(sound, 320)[::160] * window
    power = np.abs(np.fft.rfft(frames[:1200], axis=1)) ** 2
    np.savez(folder / "speech.npz", input=np.log10(np.maximum(power, 1e-12)).astype(np.float32).reshape(12, 100, 161))
    return str(folder / "speech.npz")


def test_nsnet2_in_half_precision_loads_with_every_optimisation(shared, shared_model, tmp_path):
    source, out = shared_model("nsnet2/nsnet2-20ms-baseline.onnx"), tmp_path / "n.onnx"
    report = deploykit.quantize(source, output=out, precision="fp16", calib=speech_features(shared, tmp_path))
    assert report.exit_code == 0
    assert report.artifact.execution == "real"
    assert loads(out) == "all"
    islands = [finding for finding in report.findings if finding.code == "DK370"]
    assert [finding.op for finding in islands] == ["Transpose"]
    assert "onnxruntime" in islands[0].message
    assert report.metrics["outputs"][0]["sqnr_db"] > 60


def test_no_permutation_before_a_matmul_crashes_onnxruntime(tmp_path):
    """The whole kind of nsnet2's crash: all orders of three and four dimensions, on both sides of the product."""
    files = []
    for rank, side in itertools.product((3, 4), ("left", "right")):
        for order in itertools.permutations(range(rank)):
            product = "MatMul (t, w)" if side == "left" else "MatMul (w, t)"
            shape = ",".join("4" * rank)
            nodes = f"t = Transpose <perm={list(order)}> (x)  y = {product}"
            text = f"g (float[{shape}] x) => (float[{shape}] y) {{ {nodes} }}"
            model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
            weight = RNG.normal(size=(4, 4)).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
            path = tmp_path / f"{side}{''.join(map(str, order))}.onnx"
            onnx.save(model, path)
            files.append(path)
    outputs = [path.with_suffix(".half.onnx") for path in files]
    facts = [quantize_half(a, b, Settings(), lambda _: None) for a, b in zip(files, outputs, strict=True)]
    assert loads(*outputs) == "all"
    left_in_float = sum(fact["metrics"]["float_nodes"] for fact in facts)
    assert left_in_float == 2 * 4  # the first dimension moved next to last or last, no other order


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("keep_io", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_cases(shared, tmp_path, name, keep_io, precision):
    source, out = shared / "cases" / f"{name}.onnx", tmp_path / "out.onnx"
    report = deploykit.quantize(source, output=out, precision=precision, keep_io=keep_io, target="tensorrt")
    assert report.exit_code == 0
    model = onnx.load(out)
    onnx.checker.check_model(model, full_check=True)
    wanted = {"fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}[precision]
    before = [(value.name, value.type.tensor_type.elem_type) for value in onnx.load(source).graph.output]
    floats = [kind == onnx.TensorProto.FLOAT for _, kind in before]
    found = [(value.name, value.type.tensor_type.elem_type) for value in model.graph.output]
    assert [name for name, _ in found] == [name for name, _ in before]
    for (_, kind), was_float in zip(found, floats, strict=True):
        assert not was_float or kind == (onnx.TensorProto.FLOAT if keep_io else wanted)


def test_bfloat16_names_the_engine_that_ran_it(shared_model, tmp_path):
    report = deploykit.quantize(
        shared_model("digits/digits_cnn.onnx"),
        output=tmp_path / "d.onnx",
        precision="bf16",
        target="tensorrt",
        calib=str(shared_model("digits/digits_cnn_calib.npz")),
        eval=str(shared_model("digits/digits_cnn_test.npz")),
        max_drop=0.5,
    )
    assert report.exit_code == 0
    assert report.artifact.precision == "bf16"
    assert report.metrics["accuracy"]["candidate"] >= report.metrics["accuracy"]["reference"] - 0.5
    engine, codes = report.metrics["parity"]["engines"]["candidate"], {finding.code for finding in report.findings}
    if report.artifact.execution == "real":
        assert "openvino" in engine
        assert "DK315" in codes
    else:
        assert "rounding to bfloat16" in engine
        assert "DK316" in codes


def test_bfloat16_of_a_model_that_openvino_does_not_read_is_simulated(shared_model, tmp_path):
    stream = np.load(shared_model("silero_vad/vad_stream_dev.npz"))["x"][: 512 * 24].astype(np.float32) / 32768
    frames = stream.reshape(-1, 512)
    context = np.concatenate([np.zeros((1, 64), np.float32), frames[:-1, -64:]])
    folder = tmp_path / "stream"
    folder.mkdir()
    for index, frame in enumerate(np.concatenate([context, frames], axis=1)):
        np.savez(folder / f"{index:04d}.npz", input=frame[None], sr=np.array(16000))
    report = deploykit.quantize(
        shared_model("silero_vad/silero_vad.onnx"),
        output=tmp_path / "v.onnx",
        precision="bf16",
        target="tensorrt",
        calib=str(folder),
        contract={"state": {"carry": "stateN"}},
    )
    assert report.exit_code == 0
    assert report.artifact.execution == "simulated"
    assert next(finding for finding in report.findings if finding.code == "DK316").hint == ""


def test_onnxruntime_takes_no_bfloat16(shared_model, tmp_path):
    with pytest.raises(UsageError) as caught:
        deploykit.quantize(
            shared_model("digits/digits_cnn.onnx"), output=tmp_path / "d.onnx", precision="bf16", target="onnxruntime"
        )
    assert caught.value.code == "DK381"


@pytest.mark.parametrize(("target", "said"), [("onnxruntime", True), ("openvino", False)])
def test_what_half_precision_is_for_is_said_where_it_is_not_faster(shared_model, tmp_path, target, said):
    report = deploykit.quantize(
        shared_model("digits/digits_cnn.onnx"), output=tmp_path / "d.onnx", precision="fp16", target=target
    )
    assert ("DK317" in {finding.code for finding in report.findings}) == said
    assert report.metrics["size_ratio"] < 0.51


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_model_without_anything_to_convert_keeps_its_inputs(shared_model, tmp_path, precision):
    """Trees compare their inputs with thresholds: rounding these alone would change the answers."""
    source = shared_model("sklearn/bc_rf.onnx")
    data = np.load(shared_model("sklearn/bc_test.npz"))["x"]
    name = onnx.load(source).graph.input[0].name
    np.savez(tmp_path / "x.npz", **{name: data[:40].astype(np.float32)})
    report = deploykit.quantize(
        source, output=tmp_path / "f.onnx", precision=precision, target="tensorrt", calib=str(tmp_path / "x.npz")
    )
    assert report.exit_code == 0
    assert "DK372" in {finding.code for finding in report.findings}
    assert all(row["exact"] for row in report.metrics["outputs"])
    assert onnx.load(tmp_path / "f.onnx").graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_overflow_that_onnxruntime_hides_is_a_warning_without_data_and_gone_with_it(tmp_path):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[n,4] x) => (float[n,4] y) {
            a = Mul (x, thousand)  b = Mul (a, thousand)  y = Div (b, million)
        }"""
    )
    for name, value in {"thousand": 1000.0, "million": 60000.0}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32([value]), name))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=RNG.normal(size=(16, 3, 4)).astype(np.float32))
    blind = deploykit.quantize(tmp_path / "m.onnx", output=tmp_path / "blind.onnx", precision="fp16")
    assert "DK319" in {finding.code for finding in blind.findings if finding.severity == "warning"}
    seen = deploykit.quantize(
        tmp_path / "m.onnx", output=tmp_path / "seen.onnx", precision="fp16", calib=str(tmp_path / "x.npz")
    )
    assert seen.exit_code == 0
    assert {finding.op for finding in seen.findings if finding.code == "DK370"} == {"Mul", "Div"}
    assert "DK319" not in {finding.code for finding in seen.findings}


@pytest.mark.slow
def test_power_spectra_stay_in_float_where_the_data_is_quiet(shared_model, tmp_path):
    """dnsmos takes the logarithm of powers down to 1e-12, which half precision rounds to 0."""
    sound = np.load(shared_model("silero_vad/vad_stream_dev.npz"))["x"].astype(np.float32) / 32768
    np.savez(tmp_path / "a.npz", input_1=np.stack([sound[:144160], sound[144160:288320]]))
    report = deploykit.quantize(
        shared_model("dnsmos/sig_bak_ovr.onnx"),
        output=tmp_path / "d.onnx",
        precision="fp16",
        calib=str(tmp_path / "a.npz"),
    )
    assert report.exit_code == 0
    islands = {finding.op for finding in report.findings if finding.code == "DK370"}
    assert {"Log", "Max"} <= islands <= {"Log", "Max", "Pow", "Sqrt", "Add", "Mul"}


@pytest.mark.slow
def test_every_model_and_node_test_of_onnx_loads_in_half_precision(shared, tmp_path):
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    sources = sorted([*(shared / "models").glob("*/*.onnx"), *light.glob("*.onnx")])
    assert len(sources) > 12
    outputs = []
    for source in sources:
        outputs.append(tmp_path / f"{len(outputs)}_{source.name}")
        quantize_half(source, outputs[-1], Settings(), lambda _: None)
    assert loads(*outputs) == "all"
