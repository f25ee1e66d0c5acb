"""Time and memory of fp16 and bf16 on a model of more than 2 GB, next to other converters.

    python benchmarks/half_precision.py [--gigabytes 2.2] [--folder DIR]

Each runs in a process of its own: CPU and wall seconds, the largest resident memory (pages of mapped files count) and
the largest anonymous memory (what is really taken), as multiples of the float model's bytes. A rival that is not
installed, fails, or gives a model that does not load says so. Results go to half_precision.json beside this file.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

WIDTH = 4096
LIMIT_SECONDS = 900
# What each process runs, after `from pathlib import Path`; SOURCE and OUTPUT are strings.
SIDES = {
    "deploykit fp16": """
from deploykit.quantize.half_job import quantize_half as job
from deploykit.quantize.settings import Settings
job(Path(SOURCE), Path(OUTPUT), Settings(), lambda step: None)
""",
    "deploykit bf16": """
from deploykit.quantize.half_job import quantize_bfloat16 as job
from deploykit.quantize.settings import Settings
job(Path(SOURCE), Path(OUTPUT), Settings(), lambda step: None)
""",
    "onnxruntime.transformers float16": """
import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16
model = convert_float_to_float16(onnx.load(SOURCE), disable_shape_infer=True)
onnx.save(model, OUTPUT, save_as_external_data=True, location=Path(OUTPUT).name + ".data")
""",
    "onnxconverter-common float16": """
import onnx
from onnxconverter_common.float16 import convert_float_to_float16
model = convert_float_to_float16(onnx.load(SOURCE), disable_shape_infer=True)
onnx.save(model, OUTPUT, save_as_external_data=True, location=Path(OUTPUT).name + ".data")
""",
}
# Runs one side and watches its own memory.
WATCHED = """
import json, resource, threading, time
from pathlib import Path
SOURCE, OUTPUT = {source!r}, {output!r}
peak, done = [0], threading.Event()
def watch():
    while not done.wait(0.02):
        text = Path("/proc/self/status").read_text()
        peak[0] = max(peak[0], int(text.split("RssAnon:")[1].split()[0]) << 10)
threading.Thread(target=watch, daemon=True).start()
started = time.perf_counter()
{body}
wall = time.perf_counter() - started
done.set()
used = resource.getrusage(resource.RUSAGE_SELF)
print("RESULT", json.dumps({{"wall_s": wall, "cpu_s": used.ru_utime + used.ru_stime,
    "resident_bytes": used.ru_maxrss << 10, "anonymous_bytes": peak[0]}}))
"""
LOADS = """
import onnxruntime
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
options.log_severity_level = 4
onnxruntime.InferenceSession({output!r}, options, providers=["CPUExecutionProvider"])
"""
CHECKS = "import onnx; onnx.checker.check_model({output!r})"


def make_model(path: Path, gigabytes: float) -> int:
    """A chain of square MatMuls with external weights; returns its bytes. Written layer by layer."""
    layers = max(2, round(gigabytes * 1e9 / (4 * WIDTH * WIDTH)))
    data = path.with_name(path.name + ".data")
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    with data.open("wb") as stream:
        for index in range(layers):
            offset = stream.tell()
            array = (rng.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH**0.5).astype(np.float32)
            stream.write(array.tobytes())
            tensor = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[WIDTH, WIDTH])
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", data.name), ("offset", str(offset)), ("length", str(array.nbytes))):
                tensor.external_data.add(key=key, value=value)
            weights.append(tensor)
            nodes.append(helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"x{index + 1}"], name=f"mm{index}"))
    described = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH])] for name in ("x0", f"x{layers}")
    ]
    graph = helper.make_graph(nodes, "chain", *described, initializer=weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path.stat().st_size + data.stat().st_size


def measured(body: str, source: Path, output: Path, size: int) -> dict[str, object]:
    """One side in a process of its own."""
    code = WATCHED.format(source=str(source), output=str(output), body=body)
    try:
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {LIMIT_SECONDS} s"}
    if "RESULT " not in ran.stdout:
        last = ran.stderr.strip().splitlines()[-1:] or [f"exit code {ran.returncode}"]
        return {"failed": last[0][:200]}
    row = json.loads(ran.stdout.split("RESULT ")[1])
    files = [output, *output.parent.glob(f"{output.name}.data")]
    row["output_ratio"] = round(sum(file.stat().st_size for file in files) / size, 4)
    for key in ("resident", "anonymous"):
        row[f"{key}_ratio"] = round(row.pop(f"{key}_bytes") / size, 3)
    for name, check in (("checker", CHECKS), ("loads", LOADS)):
        done = subprocess.run([sys.executable, "-c", check.format(output=str(output))], capture_output=True, text=True)
        row[name] = "ok" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["crash"])[-1][:200]
    return row


def main() -> None:
    """Measures all sides and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=2.2)
    parser.add_argument("--folder", type=Path, default=None, help="where about three times the model's size is free")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        source = folder / "model.onnx"
        size = make_model(source, options.gigabytes)
        rows = {}
        for side, body in SIDES.items():
            output = folder / "half.onnx"
            rows[side] = measured(body, source, output, size)
            print(f"{side:36} {rows[side]}", flush=True)
            for file in folder.glob("half.onnx*"):
                file.unlink()
    facts = {"model_bytes": size, "machine": platform.machine(), "onnx": onnx.__version__, "rows": rows}
    Path(__file__).with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
