"""Segments of artifacts in formats of their own: the integers are found, and a fault in them."""

import json

import numpy as np
import onnx
import pytest

from deploykit import lazy
from deploykit.data.request import data_request
from deploykit.isolation import run_isolated, workers
from deploykit.runtime import RuntimeOptions, open_runtime
from deploykit.target import get_target

MODEL = """<ir_version: 8, opset_import: ["": 17]> g (float[4,8] x) => (float[4,8] y)
<float s = {0.1}, int8 z = {0}, float s2 = {0.2}, float factor = {0.7}> {
    [in] qa = QuantizeLinear (x, s, z)
    d = DequantizeLinear (qa, s, z)
    [scale] m = Mul (d, factor)
    q2 = QuantizeLinear (m, s2, z)
    e = DequantizeLinear (q2, s2, z)
    y = Tanh (e)
}"""


@pytest.fixture(scope="module", autouse=True)
def _workers():
    with workers():
        yield


def converted(model, target):
    found = get_target(target)
    out = model.with_name(f"{model.stem}{found.suffix}")
    given = {"options": {}, "dims": {}, "profiles": {}, "precision": "int8"}
    if target == "coreml":
        given["options"] = {"minimum_deployment_target": "iOS17"}
    run_isolated(found.worker, found.converter, {"model": str(model), "output": str(out), **given}, block=found.blocked)
    return out


@pytest.mark.parametrize("target", ["openvino", "onnxruntime", "coreml"])
@pytest.mark.parametrize("factor", [0.7, 0.707])
def test_the_artifact_is_right_or_the_segment_is_named(tmp_path, target, factor):
    found = get_target(target)
    if not all(map(lazy.installed, found.packages)):
        pytest.skip(f"{target} is not installed")
    model = onnx.parser.parse_model(MODEL)
    onnx.save(model, tmp_path / "parent.onnx")
    model.graph.initializer[3].CopyFrom(onnx.numpy_helper.from_array(np.float32(factor), "factor"))
    onnx.save(model, tmp_path / "made.onnx")
    np.savez(tmp_path / "x.npz", x=np.linspace(-12, 12, 32, dtype=np.float32).reshape(1, 4, 8))
    artifact = converted(tmp_path / "made.onnx", target) if target != "onnxruntime" else tmp_path / "made.onnx"
    report = run_isolated(
        f"compare-{found.worker}",
        "deploykit.segments:segments_job",
        {
            "reference": str(tmp_path / "parent.onnx"),
            "candidate": str(artifact),
            "data": data_request(str(tmp_path / "x.npz"), "parity"),
        },
        block=found.blocked,
    )
    assert (report["segments"], report["elements"]) == (2, 64), json.dumps(report)
    faults = [fault["tensor"] for fault in report["faults"]]
    assert faults == ([] if factor == 0.7 else ["q2"])
    assert all(row["passed"] for row in report["outputs"])


def test_only_what_is_there_is_tapped_and_outputs_stay_what_they_are(tmp_path):
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    runtime = open_runtime(tmp_path / "m.onnx", RuntimeOptions(taps=("q2", "y", "absent", "qa")))
    try:
        assert runtime.taps == ("q2", "qa")
        assert [spec.name for spec in runtime.outputs] == ["y"]
        made = runtime.predict({"x": np.full((4, 8), 0.32, np.float32)})
    finally:
        runtime.close()
    assert list(made) == ["y", "q2", "qa"]
    assert made["qa"].dtype == np.int8
    assert (made["qa"] == 3).all()
    assert (made["q2"] == 1).all()
