"""Measuring with real processes, on graphs small enough to be quick."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from deploykit.benchmark import child, run_bench
from deploykit.benchmark.rounds import ROUNDS, labels
from deploykit.comparison import describe

if TYPE_CHECKING:
    from deploykit.progress import Progress

DATA = {"source": None, "samples": None, "seed": 0, "label": None, "dims": {}, "contract": None, "purpose": "bench"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A quick and a slow model of the same interface: one and sixteen products with a 256 x 256 matrix."""
    folder = tmp_path_factory.mktemp("models")
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) / 16
    made = {}
    for name, count in (("quick", 1), ("slow", 16)):
        names = ["x", *(f"h{i}" for i in range(1, count)), "y"]
        nodes = "\n".join(f"{b} = MatMul ({a}, w)" for a, b in itertools.pairwise(names))
        text = f"agraph (float[n,256] x, float[256,256] w) => (float[n,256] y) {{ {nodes} }}"
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')
        del model.graph.input[1]
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
        onnx.save(model, folder / f"{name}.onnx")
        made[name] = describe(folder / f"{name}.onnx")
    return made


@pytest.mark.serial
def test_rows_are_whole_and_the_slower_model_is_slower(models):
    steps: list[Progress] = []
    artifacts = [models["slow"], models["quick"]]
    measured = run_bench(artifacts, DATA, batch=32, seconds=0.5, options={"threads": 1}, on_progress=steps.append)
    slow, quick = measured.rows()
    for row in (slow, quick):
        assert row["execution"] == "real"
        assert row["runtime"].startswith("onnxruntime")
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["batch"] == 32
        # Throughput counts rows: batch x calls / time.
        assert 32e3 / row["p99_ms"] < row["throughput_per_s"] < 32e3 / row["p50_ms"] * 2
        memory = row["rss_mb"]
        assert 5 < memory["base"] < memory["loaded"] <= memory["peak"] < 2000
        assert memory["after"] <= memory["peak"]
        assert 0 < row["load_s"] < 30
        assert row["calls"] >= ROUNDS
    assert slow["p50_ms"] > 4 * quick["p50_ms"]
    assert slow["label"] == "onnxruntime fp32 (slow.onnx)"
    assert "random:0" in measured.findings[0].message
    turns = [step.item for step in steps if step.stage == "measuring"]
    assert turns[:4] == [slow["label"], quick["label"], quick["label"], slow["label"]]


@pytest.mark.serial
def test_all_artifacts_get_the_same_inputs_and_their_own_process(models, monkeypatch):
    from deploykit.benchmark import rounds

    calls = []
    real = rounds.Subject.call

    def spy(self, function, **arguments):
        calls.append((self.label, self.worker._process.pid, function, arguments.get("feeds")))
        return real(self, function, **arguments)

    monkeypatch.setattr(rounds.Subject, "call", spy)
    run_bench([models["quick"], models["slow"]], DATA, seconds=0.1, warmup_s=0.2)
    loads = [call for call in calls if call[2] == "load_job"]
    assert loads[0][3] == loads[1][3]
    processes = {(label, pid) for label, pid, _, _ in calls}
    assert len(processes) == 2
    assert os.getpid() not in {pid for _, pid in processes}


def test_an_artifact_that_does_not_run_here_has_a_reason(tmp_path):
    package = tmp_path / "m.engine"
    package.write_bytes(b"not an engine that runs here")
    measured = run_bench([describe(package)], DATA, seconds=0.1)
    (row,) = measured.rows()
    assert (row["execution"], row["p50_ms"], row["runtime"]) == ("none", None, None)
    assert row["reason"]
    assert [f.code for f in measured.findings] == ["DK443"]


def test_labels_are_unique(models):
    quick = models["quick"]
    assert labels([quick]) == ["onnxruntime fp32"]
    assert labels([quick, quick]) == ["onnxruntime fp32 (quick.onnx) #1", "onnxruntime fp32 (quick.onnx) #2"]


def test_peak_is_at_least_what_is_resident():
    assert child.peak_mb() >= child.resident_mb() * 0.99
    block = np.ones(40_000_000 // 8)
    high = child.peak_mb()
    del block
    assert child.peak_mb() >= high * 0.99
