"""The preprocessing contract travels in the manifests, from whoever gave it to whoever serves the artifact."""

from __future__ import annotations

import json

import onnx
import pytest

import deploykit
from deploykit.data.stated import stated_contract

TEXT = """<ir_version: 8, opset_import: ["" : 17]> colours (float[n,3,8,8] image) => (float[n,3] mean)
{ mean = ReduceMean<axes = [2, 3], keepdims = 0>(image) }"""
CONTRACT = {"image": {"preprocess": {"resize": [8, 8], "scale": 1 / 255}}}


@pytest.fixture
def model(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_convert_hands_it_on(model, tmp_path):
    first, second = tmp_path / "a.onnx", tmp_path / "b.onnx"
    assert stated_contract(model) is None
    deploykit.convert(model, to="onnxruntime", output=first, contract=CONTRACT, dims=["n=1..4"])
    said = stated_contract(first)
    assert said["image"]["preprocess"]["scale"] == pytest.approx(1 / 255)
    deploykit.convert(first, to="onnxruntime", output=second, dims=["n=1..4"])
    assert stated_contract(second) == said


def test_a_manifest_of_other_files_states_nothing(model, tmp_path):
    made = tmp_path / "a.onnx"
    deploykit.convert(model, to="onnxruntime", output=made, contract=CONTRACT, dims=["n=1..4"])
    made.write_bytes(made.read_bytes() + b"\x00")
    assert stated_contract(made) is None
    (tmp_path / "a.onnx.deploykit.json").write_text(json.dumps({"schema": "other"}))
    assert stated_contract(made) is None
