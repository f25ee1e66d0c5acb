"""The table of targets on published models: every cell is there, and is verified or says why not."""

import json
from pathlib import Path

import pytest

from deploykit.target import target_names

ROOT = Path(__file__).resolve().parents[1]
ROWS = json.loads((ROOT / "benchmarks" / "targets.json").read_text(encoding="utf-8"))["rows"]
ONNX = [name for name in ROWS if name.endswith(".onnx")]
# Of the 13 ONNX files, how many at least are verified on the real engine.
LEAST = {"onnxruntime": 13, "openvino": 11, "litert": 8, "mnn": 8, "tvm": 8, "ncnn": 6}
# Our own failures are no reasons: a bug, and a bound that was not passed on.
OURS = ("DK890", "DK100", "DK534")


def test_all_models_and_all_targets_are_there():
    assert len(ROWS) == 20
    assert len(ONNX) == 13
    assert {target for row in ROWS.values() for target in row} == set(target_names())


@pytest.mark.parametrize("model", ROWS)
def test_every_cell_is_verified_or_explained(model):
    for target, cell in ROWS[model].items():
        if cell["status"] == "verified":
            assert cell.get("samples", 1) > 0, target  # direct routes are proven by their exporter
        else:
            assert cell["status"] in ("simulated", "built", "bundle", "refused", "failed"), target
            assert cell["status"] == "simulated" or len(cell["because"]["message"]) > 15, target
        assert cell.get("because", {}).get("code") not in OURS, (target, cell["because"])


@pytest.mark.parametrize("target", LEAST)
def test_what_is_promised_is_verified(target):
    verified = [model for model in ONNX if ROWS[model].get(target, {}).get("status") == "verified"]
    assert len(verified) >= LEAST[target]


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
def test_what_the_first_two_refuse_names_its_node(target):
    for model in ONNX:
        cell = ROWS[model][target]
        assert cell["status"] == "verified" or cell["because"].get("node"), model
