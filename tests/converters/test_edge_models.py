"""Published models on MNN and ncnn: converted, run on the real engine and compared, or refused by node."""

from __future__ import annotations

import numpy as np
import pytest

import deploykit
from deploykit.isolation import workers

SILERO = "silero_vad/silero_vad.onnx"


@pytest.fixture(scope="module", autouse=True)
def pool():
    """The engines' processes, shared by the whole module."""
    with workers() as found:
        yield found


def converted(shared_model, tmp_path, target, name, **arguments):
    pytest.importorskip({"mnn": "MNN", "ncnn": "ncnn"}[target])
    suffix = {"mnn": ".mnn", "ncnn": ".param"}[target]
    return deploykit.convert(
        shared_model(name), to=target, output=tmp_path / f"made{suffix}", **{"samples": 3, **arguments}
    )


def assert_verified(report, decibels=100):
    assert not report.failed, [finding.message for finding in report.findings]
    rows = report.metrics["parity"]["parent"]["outputs"]
    assert rows
    assert report.artifact.execution == "real"
    assert all(row["passed"] and (row["exact"] or row["sqnr_db"] > decibels) for row in rows), rows


def silero_windows(tmp_path):
    rng = np.random.default_rng(0)
    file = tmp_path / "windows.npz"
    feeds = {"input": rng.normal(0, 0.1, (3, 1, 576)), "state": rng.normal(0, 0.1, (3, 2, 1, 128))}
    np.savez(file, **{name: array.astype(np.float32) for name, array in feeds.items()}, sr=np.array(16000))
    return str(file)


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("digits/digits_cnn.onnx", ()),
        pytest.param("jvowels/jvowels_lstm.onnx", (), marks=pytest.mark.slow),
        pytest.param("magika/model.onnx", (), marks=pytest.mark.slow),
        pytest.param("mnist5k/mnist5k_cnn.onnx", (), marks=pytest.mark.slow),
        pytest.param("nsnet2/nsnet2-20ms-baseline.onnx", (), marks=pytest.mark.slow),
        pytest.param("ppocr_v4/cls.onnx", (), marks=pytest.mark.slow),
        pytest.param("ppocr_v4/rec.onnx", (), marks=pytest.mark.slow),
        pytest.param("attacut/attacut-sc.onnx", ("seq_len=2..60",), marks=pytest.mark.slow),
        pytest.param("dnsmos/sig_bak_ovr.onnx", ("N=1..2",), marks=pytest.mark.slow),
    ],
)
def test_mnn_computes_what_the_model_does(shared_model, tmp_path, name, dims):
    assert_verified(converted(shared_model, tmp_path, "mnn", name, dims=dims))


@pytest.mark.parametrize(
    "name", [SILERO, pytest.param("silero_vad/silero_vad_op18_ifless.onnx", marks=pytest.mark.slow)]
)
def test_mnn_runs_the_branches_of_silero(shared_model, tmp_path, name):
    report = converted(shared_model, tmp_path, "mnn", name, data=silero_windows(tmp_path))
    assert_verified(report)
    told = [finding for finding in report.findings if finding.code == "DK529"]
    assert [(finding.tensor, finding.severity) for finding in told] == [("sr", "note")]


def test_mnn_names_the_trees_that_it_has_not(shared_model, tmp_path):
    report = converted(shared_model, tmp_path, "mnn", "sklearn/bc_rf.onnx")
    assert report.artifact is None
    found = {(finding.op, finding.code) for finding in report.findings if finding.severity == "error"}
    assert found == {("Scaler", "DK526"), ("TreeEnsembleClassifier", "DK526")}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("digits/digits_cnn.onnx", {}),
        ("jvowels/jvowels_lstm.onnx", {}),
        pytest.param("ppocr_v4/cls.onnx", {"profiles": ["x=1x3x48x192:1x3x48x192:4x3x48x192"]}, marks=pytest.mark.slow),
        pytest.param("mnist5k/mnist5k_cnn.onnx", {}, marks=pytest.mark.slow),
        pytest.param("nsnet2/nsnet2-20ms-baseline.onnx", {}, marks=pytest.mark.slow),
        pytest.param("dnsmos/sig_bak_ovr.onnx", {"dims": ["N=1..2"]}, marks=pytest.mark.slow),
        pytest.param("ppocr_v4/rec.onnx", {"profiles": ["x=1x3x48x64:1x3x48x128:2x3x48x320"]}, marks=pytest.mark.slow),
    ],
)
def test_ncnn_computes_what_the_model_does(shared_model, tmp_path, name, given):
    assert_verified(converted(shared_model, tmp_path, "ncnn", name, **given))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("attacut/attacut-sc.onnx", {("DK201", "Gather")}),
        (SILERO, {("DK529", None)}),
        ("sklearn/bc_rf.onnx", {("DK529", None)}),
    ],
)
def test_ncnn_says_what_it_has_not(shared_model, tmp_path, name, found):
    report = converted(shared_model, tmp_path, "ncnn", name)
    assert report.artifact is None
    assert {(each.code, each.op) for each in report.findings if each.severity == "error"} == found
