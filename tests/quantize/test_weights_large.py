"""A model beyond protobuf's 2 GB: weights become integers one after another, beside the largest only their results."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest

# 2.2 GB of float32, and a whole number of blocks.
SIDE = 23552
CODE = """
import json, resource, sys
import onnxruntime
import deploykit.quantize.int4_rounding
from deploykit.quantize.jobs import quantize_job
from deploykit.quantize.settings import Settings
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
source, output, precision, target = sys.argv[1:]
facts = quantize_job(source, output, precision, Settings(target=target).as_dict())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"bytes": (peak - base) * 1024, "metrics": facts["metrics"], "files": facts["files"]}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """MatMul of [n, 23552] with a [23552, 23552] weight in external data."""
    folder = tmp_path_factory.mktemp("large")
    block = np.random.default_rng(0).normal(size=(1024, SIDE)).astype(np.float32)
    with (folder / "w.bin").open("wb") as stream:
        for index in range(SIDE // 1024):
            stream.write((block * np.float32(1 + index / 64)).tobytes())
    weight = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[SIDE, SIDE])
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(4 * SIDE * SIDE))):
        weight.external_data.add(key=key, value=value)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[n,{SIDE}] x) => (float[n,{SIDE}] y) {{ y = MatMul (x, w) }}'
    )
    model.graph.initializer.append(weight)
    path = folder / "large.onnx"
    path.write_bytes(model.SerializeToString())
    yield path
    (folder / "w.bin").unlink()


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize(
    ("precision", "target", "share"),
    [
        ("int8-weights", "onnxruntime", 0.26),
        ("int8-dynamic", "onnxruntime", 0.26),
        ("int4-weights", "onnxruntime", 0.17),
        ("int4-weights", "openvino", 0.17),
    ],
)
def test_peak_memory_is_the_largest_weight_and_the_output(large, tmp_path, precision, target, share):
    out = tmp_path / "out.onnx"
    command = [sys.executable, "-c", CODE, str(large), str(out), precision, target]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["metrics"]["quantized_nodes"] == 1
    written = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert written < share * 4 * SIDE**2
    print(f"{precision} for {target}: {(found['bytes'] - written) / (4 * SIDE**2):.2f} of the weight beside the output")
    assert found["bytes"] <= 1.5 * 4 * SIDE**2 + written
    onnx.checker.check_model(str(out))
