"""Memory of calibration: independent of the number of samples (microsoft/onnxruntime#10503, #11020, #21979)."""

import numpy as np
import pytest

import deploykit


@pytest.mark.serial
@pytest.mark.parametrize("method", ["minmax", "entropy", "auto"])
def test_peak_memory_does_not_grow_with_the_samples(shared, tmp_path, method):
    model = shared / "cases" / "calib_hist_memory.onnx"
    folder = tmp_path / "calib"
    folder.mkdir()
    name = next(iter(np.load(shared / "cases" / "calib_hist_memory.in0.npz")))
    for index in range(64):
        sample = np.random.default_rng(index).normal(size=(1, 1024, 256)).astype(np.float32)
        np.savez(folder / f"{index:02d}.npz", **{name: sample})
    peaks = {}
    for samples in (8, 64):
        report = deploykit.quantize(
            model,
            output=tmp_path / f"{samples}.onnx",
            precision="int8",
            calib=str(folder),
            method=method,
            samples=samples,
        )
        assert report.exit_code == 0
        assert report.metrics["calibration"]["samples"] == samples
        peaks[samples] = report.metrics["calibration"]["peak_rss_mb"]
    assert peaks[64] <= peaks[8] + 64
