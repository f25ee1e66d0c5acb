"""`check --fix` for engines that leave nodes to another one: nothing stops the model, a rewrite may keep it whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import deploykit
from deploykit.errors import ExitCode
from deploykit.isolation import workers
from deploykit.reference import Reference

TEXT = """<ir_version: 9, opset_import: ["" : 18]>
g (float[2,8] x) => (float[2,8] y) { a = Relu (x) [odd] b = %s (a) y = Relu (b) }"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


def written(path, operator):
    onnx.save(parser.parse_model(TEXT % operator), path)
    return path


def row(report):
    (found,) = report.metrics["targets"]
    return found


@pytest.mark.parametrize("operator", ["Mish", "HardSwish"])
def test_what_a_provider_leaves_is_rewritten_until_it_takes_it(tmp_path, operator):
    path, out = written(tmp_path / "model.onnx", operator), tmp_path / "fixed.onnx"
    before = deploykit.check(path, targets=["onnxruntime@nnapi"])
    assert row(before)["verdict"] == "runs in 2 partitions"
    (left,) = [finding for finding in before.findings if finding.code == "DK218"]
    assert f"--target onnxruntime@nnapi --fix -o {tmp_path / 'model-fixed.onnx'}" in left.hint
    report = deploykit.check(path, targets=["onnxruntime@nnapi"], fix=True, output=out)
    assert report.exit_code == ExitCode.OK
    assert (row(report)["verdict"], row(report)["unsupported"]) == ("runs whole", 0)
    feed = {"x": np.random.default_rng(0).normal(0, 3, (2, 8)).astype(np.float32)}
    wanted, found = (reference.predict(feed)["y"] for reference in (Reference(path), Reference(out)))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_what_no_rewrite_helps_is_kept_as_it_is_and_no_failure(tmp_path):
    path, out = written(tmp_path / "model.onnx", "Erf"), tmp_path / "fixed.onnx"
    report = deploykit.check(path, targets=["onnxruntime@nnapi"], fix=True, output=out)
    assert report.exit_code == ExitCode.OK
    assert row(report)["verdict"] == "runs in 2 partitions"
    assert [entry["node"] for entry in report.metrics["fix"]["left"]] == ["odd"]
    (told,) = [finding.message for finding in report.findings if finding.code == "DK243"]
    assert "takes every node" not in told
    assert out.read_bytes() == path.read_bytes()


def test_nodes_that_nobody_knows_of_are_not_said_to_be_taken(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(TEXT.replace("18", "20") % "Gelu"), path)
    report = deploykit.check(path, targets=["tensorrt@8.6"], fix=True, dry_run=True)
    assert row(report)["unknown"] > 0
    (told,) = [finding.message for finding in report.findings if finding.code == "DK243"]
    assert f"nobody knows of {row(report)['unknown']}" in told
