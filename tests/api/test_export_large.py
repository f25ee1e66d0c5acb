"""More than 2 GB of weights: one data file beside the model; memory of 2.5 times the weights at most in a process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import onnx
import psutil
import pytest

SIDE, LAYERS = 12000, 4
WEIGHTS = 4 * SIDE * SIDE * LAYERS
MODULE = f"""
import torch
from torch import nn


class Big(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Linear({SIDE}, {SIDE}, bias=False, device="meta") for _ in range({LAYERS})]
        self.layers = nn.ModuleList(layers).to_empty(device="cpu")
        with torch.no_grad():
            for at, layer in enumerate(self.layers):
                layer.weight.zero_()
                layer.weight.diagonal().fill_(1.0 + at)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


def watch(process: subprocess.Popen, peaks: dict[int, int]) -> None:
    """Notes the largest resident size of each process below the command, mapped files left out."""
    while process.poll() is None:
        try:
            found = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in found:
                memory = one.memory_info()
                peaks[one.pid] = max(peaks.get(one.pid, 0), memory.rss - memory.shared)
        except psutil.Error:
            continue
        finally:
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("exporter", ["dynamo"])
def test_more_than_two_gigabytes(tmp_path, exporter):
    if psutil.virtual_memory().available < 3.5 * WEIGHTS:
        pytest.skip("not enough free memory")
    (tmp_path / "big.py").write_text(MODULE)
    out = tmp_path / "out" / "big.onnx"
    out.parent.mkdir()
    command = [sys.executable, "-m", "deploykit", "export", f"{tmp_path / 'big.py'}:Big", "-o", str(out), "--json"]
    command += ["--input", f"x:float32[batch,{SIDE}]", "--dim", "batch=1..3", "--exporter", exporter]
    peaks: dict[int, int] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        watcher = threading.Thread(target=watch, args=(process, peaks))
        watcher.start()
        document = json.loads(process.communicate()[0])
        watcher.join()
    assert document["status"] == "passed", document
    assert sorted(file.name for file in out.parent.iterdir()) == [
        "big.onnx",
        "big.onnx.data",
        "big.onnx.deploykit.json",
    ]
    assert (out.parent / "big.onnx.data").stat().st_size >= WEIGHTS
    assert {len(entry.dims) for entry in onnx.load(out, load_external_data=False).graph.initializer} == {2}
    assert document["metrics"]["parity"]["proven"]["batch"] == [1, 2, 3]
    assert max(peaks.values()) <= 2.5 * WEIGHTS, {pid: peak / WEIGHTS for pid, peak in peaks.items()}
