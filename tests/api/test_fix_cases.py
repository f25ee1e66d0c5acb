"""`check --fix` on models beside the checkout: the recorded values of each case hold for what was written."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import deploykit
from deploykit.errors import ExitCode
from deploykit.isolation import workers
from deploykit.reference import Reference

CASES = [
    ("sequence_ops", "openvino", {"SplitToSequence", "ConcatFromSequence"}),
    ("sequence_ops", "tensorrt-rtx", {"SplitToSequence", "ConcatFromSequence"}),
]


@pytest.fixture(scope="module", autouse=True)
def pool():
    """The targets' processes, shared by the whole module."""
    with workers() as found:
        yield found


@pytest.mark.parametrize(("name", "target", "gone"), CASES)
def test_the_case_is_cured_and_keeps_its_values(shared, tmp_path, name, target, gone):
    folder = shared / "cases"
    entries = json.loads((folder / "index.json").read_text(encoding="utf-8"))["cases"]
    case = next(entry for entry in entries if entry["name"] == name)
    path, out = folder / case["file"], tmp_path / "fixed.onnx"
    assert deploykit.check(path, targets=[target]).exit_code == ExitCode.GATE_FAILED
    report = deploykit.check(path, targets=[target], fix=True, output=out)
    assert report.exit_code == ExitCode.OK, report.findings
    assert not gone & {node.op_type for node in onnx.load(out).graph.node}
    assert deploykit.check(out, targets=[target]).exit_code == ExitCode.OK
    reference = Reference(out)
    compared = 0
    for files in case["io"]:
        if not files["expected"]:
            continue
        found = reference.predict(dict(np.load(folder / files["inputs"])))
        for key, expected in np.load(folder / files["expected"]).items():
            np.testing.assert_allclose(found[key], expected, rtol=1e-5, atol=1e-6)
            compared += 1
    reference.close()
    assert compared
