"""Vendor code crashes, prints, hangs and lies in its own process, and what it did can be run again."""

import json
import os
import shlex
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from deploykit import io
from deploykit.errors import (
    DataError,
    ExitCode,
    GateError,
    MissingDependencyError,
    ModelError,
    OutputError,
    UnavailableError,
    VendorError,
)
from deploykit.isolation import LOG_LINES, Worker, WorkerPool, run_isolated, workers

VENDOR = """
import ctypes, os, signal, subprocess, sys, time

COUNT = 0

def add(a, b):
    return a + b

def count():
    global COUNT
    COUNT += 1
    return [os.getpid(), COUNT]

def noisy(text):
    print(text)
    sys.stderr.write(text)
    os.write(1, b"straight to the descriptor")
    subprocess.run([sys.executable, "-c", "print('from a grandchild')"], check=True)
    return "quiet"

def segfault(lines=0):
    for i in range(lines):
        print(f"line {i}")
    sys.stdout.flush()
    ctypes.string_at(0)

def die(code):
    print("last words")
    sys.stdout.flush()
    os._exit(code)

def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)

def leave():
    sys.exit(3)

def hang(path=None):
    if path:
        open(path, "w").write(str(os.getpid()))
    time.sleep(600)

def fail(message):
    raise ValueError(message)

def ask():
    return input("password? ")

def odd():
    return {1, 2}

def not_a_number():
    return float("nan")

def data_error():
    from deploykit.errors import DataError
    raise DataError("sample 3", code="DK312", tensor="x", context=["expected"], hint="do")

def gate_error():
    from deploykit.errors import GateError
    raise GateError("no", node="n")

def disk_full(output):
    raise OSError(28, "No space left on device", output)

def steps(n, on_progress):
    from deploykit.progress import Progress
    for i in range(n):
        on_progress(Progress("working", f"item {i}", i + 1, n))
    return n

def steps_then_die(n, on_progress):
    steps(n, on_progress)
    time.sleep(1)
    os._exit(3)

def imports(name):
    __import__(name)
    return True

def needs(path, output):
    text = open(path).read()
    open(output, "w").write(text)
    raise ValueError(f"read {text}")

def environment(name):
    return os.environ.get(name)
"""


@pytest.fixture
def vendor(tmp_path, monkeypatch):
    folder = tmp_path / "vendor code"
    folder.mkdir()
    (folder / "fake_vendor.py").write_text(VENDOR)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def worker(vendor):
    found = Worker("fake")
    yield found
    found.kill()


def failing(worker, function, *, kind=VendorError, timeout=None, **arguments):
    with pytest.raises(kind) as caught:
        worker.call(f"fake_vendor:{function}", arguments, timeout=timeout)
    return caught.value


def test_calls_share_a_process(worker):
    assert worker.call("fake_vendor:add", {"a": "größe ", "b": "模型"}) == "größe 模型"
    (first, one), (second, two) = (worker.call("fake_vendor:count", {}) for _ in range(2))
    assert (first == second != os.getpid(), one, two) == (True, 1, 2)
    assert np.isnan(worker.call("fake_vendor:not_a_number", {}))


def test_our_stdout_stays_clean(worker, capfd):
    assert worker.call("fake_vendor:noisy", {"text": "noise\n"}) == "quiet"
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    log = worker.log_since(0)
    assert log[:2] == ["noise", "noise"]
    assert log[2:] == ["straight to the descriptorfrom a grandchild"]


def test_a_crash_names_its_signal_and_the_last_lines(worker):
    error = failing(worker, "segfault", lines=50)
    assert "SIGSEGV" in error.message
    assert "fake_vendor:segfault" in error.message
    assert (error.code, error.exit_code) == ("DK511", ExitCode.VENDOR_FAILED)
    assert error.log == tuple(f"line {i}" for i in range(50 - LOG_LINES, 50))
    assert not worker.alive


def test_being_killed_hints_at_memory(worker):
    error = failing(worker, "kill_itself")
    assert "SIGKILL" in error.message
    assert "memory" in error.hint


def test_an_exit_is_told(worker):
    error = failing(worker, "die", code=7)
    assert "exit code 7" in error.message
    assert error.log == ("last words",)


def test_sys_exit_of_vendor_code_is_a_failure_not_an_end(worker):
    assert "SystemExit: 3" in failing(worker, "leave").message
    assert worker.call("fake_vendor:add", {"a": 1, "b": 2}) == 3


def test_timeout(worker):
    started = time.monotonic()
    error = failing(worker, "hang", timeout=1.0)
    assert time.monotonic() - started < 120  # of the 600 that it hangs
    assert error.code == "DK512"
    assert "1 s" in error.message


def test_a_call_within_its_time_is_not_killed_later(worker):
    worker.call("fake_vendor:add", {"a": 1, "b": 1})  # its start takes as long as the machine is busy
    assert worker.call("fake_vendor:add", {"a": 1, "b": 1}, timeout=2) == 2
    time.sleep(2.2)
    assert worker.call("fake_vendor:add", {"a": 1, "b": 1}) == 2


def test_an_exception_is_told_with_the_log_of_its_own_call(worker):
    worker.call("fake_vendor:noisy", {"text": "earlier noise\n"})
    error = failing(worker, "fail", message="bad axis")
    assert error.message == "fake failed: ValueError: bad axis"
    assert error.code == "DK510"
    assert not any("earlier noise" in line for line in error.log)


def test_vendor_code_gets_no_answer_from_our_channel(worker):
    assert "EOFError" in failing(worker, "ask").message
    assert worker.call("fake_vendor:add", {"a": 1, "b": 2}) == 3


def test_a_result_that_is_no_json_does_not_end_the_worker(worker):
    with pytest.raises(RuntimeError, match="fake_vendor:odd returned what JSON cannot hold"):
        worker.call("fake_vendor:odd", {})
    assert worker.call("fake_vendor:add", {"a": 1, "b": 2}) == 3


def test_our_errors_keep_class_code_and_facts(worker):
    error = failing(worker, "data_error", kind=DataError)
    assert (error.code, error.tensor, error.context, error.hint) == ("DK312", "x", ("expected",), "do")
    assert failing(worker, "gate_error", kind=GateError).node == "n"


def test_a_full_disk_is_an_output_error(worker):
    error = failing(worker, "disk_full", kind=OutputError, output="/far/m.xml")
    assert error.code == "DK125"
    assert "/far/m.xml" in error.message


def test_a_missing_package_is_exit_3(worker):
    error = failing(worker, "imports", kind=MissingDependencyError, name="no_such_package_here")
    assert "no_such_package_here" in error.message
    assert error.exit_code == ExitCode.UNAVAILABLE


def test_our_own_bug_is_a_bug(worker):
    with pytest.raises(RuntimeError, match="Traceback"):
        worker.call("deploykit.artifact:artifact_from_dict", {"facts": {}})
    with pytest.raises(ModelError):
        worker.call("deploykit.io:inside", {"folder": ".", "location": "../x", "what": "data"})


def test_blocked_packages_do_not_import(worker):
    with pytest.raises(MissingDependencyError):
        worker.call("fake_vendor:imports", {"name": "wave"}, block=["wave"])
    assert worker.call("fake_vendor:imports", {"name": "colorsys"}, block=["wave"])


def test_progress_arrives_in_order(worker):
    seen = []
    assert worker.call("fake_vendor:steps", {"n": 3}, on_progress=seen.append) == 3
    assert [(step.stage, step.item, step.done, step.total) for step in seen] == [
        ("working", f"item {i}", i + 1, 3) for i in range(3)
    ]


def test_an_interrupt_while_waiting_kills_the_worker(worker):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        worker.call("fake_vendor:steps", {"n": 3}, on_progress=interrupt)
    assert not worker.alive


def reproduced(error):
    return subprocess.run(error.reproduce, shell=True, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_reproduces_a_failure(worker):
    done = reproduced(failing(worker, "fail", message="bad 'axis' ü"))
    assert done.returncode == 1
    assert json.loads(done.stdout)["exception"]["message"] == "bad 'axis' ü"
    assert "fake_vendor.py" in done.stderr


def test_the_command_reproduces_a_crash(worker):
    assert reproduced(failing(worker, "segfault")).returncode in (-11, 139)


def test_the_command_works_after_temporary_folders_are_gone(worker, tmp_path):
    with io.scratch_folder(tmp_path) as scratch, io.staged(tmp_path / "out.bin", force=False) as staging:
        model = f"{scratch}/prepared model.onnx"
        with open(model, "w") as stream:  # noqa: PTH123
            stream.write("content")
        staging.write_text("x")
        error = failing(worker, "needs", path=model, output=str(staging))
    done = reproduced(error)
    assert json.loads(done.stdout)["exception"]["message"] == "read content"


def test_the_command_reproduces_relative_paths_and_progress(worker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("relative")
    error = failing(worker, "needs", path="in.txt", output="out.txt")
    monkeypatch.chdir("/")
    assert json.loads(reproduced(error).stdout)["exception"]["message"] == "read relative"


def test_quiet_environment_and_ours(vendor):
    worker = Worker("fake", environment={"OWN": "1"})
    assert worker.call("fake_vendor:environment", {"name": "OPENVINO_TELEMETRY"}) == "0"
    assert worker.call("fake_vendor:environment", {"name": "OWN"}) == "1"
    worker.close()


def test_a_call_that_waited_for_one_that_crashed_gets_a_new_process(vendor):
    with workers() as pool:
        first = pool.get("fake")
        taken = threading.Event()

        def crash(_):
            taken.set()

        def crashing():
            with pytest.raises(VendorError):
                first.call("fake_vendor:steps_then_die", {"n": 1}, on_progress=crash)

        thread = threading.Thread(target=crashing)
        thread.start()
        assert taken.wait(60)
        assert run_isolated("fake", "fake_vendor:add", {"a": 1, "b": 2}) == 3
        thread.join()
        assert pool.get("fake") is not first


def test_a_call_that_waited_for_a_process_that_was_stopped_is_not_made_again(vendor):
    with workers() as pool:
        stopped = pool.get("fake")
        stopped.kill()
        with pytest.raises(VendorError, match="ended before its turn"):
            stopped.call("fake_vendor:add", {"a": 1, "b": 2})


def test_a_pool_restarts_what_died_and_ends_all(vendor):
    with workers() as pool:
        first = pool.get("fake")
        with pytest.raises(VendorError):
            run_isolated("fake", "fake_vendor:die", {"code": 1})
        assert run_isolated("fake", "fake_vendor:add", {"a": 1, "b": 2}) == 3
        second = pool.get("fake")
        assert second is not first
        assert pool.get("other") is not second
        with workers() as same:
            assert same is pool
    assert not second.alive


def test_a_missing_interpreter(tmp_path):
    with WorkerPool() as pool, pytest.raises(UnavailableError, match="no interpreter"):
        pool.get("fake", str(tmp_path / "python"))


def test_when_the_parent_dies_the_worker_dies(vendor, tmp_path):
    note = tmp_path / "pid"
    code = (
        "import sys\nfrom deploykit.isolation import run_isolated\n"
        f"run_isolated('fake', 'fake_vendor:hang', {{'path': {str(note)!r}}})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 120
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    child = int(note.read_text())
    parent.kill()
    parent.wait()
    while time.monotonic() < deadline:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        with open(f"/proc/{child}/stat") as stat:  # noqa: PTH123 - a zombie that init has not collected is dead too
            if stat.read().rpartition(")")[2].split()[0] == "Z":
                return
        time.sleep(0.05)
    pytest.fail("the worker outlived its parent")


def test_the_worker_leaves_no_log_behind(vendor, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    worker = Worker("fake")
    worker.call("fake_vendor:add", {"a": 1, "b": 1})
    worker.close()
    assert not list(tmp_path.glob("*.log"))


def test_the_reproducing_command_is_shell_safe(worker):
    assert shlex.split(failing(worker, "fail", message="x").reproduce)[0] == "cd"
