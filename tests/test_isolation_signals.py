"""Signals reach a whole process group: the worker leaves them to its parent, and nothing of it stays behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from deploykit.errors import VendorError
from deploykit.isolation import Worker

VENDOR = """
import os, subprocess, sys, time

def me():
    return os.getpid()

def copy_a_model_and_wait():
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        open(folder + "/tapped.onnx", "w").write("weights")
        print("written", flush=True)
        time.sleep(600)

def temporary():
    import tempfile
    return tempfile.gettempdir()

def hang(path):
    open(path, "w").write("here")
    time.sleep(600)

def end_a_program():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child.terminate()
    return child.wait(timeout=30)

def end_a_fork():
    child = os.fork()
    if not child:
        time.sleep(600)
    time.sleep(0.2)
    os.kill(child, 15)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def print_and_fail(output):
    print("x" * 5000, flush=True)
    raise AssertionError

def write_much(output):
    with open(output, "wb") as stream:
        stream.write(bytes(5000))

def run_a_session():
    import onnxruntime
    from onnx import parser
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Relu(x) }')
    onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
"""
needs_posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "temporary").mkdir()
    (tmp_path / "code" / "signal_vendor.py").write_text(VENDOR)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    found = Worker("fake")
    yield found
    found.kill()


@needs_posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_to_the_group_is_left_to_the_parent(worker, name):
    process = worker.call("signal_vendor:me", {})
    os.kill(process, getattr(signal, name))
    assert worker.call("signal_vendor:me", {}) == process


@needs_posix
@pytest.mark.parametrize("function", ["end_a_program", "end_a_fork"])
def test_what_the_vendor_starts_can_be_ended(worker, function):
    assert worker.call(f"signal_vendor:{function}", {}) == -signal.SIGTERM


def test_a_worker_ended_on_purpose_keeps_no_request(worker, tmp_path):
    def end():
        while not (tmp_path / "here").exists():
            time.sleep(0.02)
        worker.kill()

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(VendorError) as caught:
        worker.call("signal_vendor:hang", {"path": str(tmp_path / "here")})
    thread.join()
    assert caught.value.reproduce == ""
    assert not list((tmp_path / "temporary").iterdir())


def test_a_worker_that_ends_while_its_pool_does_keeps_no_request(worker, tmp_path):
    process = worker.call("signal_vendor:me", {})

    def end():
        while not (tmp_path / "here").exists():
            time.sleep(0.02)
        worker.finish()
        os.kill(process, signal.SIGKILL)

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(VendorError) as caught:
        worker.call("signal_vendor:hang", {"path": str(tmp_path / "here")})
    thread.join()
    assert caught.value.reproduce == ""
    assert not list((tmp_path / "temporary").iterdir())


def test_onnxruntime_phones_nobody_and_leaves_no_file(worker, tmp_path):
    worker.call("signal_vendor:run_a_session", {})
    assert not [path for path in (tmp_path / "temporary").rglob("*") if path.is_file()]


@needs_posix
@pytest.mark.parametrize("function", ["write_much", "print_and_fail"])
def test_a_full_disk_is_named_though_the_log_is_on_it(tmp_path, function):
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024));"
        "from deploykit.isolation import run_isolated; from deploykit.errors import DeploykitError\n"
        f"try: run_isolated('fake', 'signal_vendor:{function}', {{'output': 'out.bin'}})\n"
        "except DeploykitError as problem: print(problem.code)"
    )
    (tmp_path / "signal_vendor.py").write_text(VENDOR)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "DK125\n", done.stderr


@pytest.mark.parametrize("end", ["kill", "close"])
def test_temporary_files_go_with_the_process_that_made_them(worker, tmp_path, end):
    folder = worker.call("signal_vendor:temporary", {})
    assert Path(folder).parent == tmp_path / "temporary"
    getattr(worker, end)()
    assert not list((tmp_path / "temporary").iterdir())


def test_a_call_that_is_ended_leaves_no_copy_of_a_model(worker, tmp_path):
    with pytest.raises(VendorError):
        worker.call("signal_vendor:copy_a_model_and_wait", {}, timeout=2)
    worker.close()
    assert not list((tmp_path / "temporary").rglob("tapped.onnx"))
