"""Requests a second, latency and memory of `deploykit serve` beside a plain FastAPI server, under `wrk`.

python benchmarks/serving.py [--seconds 5] [--rounds 3] [--write] [PART...]   # needs wrk (Debian's package)

PART: digits, resnet50, rss_mb; the other parts stay as they are in the file.

Both servers and the load generator share the machine's cores. Sides are interleaved; ratios are medians of pairs.
digits: JSON both ways. ResNet-50's shape: binary tensors, beside the calls a second of onnxruntime alone in a process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import psutil

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = (1, 16, 64)
RESULTS = ROOT / "benchmarks" / "serving.json"


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(url, process):
    """Until a GET is answered by anything."""
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended")
        try:
            urllib.request.urlopen(url, timeout=1)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(url)


@contextlib.contextmanager
def deploykit(model):
    """`deploykit serve`, its lines of requests off as the other side's are."""
    command = [sys.executable, "-m", "deploykit", "serve", str(model), "--http-port", "0", "--quiet"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())["http"], process
        finally:
            process.terminate()


@contextlib.contextmanager
def fastapi(model, style):
    """The plain server."""
    port = free_port()
    command = [sys.executable, str(ROOT / "benchmarks" / "serving_fastapi.py"), str(model), str(port), style]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/docs", process)
            yield port, process
        finally:
            process.terminate()


def script(folder, body, headers):
    """Wrk's script that posts a body; a Lua string in decimal escapes carries any bytes."""
    lua = Path(folder) / f"{abs(hash(body))}.lua"
    lines = ['wrk.method = "POST"']
    lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
    payload = lua.with_suffix(".body")
    payload.write_bytes(body)
    lines += [f'local f = io.open("{payload}", "rb"); wrk.body = f:read("*a"); f:close()']
    lua.write_text("\n".join(lines), encoding="utf-8")
    return lua


def load(port, path, lua, clients, seconds):
    """{"rps", "p50_ms", "p99_ms"} of one run; RuntimeError when an answer was no 2xx."""
    url = f"http://127.0.0.1:{port}{path}"
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--latency", "--timeout", "30s", "-s", str(lua), url]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(out)
    units = {"us": 1e-3, "ms": 1.0, "s": 1e3}

    def latency(share):
        value, unit = re.search(rf"{share}%\s+([\d.]+)(us|ms|s)", out).groups()
        return float(value) * units[unit]

    rps = float(re.search(r"Requests/sec:\s+([\d.]+)", out).group(1))
    return {"rps": rps, "p50_ms": latency(50), "p99_ms": latency(99)}


def medians(runs):
    """The median of each number."""
    return {key: float(f"{statistics.median(run[key] for run in runs):.4g}") for key in runs[0]}


def ratio(ours, theirs, key="rps"):
    """The median of pairwise ratios."""
    return float(f"{statistics.median(a[key] / b[key] for a, b in zip(ours, theirs, strict=True)):.3g}")


def write_digits(path):
    """The digits' CNN: the trained one beside the checkout, or the example's with the weights of `make demo`."""
    trained = ROOT.parent / "shared" / "models" / "digits" / "digits_cnn.onnx"
    if trained.exists():
        shutil.copyfile(trained, path)
        return
    example = ROOT / "examples" / "digits"
    source = [f"{example / 'model.py'}:DigitsCNN", "--weights", str(example / "weights.safetensors")]
    shape = ["--input", "image:float32[batch,1,8,8]", "--dim", "batch=1..64"]
    subprocess.run([sys.executable, "-m", "deploykit", "export", *source, *shape, "-o", str(path)], check=True)


def digits(model, folder, seconds, rounds):
    """JSON requests of one digit."""
    image = np.random.default_rng(0).random((1, 1, 8, 8), np.float32).round(4).tolist()
    kind = {"Content-Type": "application/json"}
    bare = script(folder, json.dumps(image).encode(), kind)
    named = script(folder, json.dumps({"data": image}).encode(), kind)
    name = onnx.load(model).graph.input[0].name
    v2 = {"inputs": [{"name": name, "datatype": "FP32", "shape": [1, 1, 8, 8], "data": np.ravel(image).tolist()}]}
    infer = script(folder, json.dumps(v2).encode(), kind)
    found = {}
    with deploykit(model) as (ours, _), fastapi(model, "inline") as (inline, _), fastapi(model, "threads") as (pool, _):
        sides = {
            "deploykit /predict": (ours, "/predict", bare),
            "deploykit infer": (ours, f"/v2/models/{model.stem}/infer", infer),
            "FastAPI async def": (inline, "/predict", named),
            "FastAPI def": (pool, "/predict", named),
        }
        for clients in CLIENTS:
            runs = {name: [] for name in sides}
            for _ in range(rounds):
                for name, (port, path, lua) in sides.items():
                    runs[name].append(load(port, path, lua, clients, seconds))
            found[str(clients)] = {
                **{name: medians(of) for name, of in runs.items()},
                "ratio": ratio(runs["deploykit /predict"], runs["FastAPI async def"]),
                "ratio_def": ratio(runs["deploykit /predict"], runs["FastAPI def"]),
            }
            print(clients, json.dumps(found[str(clients)], indent=1), flush=True)
    return found


def raw_limit(model, shape, seconds):
    """Calls a second of onnxruntime alone, all threads, in a process of its own."""
    code = f"""
import numpy as np, onnxruntime, time
s = onnxruntime.InferenceSession({str(model)!r}, providers=["CPUExecutionProvider"])
x = {{s.get_inputs()[0].name: np.random.default_rng(0).random({shape!r}, np.float32)}}
for _ in range(3): s.run(None, x)
n, start = 0, time.perf_counter()
while time.perf_counter() - start < {seconds}: s.run(None, x); n += 1
print(n / (time.perf_counter() - start))
"""
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def resnet(model, folder, seconds, rounds, shape=(1, 3, 224, 224)):
    """Binary tensors of one image."""
    x = np.random.default_rng(0).random(shape, np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": list(shape), "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": len(head), "Content-Type": "application/octet-stream"}
    infer, bytes_ = script(folder, head + x.tobytes(), headers), script(folder, x.tobytes(), {})
    found = {}
    with deploykit(model) as (ours, _), fastapi(model, "inline") as (inline, _):
        sides = {
            "deploykit infer, binary": (ours, f"/v2/models/{model.stem}/infer", infer),
            "FastAPI async def, bytes": (inline, f"/raw/{'x'.join(map(str, shape))}", bytes_),
        }
        for clients in CLIENTS:
            runs = {name: [] for name in sides}
            limits = []
            for _ in range(rounds):
                time.sleep(3)  # what the last side's clients have left in its queue is computed first
                limits.append({"rps": raw_limit(model, shape, seconds)})
                for name, (port, path, lua) in sides.items():
                    runs[name].append(load(port, path, lua, clients, seconds))
            found[str(clients)] = {
                **{name: medians(of) for name, of in runs.items()},
                "onnxruntime alone": medians(limits),
                "share": ratio(runs["deploykit infer, binary"], limits),
                "share_fastapi": ratio(runs["FastAPI async def, bytes"], limits),
            }
            print(clients, json.dumps(found[str(clients)], indent=1), flush=True)
    return found


def memory(model, folder, seconds, minutes):
    """RSS in MB of the server after `minutes` of load, a value each minute."""
    lua = script(folder, json.dumps(np.zeros((1, 1, 8, 8)).tolist()).encode(), {"Content-Type": "application/json"})
    with deploykit(model) as (port, process):
        sizes = []
        for _ in range(minutes):
            load(port, "/predict", lua, 64, seconds)
            sizes.append(round(psutil.Process(process.pid).memory_info().rss / 1e6, 1))
    return sizes


def main():
    """Prints, and with --write keeps, the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=int, default=10, help="of load for the memory's growth")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("parts", nargs="*", default=["digits", "resnet50", "rss_mb"])
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from simplify_models import resnet50 as write_resnet50

    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    found["cpus"] = os.cpu_count()
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "digits.onnx", Path(folder) / "resnet50.onnx"
        write_digits(small)
        if "digits" in given.parts:
            found["digits"] = digits(small, folder, given.seconds, given.rounds)
        if "resnet50" in given.parts:
            write_resnet50(large)
            found["resnet50"] = resnet(large, folder, given.seconds, given.rounds)
        if "rss_mb" in given.parts:
            found["rss_mb"] = memory(small, folder, 60, given.minutes)
            print(found["rss_mb"], flush=True)
    if given.write:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
