"""Beyond protobuf's 2 GB: everything works, in memory bounded by a small multiple of the model."""

import json
import shutil
import subprocess
import sys

import onnx
import onnx.parser
import pytest

SIDE = 23_000  # one float32 matrix of 2.1 GB
STEPS = """
import json, resource, sys
from pathlib import Path
from deploykit import graph

source, out = map(Path, sys.argv[1:])
model = graph.load(source)
graph.name_nodes(graph.infer_shapes(model))
facts = {"loaded": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}
facts["macs"] = graph.macs(model)
facts["files"] = graph.save(model, out)
facts["described"] = graph.describe(out).files
facts["shape"] = graph.describe(out).outputs[0].shape
facts["saved"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
print(json.dumps(facts))
"""


@pytest.mark.slow
@pytest.mark.serial
def test_a_model_above_2_gb(tmp_path):
    nbytes = SIDE * SIDE * 4
    if shutil.disk_usage(tmp_path).free < 3 * nbytes:
        pytest.skip("needs 6 GB of disk")
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[n,{SIDE}] x) => (float[n,{SIDE}] y) {{ y = MatMul(x, w) }}""")
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[SIDE, SIDE])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.truncate(nbytes)
    source, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    source.write_bytes(model.SerializeToString())
    done = subprocess.run([sys.executable, "-c", STEPS, source, out], capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    assert facts["files"] == facts["described"] == ["out.onnx", "out.onnx.data"]
    assert facts["macs"] == {"MatMul_1": SIDE * SIDE}
    assert facts["shape"] == ["n", SIDE]
    assert facts["loaded"] < 300, "loading and shape inference leave the weights on disk"
    assert facts["saved"] < 2 * nbytes >> 20
    assert (tmp_path / "out.onnx.data").stat().st_size == nbytes
