"""`--method auto` goes on where its plain result misses the gate, and only there."""

import numpy as np
import onnx
import onnx.parser
import pytest

import deploykit
from deploykit.isolation import workers

WIDTH = 64


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    with workers():
        yield


@pytest.fixture
def biased(tmp_path):
    """A layer whose input is 10 +- 0.3 and whose bias takes the mean away: rounded weights shift every output."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(WIDTH, 16)).astype(np.float32)
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n,64] x) => (float[n,16] y) { y = Gemm(x, w, b) }'
    model = onnx.parser.parse_model(text)
    arrays = {"w": weight, "b": -10 * weight.sum(axis=0)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "calib.npz", x=(10 + 0.3 * rng.normal(size=(64, WIDTH))).astype(np.float32))
    return tmp_path


def quantized(folder, **options):
    return deploykit.quantize(
        folder / "model.onnx",
        output=folder / "out.onnx",
        precision="int8",
        calib=folder / "calib.npz",
        force=True,
        **options,
    )


def test_what_misses_the_gate_is_corrected(biased):
    plain = quantized(biased, method="minmax")
    assert plain.exit_code == 1
    assert not (biased / "out.onnx").exists()
    report = quantized(biased)
    assert report.exit_code == 0
    assert report.metrics["outputs"][0]["sqnr_db"] >= 20
    assert report.metrics["int8_macs_share"] == 1
    assert report.metrics["search"]["recipe"]["bias_correction"]
    assert [finding.code for finding in report.findings if finding.code in {"DK379", "DK401"}] == ["DK379"]


def test_the_same_bytes_again_and_by_the_options_that_were_found(biased):
    first = quantized(biased)
    recipe = first.metrics["search"]["recipe"]
    again = quantized(biased)
    assert first.artifact.sha256 == again.artifact.sha256
    asked = quantized(biased, method=recipe["method"], bias_correction=True, smooth_quant=recipe["smooth_quant"])
    assert asked.artifact.sha256 == first.artifact.sha256


def test_ranges_from_a_file_are_corrected_as_well(biased):
    assert quantized(biased, ranges=biased / "ranges.json").exit_code == 0
    report = quantized(biased, ranges=biased / "ranges.json")
    assert report.exit_code == 0
    assert report.metrics["calibration"]["reused"]


def test_a_result_that_holds_is_not_searched(biased):
    rng = np.random.default_rng(1)
    np.savez(biased / "calib.npz", x=rng.normal(size=(64, WIDTH)).astype(np.float32))
    report = quantized(biased)
    assert report.exit_code == 0
    assert "search" not in report.metrics


def test_what_cannot_be_corrected_fails_with_the_way_out(biased):
    model = onnx.load(biased / "model.onnx")
    rng = np.random.default_rng(0)
    # Outputs are differences of neighbours that are both large: 8 bits hold the neighbours, not what they differ by.
    x = rng.normal(size=(64, WIDTH)).astype(np.float32)
    x += np.repeat(1000 * rng.normal(size=(64, WIDTH // 2)).astype(np.float32), 2, axis=1)
    weight = rng.normal(size=(WIDTH, 16)).astype(np.float32)
    weight[1::2] = -weight[::2]
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight, "w"))
    model.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.zeros(16, np.float32), "b"))
    onnx.save(model, biased / "model.onnx")
    np.savez(biased / "calib.npz", x=x)
    report = quantized(biased)
    assert report.exit_code == 1
    assert not (biased / "out.onnx").exists()
    [fault] = [finding for finding in report.findings if finding.severity == "error"]
    assert fault.code == "DK401"
    assert "--precision mixed" in fault.hint
    assert "DK379" in {finding.code for finding in report.findings}
