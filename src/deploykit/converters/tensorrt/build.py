"""Builds the TensorRT engine of this bundle, and compares what it computes with the expected outputs.

    python3 build.py [--engine model.engine] [--verify-only]

Needs the Python package tensorrt, NumPy and a GPU. Exit code 0: built and equal; 1: it computes other values; 2: an
option is wrong; 3: no GPU or no TensorRT here; 4: TensorRT failed, with its last lines.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import pathlib
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
MANIFEST = "deploykit.manifest/1"


def main(arguments: list[str] | None = None, module: str = "tensorrt", driver: Any = None) -> int:
    """The program. module: what to build with. driver: the GPU's, for tests."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine", default="model.engine", help="where the engine is written")
    parser.add_argument("--verify-only", action="store_true", help="take an engine that is there already")
    chosen = parser.parse_args(arguments)
    os.chdir(HERE)
    sys.path.insert(0, str(HERE))
    engine, execution, device = (importlib.import_module(f"trt_{name}") for name in ("engine", "execution", "device"))
    bundle = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))
    try:
        trt = importlib.import_module(module)
        driver = driver or device.Driver()
    except (ImportError, OSError, device.CudaError) as problem:
        print(f"no engine can be built here: {problem}", file=sys.stderr)
        return 3
    gpus = driver.devices()
    if not gpus:
        print("no engine can be built here: the driver finds no GPU", file=sys.stderr)
        return 3
    log = engine.logger(trt)
    handles = engine.load_libraries(trt, log, bundle["plugins"])
    path = HERE / chosen.engine
    try:
        if not chosen.verify_only:
            _build(trt, log, engine, bundle, path)
        session = execution.Session(trt, driver, log, path.read_bytes())
    except engine.OptionError as problem:
        print(f"option {problem.option}: {problem}", file=sys.stderr)
        return 2
    except (engine.BuildError, engine.RefusedError, execution.LoadError) as problem:
        print("\n".join([*problem.log[-20:], f"TensorRT {trt.__version__} failed: {problem}"]), file=sys.stderr)
        return 4
    equal = _verify(session, bundle)
    session.close()
    del handles
    _describe(trt, bundle, path, gpus[0], equal)
    print(f"{path.name}: {'equal to the ONNX model' if equal else 'computes OTHER VALUES than the ONNX model'}")
    return 0 if equal else 1


def _build(trt: Any, log: Any, engine: Any, bundle: dict[str, Any], path: pathlib.Path) -> None:
    print(f"building {path.name} with {engine.title(trt)} {trt.__version__}")
    model = str(HERE / bundle["model"])
    built = engine.build(trt, log, model, bundle["settings"], bundle["profiles"], bundle["precision"])
    dropped = log.kept.dropped()
    if dropped:
        raise engine.BuildError(f"something was dropped: {dropped[0]}", dropped, None, log.kept.lines())
    path.write_bytes(memoryview(built.plan))
    if built.cache is not None:
        pathlib.Path(bundle["settings"]["timing_cache"]).write_bytes(memoryview(built.cache))
    print(f"built in {built.seconds['build']:.1f} s, {path.stat().st_size} bytes")


def _verify(session: Any, bundle: dict[str, Any]) -> bool:
    import numpy as np

    equal = True
    for sample in bundle["samples"]:
        feeds = dict(np.load(HERE / sample["inputs"], allow_pickle=False))
        wanted = dict(np.load(HERE / sample["outputs"], allow_pickle=False))
        found = session.run(feeds)
        for name, reference in wanted.items():
            passed, told = _compare(found[name], reference, bundle["tolerance"])
            equal = equal and passed
            print(f"{'PASSED' if passed else 'FAILED'} {sample['name']} {name}: {told}")
    return equal


def _compare(found: Any, reference: Any, limits: dict[str, Any]) -> tuple[bool, str]:
    """Whether an output is equal within the limits, and how far it is off."""
    import numpy as np

    if found.shape != reference.shape:
        return False, f"shape {found.shape}, expected {reference.shape}"
    if reference.dtype.kind not in "fV":
        wrong = int(np.sum(found != reference))
        return wrong == 0, f"{wrong} of {reference.size} values differ"
    a, b = found.astype(np.float64), reference.astype(np.float64)
    off = np.abs(a - b)
    power, noise = float(np.sum(b * b)), float(np.sum(off * off))
    sqnr = float("inf") if noise == 0 else 10 * np.log10(max(power, 1e-300) / noise)
    told = f"max abs {float(off.max(initial=0.0)):.3g}, SQNR {sqnr:.1f} dB"
    if limits.get("min_sqnr_db") is not None and not sqnr >= limits["min_sqnr_db"]:
        return False, told
    if limits.get("rtol") is None:
        return bool(np.all(np.isfinite(a) == np.isfinite(b))), told
    allowed = limits["rtol"] * np.abs(b) + (limits.get("atol_factor") or 0.0) * float(np.abs(b).max(initial=0.0))
    return bool(np.all(off <= allowed)), told


def _describe(trt: Any, bundle: dict[str, Any], path: pathlib.Path, gpu: Any, equal: bool) -> None:
    """Writes the manifest beside the engine: deploykit refuses the engine elsewhere by it."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    facts = {
        "schema": MANIFEST,
        "path": path.name,
        "format": "tensorrt",
        "target": "tensorrt",
        "precision": bundle["precision"],
        "opset": bundle["opset"],
        "size_bytes": path.stat().st_size,
        "sha256": digest,
        "inputs": bundle["inputs"],
        "outputs": bundle["outputs"],
        "parent_sha256": hashlib.sha256((HERE / bundle["model"]).read_bytes()).hexdigest(),
        "execution": "real" if equal and bundle["samples"] else "none",
        "stage": "convert",
        "options": {"to": "tensorrt", "options": bundle["options"], "profiles": bundle["profiles"]},
        "tool_versions": {"tensorrt": trt.__version__},
        "built_for": {"tensorrt": trt.__version__, "gpu": gpu.name, "compute_capabilities": [gpu.capability]},
        "files": {path.name: digest},
    }
    text = json.dumps(facts, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    path.with_name(path.name + ".deploykit.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
