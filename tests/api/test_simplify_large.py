"""`simplify` beyond protobuf's 2 GB, and in memory of at most three times the model and 300 MB, comparison included."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.serial]
SIDE = 4096
MB = 1_000_000


def write(path: Path, layers: int, *, external: bool) -> int:
    """A chain of MatMul, Add, Identity and Relu; returns the bytes of all files. External weights are mostly zero."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    data = path.with_name(path.name + ".data")
    with data.open("wb") as stream:
        for at in range(layers):
            if external:
                tensor = TensorProto(name=f"w{at}", data_type=1, dims=[SIDE, SIDE], data_location=TensorProto.EXTERNAL)
                place = {"location": data.name, "offset": at * SIDE * SIDE * 4, "length": SIDE * SIDE * 4}
                for key, value in place.items():
                    tensor.external_data.add(key=key, value=str(value))
                stream.seek(at * SIDE * SIDE * 4)
                stream.write(rng.standard_normal(SIDE, dtype=np.float32).tobytes())
            else:
                array = rng.standard_normal((SIDE, SIDE), dtype=np.float32) / 64
                tensor = numpy_helper.from_array(array, f"w{at}")
            weights += [tensor, numpy_helper.from_array(rng.standard_normal(SIDE, dtype=np.float32), f"b{at}")]
            nodes += [
                helper.make_node("MatMul", [last, f"w{at}"], [f"m{at}"]),
                helper.make_node("Add", [f"m{at}", f"b{at}"], [f"a{at}"]),
                helper.make_node("Identity", [f"a{at}"], [f"i{at}"]),
                helper.make_node("Relu", [f"i{at}"], [f"r{at}"]),
            ]
            last = f"r{at}"
        stream.truncate(layers * SIDE * SIDE * 4 if external else 0)
    nodes[-1].output[0] = "y"
    specs = [helper.make_tensor_value_info(name, 1, ["n", SIDE]) for name in ("x", "y")]
    body = helper.make_graph(nodes, "g", specs[:1], specs[1:], weights)
    path.write_bytes(
        helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
    )
    return path.stat().st_size + data.stat().st_size


def peak_of(command: list[str]) -> int:
    """The largest resident set of the command's processes together, in bytes; it has to succeed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = 0
    while process.poll() is None:
        try:
            tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            peak = max(peak, sum(one.memory_info().rss for one in tree))
        except psutil.Error:  # one ended meanwhile
            pass
        time.sleep(0.02)
    assert process.returncode == 0, process.stderr.read().decode()
    return peak


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("layers", "external"), [(5, False), (34, True)], ids=["0.3 GB inside", "2.3 GB outside"])
def test_large_models_take_three_times_their_size(tmp_path, layers, external):
    if shutil.disk_usage(tmp_path).free < 8_000 * MB:
        pytest.skip("needs 8 GB of disk")
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    size = write(source, layers, external=external)
    command = [sys.executable, "-m", "deploykit", "simplify", str(source), "-o", str(out), "--quiet"]
    peak = peak_of(command)
    print(f"{size / MB:.0f} MB: peak {peak / MB:.0f} MB, {(peak - 300 * MB) / size:.2f} times the model and 300 MB")
    made = onnx.load(out, load_external_data=False)
    assert [node.op_type for node in made.graph.node] == ["Gemm", "Relu"] * layers
    assert (tmp_path / "out.onnx.data").exists() is external
    assert peak <= 3 * size + 300 * MB
