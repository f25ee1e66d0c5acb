"""Memory of half precision: weights are converted one by one while the model is written, never held together."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

# Anonymous memory is what a process takes; pages of the mapped weights are counted elsewhere.
MEASURE = """
    import sys, threading
    from pathlib import Path
    from deploykit.quantize import half_job
    from deploykit.quantize.settings import Settings

    def anonymous():
        return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024

    name, source, output = sys.argv[1:]
    before, peak, done = anonymous(), [0], threading.Event()
    def watch():
        while not done.wait(0.01):
            peak[0] = max(peak[0], anonymous())
    threading.Thread(target=watch, daemon=True).start()
    getattr(half_job, name)(Path(source), Path(output), Settings(), lambda step: None)
    done.set()
    print(peak[0] - before)
"""
LAYERS, WIDTH = 24, 2048


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A chain of MatMuls with 400 MB of external weights."""
    path = tmp_path_factory.mktemp("large") / "model.onnx"
    weights, nodes = [], []
    array = (np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32) / 45).astype(np.float32)
    with path.with_suffix(".data").open("wb") as stream:
        for index in range(LAYERS):
            tensor = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            places = {"location": "model.data", "offset": str(stream.tell()), "length": str(array.nbytes)}
            for key, value in places.items():
                tensor.external_data.add(key=key, value=value)
            stream.write(array.tobytes())
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"x{index + 1}"]))
    ends = [[helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", WIDTH])] for n in ("x0", f"x{LAYERS}")]
    graph = helper.make_graph(nodes, "chain", *ends, initializer=weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.serial
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("job", ["quantize_half", "quantize_bfloat16"])
def test_weights_are_not_held_together(large, tmp_path, job):
    command = [sys.executable, "-c", textwrap.dedent(MEASURE), job, str(large), str(tmp_path / "out.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    size = LAYERS * WIDTH * WIDTH * 4
    assert int(done.stdout) < 0.35 * size
    onnx.checker.check_model(str(tmp_path / "out.onnx"))
    assert (tmp_path / "out.onnx").stat().st_size == pytest.approx(size / 2, rel=0.01)
