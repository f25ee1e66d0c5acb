"""Measuring with real processes, on graphs small enough to be quick."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from deploykit.benchmark import child, run_bench, subjects_of
from deploykit.benchmark.rounds import ROUNDS, _doubts
from deploykit.benchmark.subject import Subject, labels
from deploykit.comparison import describe
from deploykit.target import get_target, unavailable

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


def test_a_row_counts_all_blocks_together(models):
    subject = Subject(
        models["quick"], "onnxruntime fp32", facts={"load_s": 0.5, "rss_mb": {"base": 1.0, "loaded": 2.0}}
    )
    times = [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]
    subject.blocks = [
        {"latencies_ms": block, "rss_mb": 3.0 + at, "peak_mb": 9.0 - at, "waited_s": None, "cpu_s": 0.0}
        for at, block in enumerate(times)
    ]
    row = subject.row(batch=4)
    assert (row["p50_ms"], row["p99_ms"]) == (2.5, np.percentile(np.concatenate(times), 99))
    # 6 calls of 4 rows in 18 ms.
    assert row["throughput_per_s"] == pytest.approx(24 / 0.018)
    assert row["rss_mb"] == {"base": 1.0, "loaded": 2.0, "after": 4.0, "peak": 9.0}
    # Medians 2 and 4: quartiles 2.5 and 3.5 around 3.
    assert row["spread"] == pytest.approx(1 / 3)


def test_a_high_spread_and_an_unfinished_warm_up_are_warnings_with_their_number(models):
    subject = Subject(models["quick"], "onnxruntime fp32", warm={"stable": False})
    subject.blocks = [{"latencies_ms": [time], "waited_s": None} for time in (1.0, 1.0, 2.0, 2.0)]
    found = _doubts(subject, warmup_s=2.0)
    assert [(f.code, f.severity) for f in found] == [("DK441", "warning"), ("DK440", "warning")]
    assert "spread by 67%" in found[1].message
    subject.warm["stable"] = True
    subject.blocks = [{"latencies_ms": [time], "waited_s": None} for time in (1.0, 1.01, 1.02, 1.0)]
    assert _doubts(subject, warmup_s=2.0) == []


@pytest.mark.serial
def test_rows_are_whole_and_the_slower_model_is_slower(models):
    steps: list[Progress] = []
    artifacts = [models["slow"], models["quick"]]
    measured = run_bench(
        subjects_of(artifacts), DATA, batch=32, seconds=0.5, options={"threads": 1}, on_progress=steps.append
    )
    slow, quick = measured.rows()
    for row in (slow, quick):
        assert row["execution"] == "real"
        assert row["runtime"].startswith("onnxruntime")
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"]
        assert row["batch"] == 32
        memory = row["rss_mb"]
        assert 5 < memory["base"] < memory["loaded"] <= memory["peak"] < 2000
        assert memory["after"] <= memory["peak"]
        assert 0 < row["load_s"] < 30
        assert row["calls"] >= ROUNDS
    assert slow["p50_ms"] > 2 * quick["p50_ms"]
    assert slow["label"] == "onnxruntime fp32 (slow.onnx)"
    assert "random:0" in measured.findings[0].message
    turns = [step.item for step in steps if step.stage == "measuring"]
    assert turns[:4] == [slow["label"], quick["label"], quick["label"], slow["label"]]


@pytest.mark.serial
def test_all_artifacts_get_the_same_inputs_and_their_own_process(models, monkeypatch):
    calls = []
    real = Subject.call

    def spy(self, function, **arguments):
        calls.append((self.label, self.worker._process.pid, function, arguments.get("feeds")))
        return real(self, function, **arguments)

    monkeypatch.setattr(Subject, "call", spy)
    run_bench(subjects_of([models["quick"], models["slow"]]), DATA, seconds=0.1, warmup_s=0.2)
    loads = [call for call in calls if call[2] == "load_job"]
    assert loads[0][3] == loads[1][3]
    processes = {(label, pid) for label, pid, _, _ in calls}
    assert len(processes) == 2
    assert os.getpid() not in {pid for _, pid in processes}


def test_an_artifact_that_does_not_run_here_has_a_reason(tmp_path):
    if unavailable(get_target("tensorrt-rtx")) is None:
        pytest.skip("it runs on this machine")
    package = tmp_path / "m.engine"
    package.write_bytes(b"not an engine that runs here")
    measured = run_bench(subjects_of([describe(package)]), DATA, seconds=0.1)
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
