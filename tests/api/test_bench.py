"""`deploykit.bench`: the contract's keys, budgets, accuracy, what does not run here."""

from __future__ import annotations

import itertools
import math

import onnx
import pytest

import deploykit
from deploykit.artifact import Artifact, write_manifest
from deploykit.errors import DataError, InvalidFileError, UsageError
from deploykit.target import get_target, unavailable

ROW = {
    "artifact",
    "runtime",
    "execution",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "throughput_per_s",
    "rss_mb",
    "load_s",
    "accuracy",
}
QUICK = {"seconds": 0.2}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    text = "agraph (float[n,64] x) => (float[n,64] y) { y = Softmax (x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}'), path)
    return path


def codes(report, severity="error"):
    return [finding.code for finding in report.findings if finding.severity == severity]


def test_report_has_the_contracts_keys(model):
    report = deploykit.bench(model, **QUICK)
    assert report.exit_code == 0
    assert report.findings[0].code == "DK320"
    (row,) = report.metrics["rows"]
    assert set(row) >= ROW
    assert set(row["rss_mb"]) == {"base", "loaded", "after", "peak"}
    assert report.metrics["verdict"].startswith("onnxruntime fp32: p50 ")
    assert report.artifact.execution == "real"


def test_generous_budgets_pass_and_impossible_ones_fail(model):
    generous = {"max_p99_ms": 1e6, "min_throughput": 1e-3, "max_size_mb": 1e3, "max_rss_mb": 1e5}
    assert deploykit.bench(model, **generous, **QUICK).exit_code == 0
    impossible = {"max_p99_ms": 1e-9, "min_throughput": 1e12, "max_size_mb": 1e-9, "max_rss_mb": 1e-3}
    report = deploykit.bench(model, **impossible, **QUICK)
    assert report.exit_code == 1
    assert codes(report) == ["DK442"] * 4
    assert report.metrics["rows"]


def test_only_artifacts_of_other_machines_is_exit_3_with_rows(tmp_path):
    engine = tmp_path / "m.engine"
    engine.write_bytes(b"built for a GPU")
    facts = {"target": "tensorrt-rtx", "precision": "int8", "stage": "convert"}
    write_manifest(Artifact.of(engine, "tensorrt-rtx", **facts))
    if unavailable(get_target("tensorrt-rtx")) is None:
        pytest.skip("this machine has the GPU")
    report = deploykit.bench(engine, **QUICK)
    assert report.exit_code == 3
    (row,) = report.metrics["rows"]
    assert (row["label"], row["execution"]) == ("tensorrt-rtx int8", "none")
    assert row["reason"]
    assert "DK443" in codes(report, "note")
    budget = deploykit.bench(engine, max_size_mb=1e-9, **QUICK)
    assert (budget.exit_code, codes(budget)) == (1, ["DK442"])


def test_a_file_that_is_no_artifact_is_refused(tmp_path):
    engine = tmp_path / "m.engine"
    engine.write_bytes(b"not an engine at all")
    with pytest.raises(InvalidFileError):
        deploykit.bench(engine, **QUICK)


def test_wrong_use_is_told(model, tmp_path):
    with pytest.raises(UsageError):
        deploykit.bench()
    with pytest.raises(UsageError):
        deploykit.bench(model, batch=0)
    fixed = tmp_path / "fixed.onnx"
    text = "agraph (float[2,4] x) => (float[2,4] y) { y = Relu (x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}'), fixed)
    with pytest.raises(DataError) as caught:
        deploykit.bench(fixed, batch=16, **QUICK)
    assert caught.value.code == "DK444"


@pytest.mark.serial
def test_digits_on_two_engines_with_accuracy(shared_model, tmp_path):
    openvino = pytest.importorskip("openvino")
    model, data = shared_model("digits/digits_cnn.onnx"), shared_model("digits/digits_cnn_test.npz")
    other = tmp_path / "digits.xml"
    openvino.save_model(openvino.convert_model(str(model)), other, compress_to_fp16=False)
    report = deploykit.bench(model, other, data=str(data), batch=8, threads=1, eval=str(data), seconds=0.3)
    first, second = report.metrics["rows"]
    assert first["accuracy"] == second["accuracy"] == pytest.approx(100 * 447 / 450)
    assert (first["label"], second["label"]) == ("onnxruntime fp32", "openvino fp32")
    assert report.metrics["batch"] == 8
    assert report.metrics["data"] == "digits_cnn_test.npz"


@pytest.mark.serial
def test_a_stateful_model_carries_its_state(shared_model):
    model = shared_model("silero_vad/silero_vad_op18_ifless.onnx")
    dims = ["sequence=576"]
    contract = {"state": {"carry": "stateN"}}
    report = deploykit.bench(model, contract=contract, dims=dims, **QUICK)
    assert report.exit_code == 0
    assert report.metrics["rows"][0]["p50_ms"] > 0


@pytest.mark.parametrize("options", [{"threads": 10**5}, {"threads": 0}, {"seconds": math.inf}, {"seconds": math.nan}])
def test_what_no_machine_has_or_nobody_waits_for_is_refused(model, options):
    with pytest.raises(UsageError):
        deploykit.bench(model, **options)


def test_a_batch_beyond_the_memory_is_refused(model):
    with pytest.raises(DataError, match="does not fit into memory") as caught:
        deploykit.bench(model, batch=10**12, **QUICK)
    assert caught.value.code == "DK444"


def test_inputs_that_the_model_does_not_take_are_named(tmp_path):
    text = "agraph (float[b,n] x, float[b,m] z) => (float[b,k] y) { y = Add (x, z) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}'), tmp_path / "m.onnx")
    with pytest.raises(DataError, match=r"m\.onnx does not run on") as caught:
        deploykit.bench(tmp_path / "m.onnx", dims=["n=2..2", "m=3..3"], **QUICK)
    assert caught.value.code == "DK449"


def test_a_loss_beyond_max_drop_fails_and_is_not_recommended(tmp_path):
    # The second model answers the next class for every eighth row.
    import numpy as np

    data = tmp_path / "data.npz"
    x = np.tile(np.eye(8, dtype=np.float32), (4, 1))
    np.savez(data, x=x, y=np.tile(np.arange(8), 4))
    files = []
    for name, weights in (("right", np.eye(8)), ("wrong", np.eye(8)[[1, 1, 2, 3, 4, 5, 6, 7]])):
        text = "agraph (float[n,8] x) => (float[n,8] y) <float[8,8] w> { y = MatMul (x, w) }"
        made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
        del made.graph.initializer[:]
        made.graph.initializer.append(onnx.numpy_helper.from_array(weights.astype(np.float32), "w"))
        files.append(tmp_path / f"{name}.onnx")
        onnx.save(made, files[-1])
    report = deploykit.bench(*files, eval=str(data), max_drop=1.0, **QUICK)
    assert [row["accuracy"] for row in report.metrics["rows"]] == [100.0, 87.5]
    assert (report.exit_code, codes(report)) == (1, ["DK442"])
    assert report.metrics["over_budget"] == ["onnxruntime fp32 (wrong.onnx)"]
    assert not report.metrics["verdict"].startswith("onnxruntime fp32 (wrong.onnx):")
    assert deploykit.bench(*files, eval=str(data), max_drop=12.5, **QUICK).exit_code == 0


@pytest.mark.serial
def test_a_baseline_finds_a_slower_model_and_nothing_else(tmp_path):
    import json

    import numpy as np

    def saved(folder, products):
        names = ["x", *(f"h{at}" for at in range(products - 1)), "y"]
        lines = "\n".join(f"{b} = MatMul ({a}, w)" for a, b in itertools.pairwise(names))
        text = f"agraph (float[64,384] x) => (float[64,384] y) <float[384,384] w> {{ {lines} }}"
        made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
        del made.graph.initializer[:]
        made.graph.initializer.append(onnx.numpy_helper.from_array(np.full((384, 384), 1 / 384, np.float32), "w"))
        made.producer_name = folder
        (tmp_path / folder).mkdir()
        onnx.save(made, tmp_path / folder / "m.onnx")
        return tmp_path / folder / "m.onnx"

    before, same, slow = saved("before", 8), saved("same", 8), saved("slow", 16)
    settings = {"threads": 1, "seconds": 0.5}
    file = tmp_path / "baseline.json"
    file.write_text(json.dumps(deploykit.bench(before, **settings).as_dict()), encoding="utf-8")
    report = deploykit.bench(same, baseline=file, **settings)
    assert "DK412" not in codes(report)
    report = deploykit.bench(slow, baseline=file, **settings)
    assert (report.exit_code, codes(report)) == (1, ["DK412"])
    (row,) = report.metrics["baseline"]["rows"]
    assert (row["verdict"], len(row["runs"]) >= 2) == ("slower", True)
    assert 1.5 < row["ratio"] < 3
    with pytest.raises(UsageError) as caught:
        deploykit.bench(same, baseline=file, threads=2, seconds=0.1)
    assert (caught.value.code, caught.value.exit_code) == ("DK413", 2)
    assert caught.value.context == ("threads: 1 there, 2 here",)


@pytest.mark.parametrize("options", [{"clients": 0}, {"max_slowdown": 0.9}, {"max_slowdown": math.nan}])
def test_clients_and_slowdowns_out_of_range_are_refused(model, options):
    with pytest.raises(UsageError):
        deploykit.bench(model, **options)
