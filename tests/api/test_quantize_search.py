"""`--sensitivity`, `--max-drop` and `--precision mixed` as a user has them."""

import json
import re

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import deploykit
from deploykit.errors import OutputError
from deploykit.isolation import workers


@pytest.fixture(scope="module", autouse=True)
def _one_worker():
    with workers():
        yield


@pytest.fixture(scope="module")
def digits(shared_model):
    return {
        "model": shared_model("digits/digits_cnn.onnx"),
        "calib": shared_model("digits/digits_cnn_calib.npz"),
        "eval": shared_model("digits/digits_cnn_test.npz"),
    }


@pytest.fixture(scope="module")
def spread(tmp_path_factory):
    """A classifier whose first node int8 breaks, with data and labels: see tests/quantize/search_models.py."""
    folder = tmp_path_factory.mktemp("spread")
    rng = np.random.default_rng(0)
    weights = {"w1": (8, 8), "w2": (8, 64), "w3": (64, 4)}
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> agraph (float[16,8] x) => (float[16,4] y) {
            [planted] h = MatMul (x, w1)
            size = ReduceL2 <axes=[1]> (h)
            some = Add (size, tiny)
            n = Div (h, some)
            [wide] a = MatMul (n, w2)
            r = Relu (a)
            [last] y = MatMul (r, w3)
        }"""
    )
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in weights.items()}
    arrays["tiny"] = np.array(1e-9, np.float32)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    onnx.save(model, folder / "model.onnx")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name in ("calib", "eval"):
        x = (rng.normal(size=(192, 8)) * 10.0 ** rng.uniform(-3, 3, size=(192, 1))).astype(np.float32)
        classes = [session.run(None, {"x": part})[0].argmax(axis=1) for part in x.reshape(-1, 16, 8)]
        np.savez(folder / f"{name}.npz", x=x, y=np.concatenate(classes))
    return folder


def quantize(spread, output, **given):
    options = {"precision": "int8", "calib": spread / "calib.npz", "eval": spread / "eval.npz", "max_drop": 2.0}
    return deploykit.quantize(spread / "model.onnx", output=output, **(options | given))


def test_int8_over_its_budget_is_searched_and_passes_the_gates(spread, tmp_path):
    report = quantize(spread, tmp_path / "out.onnx")
    assert report.exit_code == 0
    assert report.metrics["search"]["left_in_float"] == ["planted"]
    # What the gates of the stage measured afterwards is what the search said.
    assert report.metrics["accuracy"]["drop"] == pytest.approx(report.metrics["search"]["best"]["drop"])
    assert report.metrics["outputs"][0]["sqnr_db"] == pytest.approx(
        report.metrics["search"]["best"]["sqnr_db"], abs=0.01
    )
    assert report.artifact.precision == "int8"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["out.onnx", "out.onnx.deploykit.json"]


def test_without_a_budget_int8_fails_and_says_what_searches(spread, tmp_path):
    report = quantize(spread, tmp_path / "out.onnx", max_drop=None)
    assert report.exit_code == 1
    failed = next(finding for finding in report.findings if finding.severity == "error")
    assert "--precision mixed" in failed.hint
    assert "--sensitivity" in failed.hint
    assert list(tmp_path.iterdir()) == []


def test_mixed_needs_no_labels_and_is_judged_as_int8(spread, tmp_path):
    report = quantize(spread, tmp_path / "out.onnx", precision="mixed", eval=None, max_drop=None)
    assert report.exit_code == 0
    assert report.artifact.precision == "int8"
    assert report.metrics["outputs"][0]["tolerance"] == "SQNR >= 20 dB"
    assert report.metrics["search"]["left_in_float"] == ["planted"]
    # The file alone tells the same.
    (tmp_path / "out.onnx.deploykit.json").unlink()
    assert deploykit.inspect(tmp_path / "out.onnx").metrics["precision"] == "int8"


def test_a_budget_out_of_reach_fails_and_keeps_the_best_beside_the_output(spread, tmp_path):
    report = quantize(spread, tmp_path / "out.onnx", max_drop=-5.0)
    assert (report.exit_code, report.status, report.artifact) == (1, "failed", None)
    assert [path.name for path in tmp_path.iterdir()] == ["out.best.onnx"]
    failed = next(finding for finding in report.findings if finding.severity == "error")
    assert failed.code == "DK396"
    best = report.metrics["search"]["best"]
    assert f"{best['int8_macs_share']:.1%}" in failed.message
    onnx.checker.check_model(str(tmp_path / "out.best.onnx"), full_check=True)
    # Not overwritten unless asked: and that is said before minutes of searching.
    before = (tmp_path / "out.best.onnx").read_bytes()
    seen = []
    with pytest.raises(OutputError) as raised:
        quantize(spread, tmp_path / "out.onnx", max_drop=-5.0, on_progress=seen.append)
    assert raised.value.code == "DK120"
    assert seen == []
    assert quantize(spread, tmp_path / "out.onnx", max_drop=-5.0, force=True).exit_code == 1
    assert (tmp_path / "out.best.onnx").read_bytes() == before


@pytest.mark.parametrize("stage", ["running float", "ranking nodes", "searching"])
def test_an_interrupt_leaves_nothing(spread, tmp_path, stage):
    def interrupt(step):
        if step.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(spread, tmp_path / "out.onnx", on_progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_digits_lose_nothing_as_a_whole(digits, tmp_path):
    report = deploykit.quantize(
        digits["model"],
        output=tmp_path / "out.onnx",
        precision="int8",
        calib=digits["calib"],
        eval=digits["eval"],
        metric="top1",
        max_drop=0.5,
        sensitivity=True,
    )
    assert report.exit_code == 0
    assert report.metrics["int8_macs_share"] == 1.0
    assert report.metrics["search"]["evaluations"] == 1
    assert report.metrics["accuracy"]["drop"] <= 0.5
    rows = report.metrics["sensitivity"]
    assert len(rows) == 5
    levels = [row["sqnr_alone_db"] for row in rows]
    assert levels == sorted(levels)
    assert sum(row["macs_share"] for row in rows) == pytest.approx(1.0, abs=1e-4)


def test_the_shell_shows_the_ranking_and_writes_the_drawing(deploykit_cli, spread, tmp_path):
    done = deploykit_cli(
        *("quantize", spread / "model.onnx", "-o", tmp_path / "out.onnx", "--precision", "mixed"),
        *("--calib", spread / "calib.npz", "--report", tmp_path / "report.html"),
    )
    assert done.code == 0, done.stderr
    assert re.search(r"planted +MatMul +7\.7 %", done.stdout)
    assert "left in float  planted" in done.stdout
    assert "DK397" in done.stdout
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<rect") == 3
    failed = deploykit_cli(
        *("quantize", spread / "model.onnx", "-o", tmp_path / "int8.onnx", "--precision", "int8", "--json"),
        *("--calib", spread / "calib.npz", "--sensitivity"),
    )
    assert failed.code == 1
    assert json.loads(failed.stdout)["metrics"]["sensitivity"][0]["node"] == "planted"
