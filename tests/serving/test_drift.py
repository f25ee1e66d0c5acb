"""Inputs of requests beside the calibration data, in the metrics; and the dashboard that shows them."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from deploykit.serving.drift import Profile, Watch, profiles_of
from deploykit.serving.pictures import Pictures

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
LOG = '<ir_version: 8, opset_import: ["" : 17]> drifting (float[n,2] x) => (float[n,2] y) { y = Sigmoid(x) }'


def test_profiles_are_those_of_all_samples_together() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(3, 2, (size, 4)).astype(np.float32) for size in (1, 7, 40)]
    whole = np.concatenate(parts).astype(np.float64)
    found = profiles_of({"x": part, "name": np.array(["a"], object)} for part in parts)
    assert set(found) == {"x"}
    expected = (whole.mean(), whole.std(), whole.min(), whole.max())
    assert (found["x"].mean, found["x"].std, found["x"].low, found["x"].high) == pytest.approx(expected)


def test_values_without_a_number_do_not_count() -> None:
    found = profiles_of([{"x": np.array([1.0, np.nan, np.inf, 3.0])}, {"x": np.array([np.nan])}, {"x": np.array([])}])
    assert found["x"] == Profile(2, 1, 1, 3)


def test_requests_like_the_data_do_not_drift_and_others_do() -> None:
    rng = np.random.default_rng(1)
    watch = Watch({"x": Profile(0, 1, -3, 3)})
    assert watch.figures() == {}
    for _ in range(400):
        watch.see({"x": rng.normal(0, 1, (8, 16)), "other": np.ones(1)})
    calm = watch.figures()["x"]
    assert abs(calm.shift) < 0.05
    assert calm.std == pytest.approx(1, abs=0.05)
    assert calm.outside < 0.01
    for _ in range(400):
        watch.see({"x": rng.normal(5, 1, (8, 16))})
    moved = watch.figures()["x"]
    assert moved.shift > 4
    assert moved.outside > 0.9


def test_images_constants_and_large_tensors() -> None:
    watch = Watch({"x": Profile(2, 0, 2, 2)})
    watch.see({"x": Pictures((b"png",))})
    assert watch.figures() == {}
    watch.see({"x": np.full((1, 3, 512, 512), 4, np.uint8)})
    assert watch.figures()["x"].shift == 1
    assert watch.figures()["x"].outside == 1


@pytest.fixture(scope="module")
def page(start: Callable[..., Any], model_file: Callable[[str, str], Path], tmp_path_factory: Any) -> str:
    data = tmp_path_factory.mktemp("calib") / "calib.npz"
    np.savez(data, x=np.array([[0, 1], [2, 3]], np.float32))
    server = start(model_file("drifting", LOG), "--calib", data)
    assert server.call("POST", "/predict", [[9, 9]]).status == 200
    assert server.call("POST", "/predict", [[9]]).status == 400
    text = server.call("GET", "/metrics").body.decode()
    server.stop()
    return text


def test_drift_is_in_the_metrics(page: str) -> None:
    said = dict(re.findall(r'deploykit_input_(\w+)\{input="x",model="drifting"\} (\S+)', page))
    assert float(said["mean"]) == 9
    assert float(said["outside"]) == 1
    assert float(said["shift"]) == pytest.approx((9 - 1.5) / np.std([0, 1, 2, 3]))


def test_the_dashboard_asks_for_nothing_that_is_not_exported(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\b(?:deploykit|process)_\w+", query)}
    # Families are there from the start, those with labels before their first value.
    families = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    exported = families | {f"{name}_{end}" for name in families for end in ("bucket", "sum", "count")}
    assert len(asked) > 12
    assert {name for name in asked if not name.startswith("deploykit_gpu_")} <= exported
    assert {name for name in asked if name.startswith("deploykit_gpu_")} <= gpu_families(monkeypatch)
    labels = {label for query in queries for label in re.findall(r"by \(([^)]*)\)", query)}
    assert labels <= {"model, code", "le, model", "model", "reason"}


def gpu_families(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    from prometheus_client import CollectorRegistry, generate_latest

    from deploykit.serving import gpu

    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = RuntimeError  # type: ignore[attr-defined]
    nvml.nvmlInit = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetCount = lambda: 1  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(used=2, total=8)  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=50)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    registry = CollectorRegistry()
    gpu.collector(registry)()
    text = generate_latest(registry).decode()
    assert 'deploykit_gpu_utilization_ratio{gpu="0"} 0.5' in text
    assert 'deploykit_gpu_memory_used_bytes{gpu="0"} 2.0' in text
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


def test_without_a_gpu_nothing_of_it_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from deploykit.serving import gpu

    def no_driver() -> None:
        raise RuntimeError("no driver")

    nvml = types.ModuleType("pynvml")
    nvml.NVMLError, nvml.nvmlInit = RuntimeError, no_driver  # type: ignore[attr-defined]
    for module in (None, nvml):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        registry = CollectorRegistry()
        gpu.collector(registry)()
        assert generate_latest(registry) == b""


def test_enormous_values_leave_figures_that_are_numbers(recwarn: pytest.WarningsRecorder) -> None:
    watch = Watch({"x": Profile(0, 1, -3, 3)})
    for value in (1e308, -1e308, 1.0):
        watch.see({"x": np.full(3, value)})
    figures = watch.figures()["x"]
    assert np.isfinite([figures.mean, figures.std, figures.shift, figures.outside]).all()
    assert not recwarn.list
