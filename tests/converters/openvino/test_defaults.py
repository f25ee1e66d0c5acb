"""What OpenVINO's default precision changes is measured and said; where it changes nothing, that is said."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest

import deploykit
from deploykit.converters.openvino.convert import convert_job
from deploykit.converters.openvino.defaults import measure_job
from deploykit.data.request import data_request

NET = "agraph (float[N,64] x) => (float[N,32] y) { [dense] y = MatMul (x, w) }"


@pytest.fixture
def artifact(onnx_file, tmp_path):
    model = onnx_file(NET, w=np.random.default_rng(5).normal(size=(64, 32)).astype(np.float32))
    convert_job(str(model), str(tmp_path / "m.xml"), {}, {}, {}, "fp32")
    return tmp_path / "m.xml"


def test_the_difference_is_that_of_the_plugins_own_hint(artifact):
    found = measure_job(str(artifact), data_request("random:0", "parity", samples=4))
    facts = found["metrics"]["default_precision"]
    own = ov.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    assert facts["hint"] == {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}[own]
    assert facts["differs"] == (own != "f32")
    assert [finding["code"] for finding in found["findings"]] == ["DK589"] * (own != "f32")
    if own == "bf16":
        assert 30 < facts["outputs"][0]["sqnr_db"] < 70  # 8 significant bits
        assert "moves output 'y'" in found["findings"][0]["message"]


def test_where_it_changes_nothing_it_says_so(onnx_file, tmp_path):
    model = onnx_file("agraph (int32[N,4] x) => (int32[N,4] y) { y = Neg (x) }")
    convert_job(str(model), str(tmp_path / "n.xml"), {}, {}, {}, "fp32")
    found = measure_job(str(tmp_path / "n.xml"), data_request("random:0", "parity", samples=4))
    facts = found["metrics"]["default_precision"]
    assert (facts["differs"], facts["outputs"][0]["exact"], found["findings"]) == (False, True, [])


@pytest.mark.slow
def test_convert_and_validate_report_it(onnx_file, tmp_path):
    model = onnx_file(NET, w=np.random.default_rng(5).normal(size=(64, 32)).astype(np.float32))
    made = deploykit.convert(model, to="openvino", output=tmp_path / "m.xml")
    again = deploykit.validate(model, tmp_path / "m.xml")
    for report in (made, again):
        assert not report.failed
        assert "default_precision" in report.metrics
        differs = report.metrics["default_precision"]["differs"]
        assert [finding.code for finding in report.findings].count("DK589") == differs
