"""`--json` of every command on a real model: one document on stdout, nothing else, in the shape of the contract."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import jsonschema
import onnx
import pytest

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[n,4] x) => (float[n,4] y) <float[4,4] w = {1,2,3,4, 0,1,0,0, 0,0,1,0, 0.5,0,0,1}> {
    h = MatMul(x, w)
    y = Relu(h)
}
"""
TEXT = {"type": "string", "minLength": 1}
OPTIONAL_TEXT = {"type": ["string", "null"]}
SPECS = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name", "dtype", "shape"],
        "properties": {"name": TEXT, "dtype": TEXT, "shape": {"type": ["array", "null"]}},
        "additionalProperties": False,
    },
}
ARTIFACT = {
    "type": "object",
    "properties": {
        "path": TEXT,
        "format": TEXT,
        "target": OPTIONAL_TEXT,
        "precision": TEXT,
        "opset": {"type": ["integer", "null"]},
        "size_bytes": {"type": "integer", "minimum": 1},
        "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "inputs": SPECS,
        "outputs": SPECS,
        "parent_sha256": OPTIONAL_TEXT,
        "execution": {"enum": ["real", "simulated", "none"]},
    },
    "additionalProperties": False,
}
ARTIFACT["required"] = list(ARTIFACT["properties"])
FINDING = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "pattern": "^DK[0-9]{3}$"},
        "severity": {"enum": ["error", "warning", "note"]},
        "message": TEXT,
        "hint": {"type": "string"},
        **dict.fromkeys(("target", "node", "op", "tensor", "scope"), OPTIONAL_TEXT),
    },
    "additionalProperties": False,
}
FINDING["required"] = list(FINDING["properties"])
DOCUMENT = {
    "type": "object",
    "properties": {
        "schema": {"const": "deploykit.report/1"},
        "deploykit": TEXT,
        "command": TEXT,
        "status": {"enum": ["passed", "failed", "error"]},
        "exit_code": {"enum": [0, 1, 2, 3, 4, 70, 130]},
        "artifacts": {"type": "array", "items": ARTIFACT},
        "artifact": {"anyOf": [ARTIFACT, {"type": "null"}]},
        "findings": {"type": "array", "items": FINDING},
        "metrics": {"type": "object"},
        "seconds": {"type": "number", "minimum": 0},
    },
    "additionalProperties": False,
}
DOCUMENT["required"] = list(DOCUMENT["properties"])

# Command line -> metrics that must be there, as paths.
CALLS = {
    "simplify model.onnx -o out.onnx": (),
    "check model.onnx --target all --dim n=1..4": ("targets.0.name", "targets.0.supported", "targets.0.verdict"),
    "quantize model.onnx -o out.onnx --precision fp16": ("quantized_nodes", "float_nodes", "size_ratio"),
    "quantize model.onnx -o out.onnx --precision int8 --calib random": (
        "calibration.samples",
        "int8_macs_share",
        "outputs.0.sqnr_db",
        "samples",
        "first_divergence",
    ),
    "validate model.onnx model.onnx": ("outputs.0.max_abs", "outputs.0.sqnr_db", "outputs.0.exact", "samples"),
    "bench model.onnx --seconds 0.2": ("rows.0.p50_ms", "rows.0.p99_ms", "rows.0.rss_mb.peak", "rows.0.load_s"),
    "inspect model.onnx": ("opset", "operators", "parameters", "macs"),
    "doctor": ("extras.0.name", "machine.python"),
    "targets": ("targets.0.name", "targets.0.check", "targets.0.convert", "targets.0.run", "targets.0.missing"),
    "explain DK801": ("codes.0.title",),
    "init model.onnx": ("config",),
    "run model.onnx --to onnxruntime --dry-run": ("steps.0.step",),
}


def at(value, path: str):
    for part in path.split("."):
        value = value[int(part)] if part.isdecimal() else value[part]
    return value


@pytest.mark.parametrize("call", CALLS)
def test_a_document_in_the_shape_of_the_contract(deploykit_cli, tmp_path: Path, call: str) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    done = deploykit_cli(*call.split(), "--json", cwd=tmp_path)
    document = done.json
    jsonschema.validate(document, DOCUMENT)
    assert done.stderr == ""
    assert document["command"] == call.split()[0]
    assert document["exit_code"] == done.code == 0, document["findings"]
    for path in CALLS[call]:
        at(document["metrics"], path)
    for made in document["artifacts"]:
        if made["format"] == "onnx" and made["path"] != "model.onnx":
            assert made["sha256"] == hashlib.sha256((tmp_path / made["path"]).read_bytes()).hexdigest()
            assert made["size_bytes"] == (tmp_path / made["path"]).stat().st_size


def test_the_artifact_is_the_first_of_the_artifacts(deploykit_cli, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    document = deploykit_cli("inspect", "model.onnx", "--json", cwd=tmp_path).json
    assert document["artifact"] == document["artifacts"][0]


def test_format_json_of_check_is_the_same_document(deploykit_cli, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    call = ("check", "model.onnx", "--target", "onnxruntime")
    documents = [deploykit_cli(*call, *how, cwd=tmp_path).json for how in (["--json"], ["--format", "json"])]
    for document in documents:
        document["seconds"] = 0
    assert documents[0] == documents[1]
