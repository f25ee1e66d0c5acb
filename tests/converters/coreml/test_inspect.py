"""What `inspect` reads back from a package, and where a package runs."""

from __future__ import annotations

import os
import subprocess
import sys

import onnx
import pytest

from deploykit.converters.coreml import TARGET, why_not_here
from deploykit.converters.coreml.inspect import open_package
from deploykit.converters.coreml.naming import mil_names
from deploykit.errors import InvalidFileError
from deploykit.isolation import run_isolated
from deploykit.runtime import open_runtime

LINE = """
<ir_version: 9, opset_import: ["" : 19]>
line (float[batch,4] x) => (float[batch,2] y) <float[4,2] w = {1,2,3,4,5,6,7,8}> { [product] y = MatMul (x, w) }"""


@pytest.fixture
def describe(pool):
    def run(path):
        return run_isolated(TARGET.worker, TARGET.inspect, {"path": str(path)}, block=TARGET.blocked)

    return run


def test_interface_operators_and_weights(build, save, describe):
    _, package = build(save(LINE), dims={"batch": [1, 8]})
    facts = describe(package)
    assert [(s["name"], s["dtype"]) for s in facts["inputs"] + facts["outputs"]] == [("x", "float32"), ("y", "float32")]
    assert facts["inputs"][0]["bounds"] == [[1, 8], [4, 4]]
    assert facts["outputs"][0]["shape"][1] == 2
    assert facts["specification_version"] == 8
    assert facts["precision"] == "fp32"
    assert facts["weights"]["bytes_by_dtype"]["float32"] == 32
    assert facts["size_bytes"] > 0


def test_other_folders_are_refused(tmp_path, describe):
    folder = tmp_path / "other.mlpackage"
    folder.mkdir()
    with pytest.raises(InvalidFileError, match=r"no Manifest\.json") as caught:
        describe(folder)
    assert caught.value.code == "DK528"


@pytest.mark.skipif(sys.platform == "darwin", reason="Core ML runs here")
def test_elsewhere_the_runtime_is_the_interpreter_and_says_so(build, save):
    _, package = build(save(LINE), dims={"batch": [1, 8]})
    assert "Apple" in why_not_here()
    runtime = open_runtime(package)
    assert runtime.execution == "simulated"
    assert "not Apple's kernels" in runtime.engine


def test_names_become_valid_and_stay_apart():
    made = mil_names(["x", "x.1", "x_1", "1", "main", "é", ""])
    assert made["x"] == "x"
    assert made["x_1"] == "x_1"
    assert made["x.1"] == "x_1_1"
    assert made["1"] == "_1"
    assert len(set(made.values())) == len(made)
    assert mil_names(["state", "fp16"]) == {"state": "_state", "fp16": "_fp16"}


def test_the_worker_imports_neither_torch_nor_tensorflow():
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['tensorflow'] = None\n"
        "import deploykit.converters.coreml.convert\n"
        "print(sys.modules['torch'], sys.modules['tensorflow'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None None"
    assert {"torch", "tensorflow"} <= set(TARGET.blocked)


def test_a_support_answer_has_a_row_for_every_node(check, save):
    model = onnx.parser.parse_model("""
    <ir_version: 9, opset_import: ["" : 19]>
    g (float[2,4] x) => (float[2,4] y, int64[2] i) {
      [k] one = Constant <value = float[1] {1.0}> ()
      [sum] s = Add (x, one)
      [bad] y = Det (s)
      [pick] i = ArgMax <axis=1, keepdims=0> (s)
    }""")
    rows = {row["node"]: row for row in check(save(model))["nodes"]}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "k": "supported",
        "sum": "supported",
        "bad": "unsupported",
        "pick": "conditional",
    }
    assert all(row["reason"] and row["remedy"] for row in rows.values() if row["verdict"] != "supported")


@pytest.mark.parametrize("damage", ["cut", "list", "outside", "specification", "weights", "pipe"])
def test_damaged_and_hostile_packages_are_named(build, save, damage):
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[1, 4] x) => (float[1, 8] y)
        <float[4, 8] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32}>
        { y = MatMul (x, w) }"""
    _, package = build(save(text))
    manifest, data = package / "Manifest.json", package / "Data" / "com.apple.CoreML"
    if damage == "cut":
        manifest.write_bytes(manifest.read_bytes()[:100])
    elif damage == "list":
        manifest.write_text("[]")
    elif damage == "outside":
        manifest.write_text(manifest.read_text().replace("com.apple.CoreML/model.mlmodel", "../../../etc/passwd"))
    elif damage == "weights":
        (data / "weights" / "weight.bin").write_bytes(b"short")
    else:
        (data / "model.mlmodel").unlink()
        if damage == "pipe":
            os.mkfifo(data / "model.mlmodel")
        else:
            (data / "model.mlmodel").write_bytes(b"nothing")
    with pytest.raises(InvalidFileError) as caught:
        open_package(package)
    assert caught.value.code == "DK528"
