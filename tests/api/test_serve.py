from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import onnx
import pytest

import deploykit
from deploykit.api.serve import require_engine
from deploykit.errors import InvalidFileError, ModelError, UnavailableError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

RELU = '<ir_version: 8, opset_import: ["" : 17]> relu (float[n,2] x) => (float[n,2] y) { y = Relu(x) }'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(RELU), tmp_path / "my relu.onnx")
    return tmp_path / "my relu.onnx"


SERVE = """
import json, os, signal, sys, threading, deploykit

def ready(facts):
    print(json.dumps(facts), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

report = deploykit.serve(sys.argv[1], http_port=0, on_ready=ready)
print(json.dumps(report.as_dict()))
"""


def test_the_function_blocks_until_a_signal_and_reports(model: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SERVE, str(model)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    ready, report = map(json.loads, done.stdout.splitlines())
    assert ready["models"] == ["my relu"]
    assert report["status"] == "passed"
    assert report["metrics"]["engine"].startswith("onnxruntime")


def test_it_runs_in_a_thread_without_touching_signals(model: Path) -> None:
    import urllib.request

    ready: dict[str, Any] = {}
    is_ready = threading.Event()

    def on_ready(facts: dict[str, Any]) -> None:
        ready.update(facts)
        is_ready.set()

    options = {"http_port": 0, "log_level": 100, "on_ready": on_ready}
    threading.Thread(target=deploykit.serve, args=(model,), kwargs=options, daemon=True).start()
    assert is_ready.wait(30)
    request = urllib.request.Request(f"http://127.0.0.1:{ready['http']}/predict", b"[[-1, 2]]")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.load(answer) == {"y": [[0, 2]]}


def test_a_taken_port_is_exit_2(deploykit_cli: Any, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = deploykit_cli("serve", model, "--http-port", taken.getsockname()[1])
    assert done.code == 2
    assert "error[DK701]" in done.stderr
    assert "--http-port" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"host": "192.0.2.7"}, "DK702"),
        ({"name": "a/b"}, "DK703"),
        ({"name": ""}, "DK703"),
    ],
)
def test_wrong_options_are_refused_before_the_engine_is_loaded(model: Path, options: Any, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        deploykit.serve(model, http_port=0, **options)
    assert caught.value.code == code


def test_files_that_cannot_be_served(deploykit_cli: Any, tmp_path: Path, model: Path) -> None:
    with pytest.raises(InvalidFileError):
        deploykit.serve(tmp_path / "gone.onnx")
    (tmp_path / "text.onnx").write_text("not a model", encoding="utf-8")
    with pytest.raises((ModelError, InvalidFileError)):
        deploykit.serve(tmp_path / "text.onnx")
    custom = RELU.replace("Relu(", "Mystery(")
    onnx.save(onnx.parser.parse_model(custom), tmp_path / "custom.onnx")
    done = deploykit_cli("serve", tmp_path / "custom.onnx", "--http-port", 0)
    assert done.code == 1
    assert "Mystery" in done.stderr
    assert "ready" not in done.stdout


def test_an_artifact_that_does_not_run_here_is_exit_3(engine: Path) -> None:
    with pytest.raises(UnavailableError):
        deploykit.serve(engine, http_port=0)
    with pytest.raises(UnavailableError):
        require_engine(engine)


def test_a_broken_artifact_of_an_engine_that_is_not_here_is_exit_2(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    (tmp_path / "m.engine").write_bytes(b"x")
    with pytest.raises(InvalidFileError):
        deploykit.serve(tmp_path / "m.engine", http_port=0)


def test_a_provider_that_is_not_here_is_exit_3(deploykit_cli: Any, model: Path) -> None:
    done = deploykit_cli("serve", model, "--http-port", 0, "--provider", "qnn")
    assert done.code == 3
    assert "ready" not in done.stdout
