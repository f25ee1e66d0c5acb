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


def wait_for(condition, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the work never got there"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no such signals to one process")
@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, "SIGINT") for name in CALLS),
        *((name, "SIGTERM") for name in ("quantize", "run")),
        ("convert", "SIGHUP"),
    ],
)
def test_an_interrupted_command_leaves_nothing(folder: Path, name: str, number: str) -> None:
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
    process.send_signal(getattr(signal, number))
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # an impatient second one must not stop the tidying up
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert json.loads(out)["exit_code"] == 130
    assert "Traceback" not in err
    left = {path.name for path in folder.iterdir()} - {"model.onnx", "slow.py", "reached", "deploykit-out"}
    assert left == set()
    # What a run has finished stays, to be resumed from; nothing unfinished is among it.
    assert not [path for path in (folder / "deploykit-out").rglob("*") if ".tmp" in path.name]
    wait_for(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers), 60)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no such signals to one process")
def test_an_interrupt_before_the_command_is_one_document_too(folder: Path) -> None:
    early = (
        "import os, signal, sys, deploykit.cli.app as app;"
        "from deploykit.cli import app;"
        "app.LazyGroup.get_command = lambda *_: os.kill(os.getpid(), signal.SIGINT);"
        "sys.exit(app.main(['inspect', 'model.onnx', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", early], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130
    assert json.loads(done.stdout)["findings"][0]["code"] == "DK891"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no such signals to one process")
def test_an_interrupt_while_the_answer_is_made_is_one_document_too(folder: Path) -> None:
    late = (
        "import os, signal, sys; from deploykit import render; from deploykit.cli import app;"
        "real, calls, stop = render.render, [], lambda: os.kill(os.getpid(), signal.SIGINT);"
        "render.render = lambda *a: (calls.append(1), len(calls) == 1 and stop(), real(*a))[2];"
        "sys.exit(app.main(['inspect', 'model.onnx', '--json']))"
    )
    done = subprocess.run([sys.executable, "-c", late], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130, done.stderr
    assert json.loads(done.stdout)["exit_code"] == 130
