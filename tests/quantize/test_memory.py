"""Memory of calibration: independent of the number of samples (microsoft/onnxruntime#10503, #11020, #21979)."""

import subprocess
import sys
import textwrap
from typing import get_args

import numpy as np
import pytest

import deploykit
from deploykit.quantize.thresholds import Method

# One process a measurement: the high-water mark of the process is what counts, not what is seen between two steps.
MEASURE = """
    import resource, sys
    from pathlib import Path
    from deploykit.data import data_request
    from deploykit.progress import silent
    from deploykit.quantize.static import StaticQuantizer
    from deploykit.quantize.settings import Settings
    from deploykit.target import QuantizationScheme

    model, data, method, samples = sys.argv[1:]
    request = data_request(data, "calibration", samples=int(samples))
    settings = Settings(scheme=QuantizationScheme(), data=request, method=method)
    found = StaticQuantizer(Path(model), settings, silent)
    assert found.measured.ranges.samples == int(samples)
    scale = 2**20 if sys.platform == "darwin" else 2**10
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale)
"""


def peak_mb(model, data, method, samples):
    command = [sys.executable, "-c", textwrap.dedent(MEASURE), str(model), str(data), method, str(samples)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calib")
    for index in range(64):
        sample = np.random.default_rng(index).normal(size=(1, 1024, 256)).astype(np.float32)
        np.savez(folder / f"{index:02d}.npz", x=sample)
    return folder


@pytest.mark.serial
@pytest.mark.skipif(sys.platform == "win32", reason="resource is not there")
@pytest.mark.parametrize("method", get_args(Method))
def test_peak_memory_does_not_grow_with_the_samples(shared, samples, method):
    model = shared / "cases" / "calib_hist_memory.onnx"
    assert peak_mb(model, samples, method, 64) - peak_mb(model, samples, method, 8) <= 32


@pytest.mark.serial
def test_the_report_has_the_peak(shared, samples, tmp_path):
    model = shared / "cases" / "calib_hist_memory.onnx"
    report = deploykit.quantize(
        model, output=tmp_path / "out.onnx", precision="int8", calib=str(samples), method="entropy", samples=8
    )
    assert report.exit_code == 0
    assert report.metrics["calibration"]["samples"] == 8
    assert 50 < report.metrics["calibration"]["peak_rss_mb"] < 2000
