"""Ctrl-C and SIGTERM in the middle of work: exit 130, said once, nothing half-written, no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import onnx
import psutil
import pytest

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[n,4] x) => (float[n,4] y) <float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> { y = MatMul(x, w) }
"""
# Says on stderr that the work has reached it, and then takes longer than any test.
SLOW = """
import sys, time
from pathlib import Path
import numpy as np


def feeds():
    yield {"x": np.zeros((1, 4), np.float32)}
    Path(__file__).with_name("reached").touch()
    time.sleep(120)
    yield {"x": np.zeros((1, 4), np.float32)}


def factory():
    Path(__file__).with_name("reached").touch()
    time.sleep(120)
"""
CALLS = {
    "export": "export slow.py:factory -o out.onnx --input x:float32[1,4]",
    "quantize": "quantize model.onnx -o out.onnx --precision int8 --calib slow.py:feeds",
    "convert": "convert model.onnx --to openvino -o out.xml --data slow.py:feeds --dim n=1..2",
    "validate": "validate model.onnx model.onnx --data slow.py:feeds",
    "run": "run model.onnx --to onnxruntime --precision int8 --calib slow.py:feeds --dim n=1..2",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "model.onnx")
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    return tmp_path


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the work never got there"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no such signals to one process")
@pytest.mark.parametrize(("name", "number"), [*((name, signal.SIGINT) for name in CALLS), ("quantize", signal.SIGTERM)])
def test_an_interrupted_command_leaves_nothing(folder: Path, name: str, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "deploykit", *CALLS[name].split(), "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    wait_for(lambda: (folder / "reached").exists() or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert json.loads(out)["exit_code"] == 130
    assert "Traceback" not in err
    left = {path.name for path in folder.iterdir()} - {"model.onnx", "slow.py", "reached", "deploykit-out"}
    assert left == set()
    # What a run has finished stays, to be resumed from; nothing unfinished is among it.
    assert not [path for path in (folder / "deploykit-out").rglob("*") if ".tmp" in path.name]
    wait_for(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers), 10)
