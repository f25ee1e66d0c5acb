"""The page itself, in headless Chromium, where it is."""

import functools
import http.server
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

import deploykit
from deploykit.converters.onnxruntime_web.package import find_browser
from deploykit.converters.onnxruntime_web.runtime import load
from deploykit.reference import Reference
from deploykit.runtime import RuntimeOptions

pytestmark = pytest.mark.usefixtures("browser")
DENSE = "agraph (float[N,4] x) => (float[N,3] y) { [mm] h = MatMul (x, w) [relu] y = Relu (h) }"
WEIGHTS = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
X = np.random.default_rng(2).normal(size=(2, 4)).astype(np.float32)


def test_page_computes_what_the_reference_does_call_after_call(onnx_file, page):
    model = onnx_file(DENSE, w=WEIGHTS)
    folder, _ = page(model)
    runtime = load(folder, RuntimeOptions(provider="chromium"))
    assert "(wasm, Chromium " in runtime.engine
    for rows in (2, 1):
        x = X[:rows]
        np.testing.assert_allclose(runtime.predict({"x": x})["y"], Reference(model).predict({"x": x})["y"], rtol=1e-5)
    assert not runtime.findings
    runtime.close()


def test_sample_that_does_not_run_is_said_and_other_inputs_do(onnx_file, page):
    model = onnx_file("agraph (float[A,B] x) => (float[A,2] y) { y = MatMul (x, w) }", w=WEIGHTS[:, :2])
    folder, _ = page(model)  # random sizes: B is 1, and 4 is needed
    runtime = load(folder, RuntimeOptions(provider="chromium-wasm"))
    (said,) = runtime.findings
    assert (said.code, said.severity) == ("DK570", "warning")
    np.testing.assert_allclose(runtime.predict({"x": X})["y"], X @ WEIGHTS[:, :2], rtol=1e-5)
    runtime.close()


def test_folders_own_scripts_are_not_executed(onnx_file, page):
    folder, _ = page(onnx_file(DENSE, w=WEIGHTS))
    for name in ("page.mjs", "model.mjs"):
        (folder / name).write_text("throw new Error('executed');")
    runtime = load(folder, RuntimeOptions(provider="chromium"))
    assert runtime.predict({"x": X})["y"].shape == (2, 3)
    runtime.close()


def test_convert_compares_in_the_browser_too(onnx_file, tmp_path):
    report = deploykit.convert(onnx_file(DENSE, w=WEIGHTS), to="onnxruntime-web", output=tmp_path / "web")
    assert set(report.metrics["parity"]) == {"parent", "browser"}
    assert "Chromium" in report.metrics["parity"]["browser"]["engines"]["candidate"]
    assert not report.failed


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def visit():
    """Opens a folder, served as any static server does, in a browser."""
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        servers = []

        def open_folder(folder):
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            servers.append(server)
            tab = started.new_page()
            tab.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            return tab

        yield open_folder
        started.close()
        for server in servers:
            server.shutdown()


def values(tab):
    return [float(text) for text in tab.inner_text("#outputs code").split(" ")]


def test_page_on_a_static_server_runs_its_sample_and_a_visitors_file(onnx_file, page, visit, tmp_path):
    model = onnx_file(DENSE, w=WEIGHTS)
    np.savez(tmp_path / "sample.npz", x=X)
    folder, _ = page(model, dims={"N": [2, 2]}, sample=str(tmp_path / "sample.npz"))
    tab = visit(folder)
    tab.wait_for_selector("body[data-state=done]", timeout=60_000)
    np.testing.assert_allclose(values(tab), Reference(model).predict({"x": X})["y"].reshape(-1), rtol=1e-5, atol=1e-6)
    assert tab.inner_text("#status").endswith("ms")
    np.save(tmp_path / "x.npy", 2 * X)
    tab.set_input_files("#inputs input[type=file]", str(tmp_path / "x.npy"))
    tab.wait_for_function(f"document.querySelector('#inputs code').textContent.startsWith('{2 * X[0, 0]:.3f}')")
    tab.click("#run")
    tab.wait_for_function("document.querySelector('#status').textContent.endsWith('ms')")
    np.testing.assert_allclose(
        values(tab), Reference(model).predict({"x": 2 * X})["y"].reshape(-1), rtol=1e-5, atol=1e-6
    )


def test_page_without_its_scripts_says_where_they_go(onnx_file, page, visit):
    folder, _ = page(onnx_file(DENSE, w=WEIGHTS), runtime="none")
    tab = visit(folder)
    tab.wait_for_selector("body[data-state=failed]", timeout=60_000)
    assert "copy dist/ of the npm package" in tab.inner_text("#problem")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends it")
def test_browser_ends_with_the_process_that_started_it(onnx_file, page):
    folder, _ = page(onnx_file(DENSE, w=WEIGHTS))
    code = (
        "import os, sys; from pathlib import Path; from deploykit.runtime import RuntimeOptions; "
        "from deploykit.converters.onnxruntime_web.runtime import load; "
        "opened = load(Path(sys.argv[1]), RuntimeOptions(provider='chromium')); "
        "print(opened._door.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True, check=False)
    pid = int(done.stdout)
    end = time.monotonic() + 20
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "the browser outlives its starter"
        time.sleep(0.1)
