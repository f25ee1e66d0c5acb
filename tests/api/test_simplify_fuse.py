"""`simplify --fuse`: onnxruntime's own operators where they are proven, the simplified model where not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import deploykit
from deploykit.isolation import workers
from deploykit.lazy import installed
from deploykit.optimizers import stage

pytestmark = pytest.mark.skipif(not installed("torch"), reason="no PyTorch here")
BLOCK = """
import math
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32) for _ in range(4))
        self.n1, self.n2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], 4, 8).permute(0, 2, 1, 3)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), -1)
        context = (weights @ v).permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[1], 32)
        x = self.n1(self.o(context) + x)
        return self.n2(self.down(nn.functional.gelu(self.up(x))) + x)
"""


@pytest.fixture(scope="module", autouse=True)
def pool():
    with workers() as found:
        yield found


@pytest.fixture(scope="module")
def block(pool, tmp_path_factory) -> Path:
    """A layer of BERT, exported by us."""
    folder = tmp_path_factory.mktemp("block")
    (folder / "block.py").write_text(BLOCK)
    out = folder / "block.onnx"
    dims = ["batch=1..4", "length=2..16"]
    deploykit.export(f"{folder / 'block.py'}:Block", output=out, inputs=["x:float32[batch,length,32]"], dims=dims)
    return out


def run(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_attention_becomes_one_operator_and_the_outputs_stay(block, tmp_path):
    out = tmp_path / "fused.onnx"
    report = deploykit.simplify(block, output=out, fuse=True)
    assert report.exit_code == 0
    assert report.metrics["fusions"] == {"Attention": 1, "BiasGelu": 1, "SkipLayerNormalization": 2}
    assert report.metrics["parity"]["samples"] >= 3
    assert (report.artifact.target, report.artifact.execution) == ("onnxruntime", "real")
    codes = {finding.code: finding.message for finding in report.findings}
    assert "1 Attention" in codes["DK645"]
    assert "onnxruntime only" in codes["DK647"]
    contrib = [node.op_type for node in onnx.load(out).graph.node if node.domain == "com.microsoft"]
    assert sorted(contrib) == ["Attention", "BiasGelu", "SkipLayerNormalization", "SkipLayerNormalization"]
    for shape in ((1, 2, 32), (3, 9, 32)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        np.testing.assert_allclose(run(out, x), run(block, x), rtol=1e-4, atol=1e-5)


def test_the_same_model_is_fused_to_the_same_bytes(block, tmp_path):
    for name in ("a.onnx", "b.onnx"):
        deploykit.simplify(block, output=tmp_path / name, fuse=True)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_without_the_option_nothing_is_fused(block, tmp_path):
    report = deploykit.simplify(block, output=tmp_path / "plain.onnx")
    assert "fusions" not in report.metrics
    assert report.artifact.target is None
    assert {node.domain for node in onnx.load(tmp_path / "plain.onnx").graph.node} == {""}


def test_a_model_without_attention_is_left_alone_and_says_so(tmp_path):
    text = '<ir_version: 8, opset_import: ["": 17]> agraph (float[n,4] x) => (float[n,4] y) { y = Softmax(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    report = deploykit.simplify(tmp_path / "in.onnx", output=tmp_path / "out.onnx", fuse=True)
    assert report.exit_code == 0
    assert report.metrics["fusions"] == {}
    assert {"DK640", "DK646"} <= {finding.code for finding in report.findings}
    assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "in.onnx").read_bytes()


def test_a_fusion_that_changes_the_outputs_is_not_used(block, tmp_path, monkeypatch):
    real = stage.run_isolated

    def isolated(name: str, function: str, arguments: dict, **options):
        answer = real(name, function, arguments, **options)
        if function.endswith(":fuse_job"):
            path = Path(arguments["output"])
            wrong = onnx.load(path)
            weight = next(w for w in wrong.graph.initializer if list(w.dims) == [32, 64])
            changed = onnx.numpy_helper.to_array(weight) * 1.1
            weight.CopyFrom(onnx.numpy_helper.from_array(changed, weight.name))
            onnx.save(wrong, path)
        return answer

    monkeypatch.setattr(stage, "run_isolated", isolated)
    report = deploykit.simplify(block, output=tmp_path / "out.onnx", fuse=True)
    assert report.metrics["fusions"] == {}
    assert any(f.code == "DK648" and f.severity == "warning" for f in report.findings)
    assert {node.domain for node in onnx.load(tmp_path / "out.onnx").graph.node} == {""}
