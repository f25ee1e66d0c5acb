"""TensorFlow sources that are random, or that have an input which changes nothing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnxruntime
import pytest

import deploykit
from deploykit.isolation import workers

pytest.importorskip("tensorflow")
MAKE = """
import sys
import tensorflow as tf

folder = sys.argv[1]
spec = tf.TensorSpec([None, 4], tf.float32, name="x")


class Noisy(tf.Module):
    @tf.function(input_signature=[spec])
    def __call__(self, x):
        return {"y": x + tf.random.normal(tf.shape(x))}


class Ignoring(tf.Module):
    @tf.function(input_signature=[spec, tf.TensorSpec([None], tf.int32, name="other")])
    def __call__(self, x, other):
        return {"y": x * 2}


for name, made in (("noisy", Noisy()), ("ignoring", Ignoring())):
    tf.saved_model.save(made, f"{folder}/{name}", signatures={"serving_default": made.__call__})
"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    subprocess.run([sys.executable, "-c", MAKE, str(folder)], check=True, capture_output=True)
    return folder


def test_a_random_model_fails(made, tmp_path):
    report = deploykit.export(made / "noisy", output=tmp_path / "x.onnx")
    assert report.exit_code == 1
    failed = next(finding for finding in report.findings if finding.severity == "error")
    assert failed.code == "DK685"
    assert "RandomNormal" in failed.message
    assert not list(tmp_path.glob("*"))


def test_an_input_that_changes_nothing_stays(made, tmp_path):
    out = tmp_path / "x.onnx"
    report = deploykit.export(made / "ignoring", output=out)
    assert report.exit_code == 0, report.findings
    assert {(spec.name, spec.dtype) for spec in report.artifact.inputs} == {("x", "float32"), ("other", "int32")}
    assert "DK619" in {finding.code for finding in report.findings}
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x, "other": np.ones(2, np.int32)})[0], x * 2)
