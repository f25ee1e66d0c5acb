import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

from deploykit import io
from deploykit.converters.onnxruntime_web import convert as module
from deploykit.converters.onnxruntime_web.folder import MARKER
from deploykit.errors import GateError, UsageError

TEXT = "agraph (float[N,4] x, int64[N] i) => (float[N,4] y) { [relu] r = Relu (x) y = Gather (r, i) }"
PLAIN = "agraph (float[N,4] x) => (float[N,4] y) { [relu] y = Relu (x) }"


def facts_of(folder):
    return json.loads((folder / MARKER).read_text())


def test_folder_has_model_page_script_and_the_exact_version(onnx_file, page):
    folder, made = page(onnx_file(PLAIN), runtime="none")
    facts = facts_of(folder)
    assert sorted(entry.name for entry in folder.iterdir()) == sorted(
        [MARKER, "index.html", "model.mjs", "model.onnx", "package.json", "page.mjs", "run.mjs", "sample.bin"]
    )
    assert json.loads((folder / "package.json").read_text())["dependencies"] == {"onnxruntime-web": facts["version"]}
    assert onnx.load(folder / "model.onnx").graph.node[0].name == "relu"
    (said,) = made["findings"]
    assert said["code"] == "DK574"
    assert all(name in said["message"] for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.wasm"))
    assert "http" not in json.dumps(facts)
    assert "onnxruntime-web" not in made["versions"]  # nothing of it is in the folder


def test_same_bytes_from_two_processes(onnx_file, tmp_path):
    model = onnx_file(PLAIN)
    code = (
        "import sys; from deploykit.converters.onnxruntime_web.convert import convert_job; "
        "convert_job(sys.argv[1], sys.argv[2], {}, {'N': [2, 8]}, {}, 'fp32')"
    )
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        subprocess.run([sys.executable, "-c", code, str(model), str(tmp_path / name / "web")], check=True)
    assert io.digest([tmp_path / "a" / "web"]) == io.digest([tmp_path / "b" / "web"])


def test_sample_lies_as_the_marker_says_and_may_be_given(onnx_file, page, tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "given.npz", x=x[None], i=np.array([[2, 0, 1]]))
    folder, _ = page(onnx_file(TEXT), sample=str(tmp_path / "given.npz"), runtime="none")
    content = (folder / "sample.bin").read_bytes()
    first, second = facts_of(folder)["sample"]
    assert np.frombuffer(content, np.float32, 12, first["offset"]).tolist() == x.reshape(-1).tolist()
    assert np.frombuffer(content, np.int64, 3, second["offset"]).tolist() == [2, 0, 1]
    assert (first["shape"], second["shape"]) == ([3, 4], [3])


def test_dimension_with_one_size_is_fixed(onnx_file, page):
    folder, made = page(onnx_file(PLAIN), dims={"N": [2, 2]}, runtime="none")
    assert made["inputs"][0]["shape"] == facts_of(folder)["inputs"][0]["shape"] == [2, 4]


def test_address_of_the_scripts_is_the_users_own(onnx_file, page):
    folder, made = page(onnx_file(PLAIN), runtime="https://example.org/ort/dist")
    assert facts_of(folder)["runtime"] == "https://example.org/ort/dist/"
    assert not (folder / "ort").exists()
    assert not made["findings"]


@pytest.mark.parametrize("value", ["cdn", ""])
def test_unknown_runtime_is_refused(onnx_file, page, value):
    with pytest.raises(UsageError, match="runtime is copy") as caught:
        page(onnx_file(PLAIN), runtime=value)
    assert caught.value.code == "DK527"


def test_copying_what_is_not_installed_names_the_command(onnx_file, page, monkeypatch):
    monkeypatch.setattr(module, "find_package", lambda: None)
    with pytest.raises(UsageError) as caught:
        page(onnx_file(PLAIN), runtime="copy")
    assert caught.value.hint.startswith("npm install")
    folder, made = page(onnx_file(PLAIN))
    assert [finding["code"] for finding in made["findings"]] == ["DK574"]
    assert "npm install" in made["findings"][0]["hint"]
    assert not (folder / "ort").exists()


def test_type_that_javascript_lacks_is_refused_with_the_tensor(onnx_file, page):
    with pytest.raises(GateError) as caught:
        page(onnx_file("agraph (bfloat16[N] x) => (bfloat16[N] y) { y = Identity (x) }"))
    assert (caught.value.code, caught.value.tensor) == ("DK526", "x")


def test_nothing_is_built_of_a_model_that_the_backend_refuses(onnx_file, page):
    folder, made = page(onnx_file("agraph (float[2,2] x) => (float[] y) { [det] y = Det (x) }"), "webgl")
    assert [finding["node"] for finding in made["findings"] if finding["severity"] == "error"] == ["det"]
    assert not folder.exists()
