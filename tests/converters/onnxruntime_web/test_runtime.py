"""Pages in Node, where it and the npm package are."""

import os
import shutil
import subprocess

import numpy as np
import pytest

import deploykit
from deploykit.converters.onnxruntime_web.node import NodeProcess
from deploykit.converters.onnxruntime_web.package import find_node, find_package
from deploykit.converters.onnxruntime_web.runtime import load
from deploykit.errors import GateError, ModelError, UnavailableError, UsageError, VendorError
from deploykit.isolation import workers
from deploykit.reference import Reference
from deploykit.runtime import RuntimeOptions, open_runtime

pytestmark = pytest.mark.usefixtures("node")
VALUES = {
    "float32": [0.1, -np.inf, np.nan],
    "float64": [1e300, -0.0, 1 / 3],
    "float16": [65504.0, -6e-8, 0.1],
    "bool": [True, False, True],
    "int64": [2**62 + 1, -(2**63), 9007199254740993],
    "uint64": [2**64 - 1, 0, 9007199254740993],
    "int8": [-128, 0, 127],
    "uint8": [0, 128, 255],
    "int16": [-32768, 1, 32767],
    "uint16": [0, 1, 65535],
    "int32": [-(2**31), 0, 2**31 - 1],
    "uint32": [0, 1, 2**32 - 1],
}
NAMES = {"float32": "float", "float64": "double"}
DENSE = "agraph (float[N,4] x) => (float[N,3] y) { [mm] h = MatMul (x, w) [relu] y = Relu (h) }"
# What `convert` is not to be timed with in every test of this file.
WITHOUT_BROWSER = {"browser": "no"}


def dense(onnx_file):
    return onnx_file(DENSE, w=np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32))


def opened(folder, **options):
    return load(folder, RuntimeOptions(**options))


def test_every_dtype_goes_in_and_comes_out_bit_for_bit(onnx_file, page):
    inputs = ", ".join(f"{NAMES.get(name, name)}[1,3] {name}_x" for name in VALUES)
    outputs = ", ".join(f"{NAMES.get(name, name)}[1,3] {name}_y" for name in VALUES)
    nodes = " ".join(f"{name}_y = Identity ({name}_x)" for name in VALUES)
    folder, _ = page(onnx_file(f"agraph ({inputs}) => ({outputs}) {{ {nodes} }}"), runtime="none")
    runtime = opened(folder)
    feeds = {f"{name}_x": np.array([values], name) for name, values in VALUES.items()}
    found = runtime.predict(feeds)
    runtime.close()
    for name in VALUES:
        assert found[f"{name}_y"].dtype == np.dtype(name)
        assert found[f"{name}_y"].tobytes() == feeds[f"{name}_x"].tobytes(), name


def test_texts_scalars_and_empty_tensors(onnx_file, page):
    text = """agraph (string[N] t, float s, float[M,2] e) => (string[N] u, float v, float[M,2] f)
    { u = Identity (t) v = Add (s, s) f = Relu (e) }"""
    folder, _ = page(onnx_file(text), runtime="none")
    runtime = opened(folder)
    feeds = {"t": np.array(["ü", "", "日本語"], object), "s": np.float32(1.5), "e": np.zeros((0, 2), np.float32)}
    found = runtime.predict(feeds)
    runtime.close()
    assert found["u"].tolist() == ["ü", "", "日本語"]
    assert (found["v"].shape, found["v"].item()) == ((), 3.0)
    assert found["f"].shape == (0, 2)


def test_stays_open_for_calls_of_other_sizes_and_computes_what_the_reference_does(onnx_file, page):
    model = dense(onnx_file)
    folder, _ = page(model, runtime="none")
    runtime = open_runtime(folder, RuntimeOptions(threads=1))
    reference = Reference(model)
    for rows in (1, 5, 2):
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        np.testing.assert_allclose(
            runtime.predict({"x": x})["y"], reference.predict({"x": x})["y"], rtol=1e-5, atol=1e-6
        )
    assert runtime.engine.startswith(f"onnxruntime-web {find_package().version} (wasm, Node ")
    assert set(runtime.versions) == {"onnxruntime-web", "node"}
    runtime.close()


def test_call_that_fails_is_an_error_and_the_next_one_runs(onnx_file, page):
    folder, _ = page(onnx_file("agraph (int64[N] i) => (float[N] y) { y = Gather (t, i) }", t=np.ones(3, np.float32)))
    runtime = opened(folder)
    with pytest.raises(VendorError, match="Gather"):
        runtime.predict({"i": np.array([7])})
    assert runtime.predict({"i": np.array([1])})["y"].tolist() == [1.0]
    runtime.close()


def test_weights_beside_the_model_are_found(onnx_file, page, monkeypatch):
    monkeypatch.setattr("deploykit.graph.writing.INLINE_LIMIT", 16)
    model = dense(onnx_file)
    folder, _ = page(model, runtime="none")
    assert (folder / "model.onnx.data").is_file()
    runtime = opened(folder)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(runtime.predict({"x": x})["y"], Reference(model).predict({"x": x})["y"], rtol=1e-6)
    runtime.close()


def test_operator_that_is_not_there_names_the_node(onnx_file, page):
    folder, _ = page(onnx_file("agraph (float[2] x) => (float[2] y) { [odd] y = my.ops.Odd (x) }"), runtime="none")
    with pytest.raises(GateError, match="Odd") as caught:
        opened(folder)
    assert caught.value.code == "DK201"


def test_model_that_is_broken_is_refused_before_node_starts(onnx_file, page):
    folder, _ = page(dense(onnx_file), runtime="none")
    content = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError):
        opened(folder)


@pytest.mark.parametrize("provider", ["firefox", "chromium-cuda", "cuda"])
def test_unknown_place_is_refused_with_those_that_are(onnx_file, page, provider):
    folder, _ = page(dense(onnx_file), runtime="none")
    with pytest.raises(UsageError, match="chromium-webgpu"):
        opened(folder, provider=provider)


def test_device_is_refused_and_never_ignored(onnx_file, page):
    folder, _ = page(dense(onnx_file), runtime="none")
    with pytest.raises(UnavailableError) as caught:
        opened(folder, device="gpu")
    assert caught.value.code == "DK220"


def test_node_that_dies_is_said_with_its_last_words(onnx_file, page, tmp_path):
    folder, _ = page(dense(onnx_file), runtime="none")
    process = NodeProcess(find_node(), find_package(), folder, 1)
    os.kill(process.pid, 9)
    with pytest.raises(VendorError, match="signal 9"):
        process.ask(b"\0" * 8)
    process.close()


def test_convert_validate_and_bench_take_the_folder(onnx_file, tmp_path):
    model, folder = dense(onnx_file), tmp_path / "web"
    with workers():
        report = deploykit.convert(model, to="onnxruntime-web", output=folder, options=WITHOUT_BROWSER)
        assert report.artifact.execution == "real"
        assert set(report.artifact.tool_versions) == {"onnxruntime-web", "node"}
        assert report.metrics["parity"]["parent"]["samples"] == 16
        assert [finding.code for finding in report.findings if finding.code == "DK570"] == ["DK570"]
        compared = deploykit.validate(model, folder)
        assert not compared.failed
        assert "Node" in compared.metrics["engines"]["candidate"]
    (row,) = deploykit.bench(folder, seconds=0.2).metrics["rows"]
    assert row["execution"] == "real"
    assert row["p50_ms"] > 0


def test_script_of_the_folder_runs_the_sample_and_a_given_file(onnx_file, page, tmp_path):
    model = dense(onnx_file)
    folder, _ = page(model, dims={"N": [2, 2]})
    shutil.copytree(find_package().folder.parent, folder / "node_modules")
    x = np.random.default_rng(3).normal(size=(2, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)

    def run(*arguments):
        return subprocess.run(
            [find_node(), "run.mjs", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )

    done = run("--runs", "3", f"x={tmp_path / 'x.npy'}")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("output y"))
    assert line.startswith("output y: float32 [2, 3] ")
    found = [float(text) for text in line.split("] ")[1].split(" ")]
    np.testing.assert_allclose(found, Reference(model).predict({"x": x})["y"].reshape(-1), rtol=1e-5, atol=1e-6)
    assert "ms (median of 3)" in done.stdout
    np.save(tmp_path / "x.npy", x.astype(np.float64))
    assert "the file holds float64, and the model takes float32" in run(f"x={tmp_path / 'x.npy'}").stderr
    assert run("z=q.npy").returncode == 2


def test_script_without_the_package_says_what_brings_it(onnx_file, page):
    folder, _ = page(dense(onnx_file))
    done = subprocess.run([find_node(), "run.mjs"], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, "npm install" in done.stderr) == (3, True)
