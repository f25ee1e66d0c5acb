"""`deploykit.validate` on small graphs and on real models with their labelled data."""

from __future__ import annotations

import onnx
import pytest

import deploykit
from deploykit.errors import DataError, InvalidFileError, UnavailableError
from deploykit.target import get_target, unavailable

METRICS = {"outputs", "samples", "accuracy", "first_divergence"}
ROW = {"name", "max_abs", "max_rel", "sqnr_db", "cosine", "exact", "passed"}


def onnx_text(path, body, head='ir_version: 8, opset_import: ["" : 18]'):
    onnx.save(onnx.parser.parse_model(f"<{head}>\n{body}"), path)
    return path


def scaled(folder, factor, name):
    body = f"""agraph (float[batch,4] x) => (float[batch,4] y) <float f = {{{factor}}}> {{
        y = Mul (x, f)
    }}"""
    return onnx_text(folder / name, body)


QDQ = """agraph (float[batch,4] x) => (float[batch,4] y)
<float s = {SCALE}, uint8 z = {128}> {
    q = QuantizeLinear (x, s, z)
    y = DequantizeLinear (q, s, z)
}"""


def test_equal_models_pass_and_say_that_the_data_is_random(tmp_path):
    model = scaled(tmp_path, 2.0, "a.onnx")
    report = deploykit.validate(model, model)
    assert (report.exit_code, report.status) == (0, "passed")
    assert report.findings[0].code == "DK320"
    assert "random:0" in report.findings[0].message
    assert set(report.metrics) >= METRICS
    (row,) = report.metrics["outputs"]
    assert set(row) >= ROW
    assert (row["exact"], row["sqnr_db"]) == (True, None)
    assert report.metrics["samples"] == 16
    assert report.artifact.execution == "real"


def test_a_difference_fails_with_number_limit_and_command(tmp_path):
    reference, candidate = scaled(tmp_path, 2.0, "a.onnx"), scaled(tmp_path, 2.01, "b c.onnx")
    report = deploykit.validate(reference, candidate, data="random:3", samples=5)
    assert report.exit_code == 1
    (finding,) = [f for f in report.findings if f.severity == "error"]
    assert (finding.code, finding.tensor) == ("DK401", "y")
    assert "is allowed (|diff| <= 0.0001 * |ref| + 1e-05 * max|ref|)" in finding.message
    assert finding.hint == f"deploykit validate {reference} '{candidate}' --data random:3 --samples 5"


def test_given_limits_decide(tmp_path):
    reference, candidate = scaled(tmp_path, 2.0, "a.onnx"), scaled(tmp_path, 2.01, "b.onnx")
    assert deploykit.validate(reference, candidate, rtol=1e-2).exit_code == 0
    assert deploykit.validate(reference, candidate, atol=1.0).exit_code == 0
    assert deploykit.validate(reference, candidate, min_sqnr=46).exit_code == 0  # 20 log10(2 / 0.01) = 46.02 dB
    failed = deploykit.validate(reference, candidate, min_sqnr=46.1)
    assert failed.exit_code == 1
    assert "--min-sqnr 46.1" in next(f for f in failed.findings if f.severity == "error").hint


@pytest.mark.parametrize(("scale", "passes"), [(0.02, True), (0.5, False)])
def test_a_quantized_model_is_judged_by_sqnr_against_its_float_source(tmp_path, scale, passes):
    reference = scaled(tmp_path, 1.0, "a.onnx")
    candidate = onnx_text(tmp_path / "q.onnx", QDQ.replace("SCALE", str(scale)))
    report = deploykit.validate(reference, candidate)
    assert report.metrics["tolerance"] == {"row": "int8", "limits": "SQNR >= 20 dB"}
    assert (report.exit_code == 0) is passes
    # Against itself it is its own parent.
    assert deploykit.validate(candidate, candidate).metrics["tolerance"]["row"] == "int8-parent"


def test_nan_fails_on_both_sides(tmp_path):
    model = onnx_text(
        tmp_path / "nan.onnx",
        "agraph (float[batch,4] x) => (float[batch,4] y) { l = Sqrt (x)\n y = Identity (l) }",
    )
    report = deploykit.validate(model, model)
    assert report.exit_code == 1
    assert [f.code for f in report.findings if f.severity == "error"] == ["DK402"]
    assert report.metrics["outputs"][0]["max_abs"] is None


def test_stochastic_graphs_are_a_warning_and_have_no_outputs(tmp_path):
    body = "agraph (float[2,3] x) => (float[2,3] y) { n = RandomNormalLike (x)\n y = Add (x, n) }"
    model = onnx_text(tmp_path / "noise.onnx", body)
    report = deploykit.validate(model, model)
    assert [(f.code, f.severity) for f in report.findings] == [("DK404", "warning")]
    assert report.metrics["outputs"] == []
    assert report.artifact.execution == "none"


def test_errors_of_input_are_exit_2(tmp_path):
    model = scaled(tmp_path, 2.0, "a.onnx")
    with pytest.raises(InvalidFileError):
        deploykit.validate(model, tmp_path / "absent.onnx")
    with pytest.raises(DataError):
        deploykit.validate(model, model, metric="top1")  # accuracy never on random data


def test_an_engine_that_is_not_here_is_exit_3(tmp_path, engine):
    model = scaled(tmp_path, 2.0, "a.onnx")
    if unavailable(get_target("tensorrt-rtx")) is None:
        pytest.skip("it runs on this machine")
    with pytest.raises(UnavailableError) as caught:
        deploykit.validate(model, engine)
    assert caught.value.exit_code == 3
    assert caught.value.hint


def test_a_broken_engine_is_exit_2_where_it_does_not_run_either(tmp_path):
    pytest.importorskip("tensorrt_rtx")
    model = scaled(tmp_path, 2.0, "a.onnx")
    engine = tmp_path / "a.engine"
    engine.write_bytes(b"ftrt and so on")
    for sides in ((model, engine), (engine, model)):
        with pytest.raises(InvalidFileError) as caught:
            deploykit.validate(*sides)
        assert caught.value.code == "DK528"


def test_digits_on_openvino_with_accuracy(shared_model, tmp_path):
    openvino = pytest.importorskip("openvino")
    model, data = shared_model("digits/digits_cnn.onnx"), shared_model("digits/digits_cnn_test.npz")
    candidate = tmp_path / "digits.xml"
    openvino.save_model(openvino.convert_model(str(model)), candidate, compress_to_fp16=False)
    report = deploykit.validate(model, candidate, data=str(data), samples=None, eval=str(data))
    assert report.exit_code == 0, report.findings
    assert report.metrics["samples"] == 450
    accuracy = report.metrics["accuracy"]
    assert accuracy["reference"] == accuracy["candidate"] == pytest.approx(100 * 447 / 450)
    assert report.metrics["engines"]["candidate"].lower().startswith("openvino")


def test_a_quantized_artifact_without_a_manifest_is_recognised_and_compared_with_its_parent(tmp_path):
    openvino = pytest.importorskip("openvino")
    parent = onnx_text(tmp_path / "q.onnx", QDQ.replace("SCALE", "0.02"))
    candidate = tmp_path / "q.xml"
    openvino.save_model(openvino.convert_model(str(parent)), candidate)
    report = deploykit.validate(parent, candidate)
    assert report.metrics["tolerance"] == {"row": "int8-parent", "limits": "SQNR >= 30 dB"}
    assert report.exit_code == 0


VAD = """
import numpy as np

def frames():
    z = np.load(PATH)
    x, labels = z["x"].astype(np.float32) / 32768, z["y"]
    context = np.zeros(64, np.float32)
    for frame, label in zip(x.reshape(-1, 512), labels, strict=True):
        yield {"input": np.concatenate([context, frame])[None], "sr": np.array(16000, np.int64), "y": label}
        context = frame[-64:]
"""


def test_voice_activity_with_state_carried_on_both_sides(shared_model, tmp_path):
    source = tmp_path / "vad.py"
    source.write_text(VAD.replace("PATH", repr(str(shared_model("silero_vad/vad_stream_dev.npz")))))
    first = shared_model("silero_vad/silero_vad.onnx")
    second = shared_model("silero_vad/silero_vad_op18_ifless.onnx")
    report = deploykit.validate(
        first,
        second,
        data=f"{source}:frames",
        samples=60,
        eval=f"{source}:frames",
        contract={"state": {"carry": "stateN"}},
    )
    assert report.exit_code == 0, report.findings
    assert report.metrics["samples"] == 60
    # The model's page: 0.9446 over 632 scored frames; without the state carried it is far below.
    assert report.metrics["accuracy"]["samples"] == 632
    assert report.metrics["accuracy"]["reference"] == pytest.approx(94.46, abs=0.01)


RAGGED = """
import numpy as np

def utterances():
    z = np.load(PATH)
    for i, label in enumerate(z["y"]):
        yield {"x": z[f"x{i:03}"][None], "y": label}
"""


def test_sequences_of_different_lengths(shared_model, tmp_path):
    source = tmp_path / "vowels.py"
    source.write_text(RAGGED.replace("PATH", repr(str(shared_model("jvowels/jvowels_test.npz")))))
    model = shared_model("jvowels/jvowels_lstm.onnx")
    report = deploykit.validate(model, model, data=f"{source}:utterances", samples=None, metric="top1")
    assert report.exit_code == 0
    assert report.metrics["samples"] == 370
    assert report.metrics["accuracy"]["candidate"] == pytest.approx(100 * 360 / 370)
