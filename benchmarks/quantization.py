"""Quantizes real models with deploykit, onnxruntime and NNCF on one half of their data and scores the other half.

python benchmarks/quantization.py [--models WORD,...] [--recipes WORD,...] [--again] [--latency] [--table]

Writes benchmarks/quantization.json, of which docs/generate.py makes the table in docs/quantization.md. A cell that is
there stays as it is unless --again is given, so that an interrupted run goes on; what failed is tried again. WORD: only
models or recipes whose name contains it. --latency measures latencies of what was made before, interleaved (a quiet
machine, please), with --recipes of those alone. The peers run in an environment of their own, made in a cache folder.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from quantization_models import MODELS
from quantization_peers_setup import CACHE, ROOT, peers_python, slug

from deploykit.evaluation.significance import paired_test_of

if TYPE_CHECKING:
    from pathlib import Path

    from quantization_models import Model

OUT = ROOT / "benchmarks" / "quantization.json"
WORK = CACHE / "work"
LIMIT_S = 1500
FOLDERS = re.compile(r"(/[^\s/\"']+)+/(?=[^\s/])")  # of this machine, in messages
ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
FLOAT = "float"
# What `quantize` fails with when the result is made and is not good enough: outputs, accuracy.
GATES = ("DK401", "DK375")

# What each recipe asks `deploykit quantize` for.
OURS: dict[str, list[str]] = {
    "int8 auto": ["--precision", "int8"],
    "int8 minmax": ["--precision", "int8", "--method", "minmax"],
    "int8 percentile": ["--precision", "int8", "--method", "percentile"],
    "int8 entropy": ["--precision", "int8", "--method", "entropy"],
    "int8 mse": ["--precision", "int8", "--method", "mse"],
    "int8 moving-average": ["--precision", "int8", "--method", "moving-average"],
    "int8 auto, bias correction": ["--precision", "int8", "--bias-correction"],
    "int8 auto, smoothing": ["--precision", "int8", "--smooth-quant", "0.5"],
    "int8 openvino": ["--precision", "int8", "--target", "openvino"],
    "int8 tensorrt-rtx": ["--precision", "int8", "--target", "tensorrt-rtx"],
    "int8 search": ["--precision", "int8", "--max-drop", "0.5"],
    "mixed": ["--precision", "mixed"],
    "int8-dynamic": ["--precision", "int8-dynamic"],
    "int8-weights": ["--precision", "int8-weights"],
    "int4-weights rtn": ["--precision", "int4-weights", "--method", "rtn"],
    "int4-weights auto": ["--precision", "int4-weights"],
    "fp16": ["--precision", "fp16"],
    "bf16": ["--precision", "bf16", "--target", "tensorrt-rtx"],
}
# Arguments of quantization_peers.py.
PEERS: dict[str, str] = {
    "onnxruntime minmax U8S8": "MinMax u8",
    "onnxruntime percentile U8S8": "Percentile u8",
    "onnxruntime entropy U8S8": "Entropy u8",
    "onnxruntime minmax S8S8": "MinMax s8",
    "onnxruntime percentile S8S8": "Percentile s8",
    "onnxruntime entropy S8S8": "Entropy s8",
    "onnxruntime dynamic": "dynamic",
    "NNCF PTQ": "nncf ptq",
    "NNCF accuracy control": "nncf control",
}
COMPARED = ("int8 auto", "int8 search", "int8 openvino", "mixed")
NEEDS_METRIC = frozenset({"int8 search", "NNCF accuracy control"})
ON_OPENVINO = frozenset({FLOAT, "int8 openvino", "NNCF PTQ", "NNCF accuracy control"})
# Only one of both lasts for hours on a large model, and these show scale, not method.
LARGE = frozenset({"ResNet-50 shape", "BERT-base shape"})


def laid(name: str, model: Model) -> Path:
    """The model's folder; made when it is not there."""
    folder = WORK / slug(name)
    if not (folder / "laid").exists():
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model.make(folder)
        (folder / "laid").touch()
    (folder / "made").mkdir(exist_ok=True)
    return folder


def run(command: list[str], **variables: str) -> tuple[str, dict[str, Any]]:
    """Standard output, and what it took: processor seconds and peak memory. RuntimeError with its last words."""
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", **variables}
    measured = [sys.executable, str(ROOT / "benchmarks" / "quantization_child.py"), *command]
    done = subprocess.run(measured, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False)
    facts = json.loads(done.stderr.rpartition("\n@")[2] or "{}") if "\n@" in done.stderr else {}
    if done.returncode:
        raise RuntimeError(reason(done.stdout, done.stderr.rpartition("\n@")[0]) or f"exit code {done.returncode}")
    return done.stdout, {**facts, "wall_s": round(time.perf_counter() - started, 2)}


def reason(stdout: str, stderr: str) -> str:
    """Why a command failed: our own report's errors, or the last lines of another tool."""
    if stdout.startswith("{"):
        report = json.loads(stdout)
        errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
        errors += [report["error"]] if report.get("error") else []
        return "; ".join(f"{found.get('code')}: {_last(found['message'])}" for found in errors)[:400]
    return FOLDERS.sub("", _last(stderr.strip() or stdout.strip()))[-400:]


def _last(message: str) -> str:
    """A message, or what a traceback in it comes to."""
    if "Traceback" not in message:
        return FOLDERS.sub("", message)
    named = [line.strip() for line in message.splitlines() if ERROR.match(line.strip())]
    return named[-1] if named else message.strip().splitlines()[-1]


def make(recipe: str, name: str, folder: Path, out: Path) -> dict[str, Any]:
    """Quantizes; returns what it took and what the tool said."""
    model, source, calib = MODELS[name], folder / "model.onnx", folder / "calib"
    if recipe in PEERS:
        command = [str(peers_python()), str(ROOT / "benchmarks" / "quantization_peers.py"), PEERS[recipe]]
        command += [str(source), str(calib), str(out), "--max-drop", "0.5" if big_unit(model) else "0.005"]
        command += ["--metric", model.metric] if model.metric else []
        command += ["--transformer"] if model.transformer else []
        return run(command)[1]
    command = ["quantize", str(source), "-o", str(out), "--json", "--force", *OURS[recipe]]
    if OURS[recipe][1] not in ("int8-dynamic", "int8-weights"):
        command += ["--calib", str(calib)]
    if recipe == "int8 search":
        command[command.index("--max-drop") + 1] = "0.5" if big_unit(model) else "0.005"
        command += ["--eval", str(calib), "--metric", str(model.metric)]
    refused = None
    try:
        text, facts = run([sys.executable, "-m", "deploykit", *command])
    except RuntimeError as problem:
        if not str(problem).startswith(GATES):
            raise
        refused = str(problem)
        text, facts = run([sys.executable, str(ROOT / "benchmarks" / "quantization_ungated.py"), *command])
    report = json.loads(text)
    kept = ("quantized_nodes", "float_nodes", "int8_macs_share", "size_ratio")
    metrics = {key: report["metrics"].get(key) for key in kept}
    metrics["refused"] = refused
    return {**facts, "said": metrics, "findings": sorted({finding["code"] for finding in report["findings"]})}


def big_unit(model: Model) -> bool:
    """Whether the metric is in percent."""
    return bool(model.metric) and model.metric not in ("mae", "miou", "pairs")


def scored(name: str, folder: Path, candidate: Path, engine: str = "onnxruntime") -> dict[str, Any]:
    """What quantization_score.py says of a model."""
    model, out = MODELS[name], candidate.with_suffix(f".{engine}.json")
    if candidate.parent == folder:
        out = folder / f"float.{engine}.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "quantization_score.py")]
    command += [str(folder / "model.onnx"), str(candidate), str(folder / "eval"), str(out), "--engine", engine]
    command += ["--metric", model.metric] if model.metric else []
    command += [word for pair in model.carry.items() for word in ("--carry", "=".join(pair))]
    run(command)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def size(path: Path) -> int:
    """Bytes of a model with its external data."""
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*") if part.suffix != ".json")


def cell(recipe: str, name: str, folder: Path) -> dict[str, Any]:
    """Makes and scores one; a failure is an answer, too."""
    source = folder / "model.onnx"
    candidate = source if recipe == FLOAT else folder / "made" / f"{slug(recipe)}.onnx"
    try:
        made = {} if recipe == FLOAT else make(recipe, name, folder, candidate)
        result = scored(name, folder, candidate)
    except (RuntimeError, subprocess.TimeoutExpired, OSError) as problem:
        return {"failed": str(problem)[-400:]}
    pairs = result.pop("pairs")
    row = {**result, "size_ratio": round(size(candidate) / size(source), 4), "took": made}
    if recipe != FLOAT and pairs:
        base = json.loads((folder / "float.onnxruntime.json").read_text(encoding="utf-8"))["pairs"]
        row["p_against_float"] = paired_test_of(base, pairs).p
    if recipe in ON_OPENVINO:
        try:
            row["openvino"] = {**scored(name, folder, candidate, "openvino"), "pairs": None}
        except (RuntimeError, subprocess.TimeoutExpired) as problem:
            row["openvino"] = {"failed": str(problem)[-300:]}
    return row


def paired(folder: Path) -> dict[str, dict[str, float]]:
    """How likely chance alone makes each of our results differ as it does from each peer's, sample by sample."""

    def pairs(recipe: str) -> list[tuple[float, float]]:
        path = folder / "made" / f"{slug(recipe)}.onnxruntime.json"
        return json.loads(path.read_text(encoding="utf-8"))["pairs"] if path.exists() else []

    theirs = {recipe: found for recipe in PEERS if (found := pairs(recipe))}
    ours = {recipe: found for recipe in COMPARED if (found := pairs(recipe))}
    return {
        recipe: {peer: round(paired_test_of(other, mine).p, 4) for peer, other in theirs.items()}
        for recipe, mine in ours.items()
    }


def chosen(words: str, names: list[str]) -> list[str]:
    """The names that are one of the words, or contain one that is no name."""
    wanted = [word.lower() for word in words.split(",")]
    exact = {name.lower() for name in names} & set(wanted)
    loose = [word for word in wanted if word not in exact]
    return [name for name in names if name.lower() in exact or any(word in name.lower() for word in loose)]


def load() -> dict[str, Any]:
    """What was measured before."""
    return json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}


def shown(model: Model) -> str | None:
    """The metric without the folder of a function's file."""
    return model.metric and model.metric.rpartition("/")[2]


def keep(name: str, recipe: str, row: dict[str, Any]) -> None:
    """Writes one cell; what others wrote meanwhile stays."""
    results = load()
    entry = results.setdefault(name, {"metric": shown(MODELS[name]), "data": MODELS[name].data, "cells": {}})
    entry["cells"][recipe] = row
    order = [FLOAT, *OURS, *PEERS]
    entry["paired"] = paired(WORK / slug(name))
    entry["cells"] = {key: entry["cells"][key] for key in order if key in entry["cells"]}
    results = {key: results[key] for key in MODELS if key in results}
    fresh = OUT.with_suffix(".new")
    fresh.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(OUT)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="")
    parser.add_argument("--recipes", default="")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--rescore", action="store_true", help="score again what was made, without making it")
    parser.add_argument("--latency", action="store_true")
    options = parser.parse_args()
    recipes = chosen(options.recipes, [FLOAT, *OURS, *PEERS])
    for name in chosen(options.models, list(MODELS)):
        model, folder = MODELS[name], laid(name, MODELS[name])
        if options.latency:
            from quantization_latency import measure

            measure(name, folder, load()[name]["cells"], keep, recipes)
            continue
        for recipe in recipes:
            known = load().get(name, {"cells": {}})["cells"].get(recipe)
            if recipe in NEEDS_METRIC and model.metric is None:
                continue
            if known is not None and "failed" not in known and not options.again:
                continue
            row = cell(recipe, name, folder)
            keep(name, recipe, row)
            said = row.get("failed") or f"{row['value']} {row['sqnr_db']} dB, int8 MACs {row['int8_macs']}"
            print(f"{name:16} {recipe:28} {said}", flush=True)


if __name__ == "__main__":
    main()
