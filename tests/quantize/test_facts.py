"""One reading of a model serves the description, the work and the comparison."""

from __future__ import annotations

import os

import pytest
from quantize_models import onnx_text

from deploykit import graph
from deploykit.errors import InvalidFileError
from deploykit.quantize import facts, jobs
from deploykit.quantize.prepare import load_float

TEXT = "g (float[N,8] x) => (float[N,8] y) { y = Relu (x) }"
RANDOM = "g (float[2,8] x) => (float[2,8] y) { n = RandomNormalLike (x)  y = Add (x, n) }"


@pytest.fixture
def reads(monkeypatch):
    """Names of the files that are read."""
    found = []
    load = graph.load

    def counted(path):
        found.append(path.name)
        return load(path)

    monkeypatch.setattr(graph, "load", counted)
    facts._facts.clear()
    facts._loaded.clear()
    return found


def test_a_model_is_read_once(tmp_path, reads):
    path = onnx_text(TEXT, tmp_path / "m.onnx")
    told = jobs.describe_job(str(path), None)
    assert told["model"]["inputs"][0]["shape"] == ["N", 8]
    model, _ = load_float(path)
    assert [node.op_type for node in model.graph] == ["Relu"]
    assert [spec.name for spec in facts.facts_of(path).inputs] == ["x"]
    assert reads == ["m.onnx"]
    again, _ = load_float(path)  # the first one belongs to whoever took it, and may have changed
    assert again is not model
    assert reads == ["m.onnx"] * 2


def test_a_file_that_was_replaced_is_read_again(tmp_path, reads):
    path = onnx_text(TEXT, tmp_path / "m.onnx")
    assert facts.facts_of(path).stochastic == ()
    jobs.describe_job(str(path), None)
    onnx_text(RANDOM, path)
    os.utime(path, ns=(1, 1))
    assert "RandomNormalLike" in facts.facts_of(path).stochastic[0]
    assert [node.op_type for node in facts.take(path).graph] == ["RandomNormalLike", "Add"]


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(InvalidFileError):
        facts.take(tmp_path / "none.onnx")
