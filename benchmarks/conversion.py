"""`deploykit convert` against the vendor's own command on the same model: wall time and peak memory, as ratios.

python benchmarks/conversion.py [--rounds N] [--only TARGET]... [WORD...]   # writes conversion.json

vendor: the vendor's tool as a script calls it. careful: the same, and one comparison of both models on the same
samples, which is what deploykit adds. start-up: `deploykit --version`. Runs take turns; medians; memory is the peak of
the whole process tree, a page that several processes share counted once (PSS). Models lie beside the checkout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import targets_models
from quantization_data import ROOT
from simplify import measured, proportional
from targets import CACHE

OUT = ROOT / "benchmarks" / "conversion.json"
CHILD = ROOT / "benchmarks" / "conversion_vendor.py"
MODELS = ("ppocr_v4/rec.onnx", "dnsmos/sig_bak_ovr.onnx", "nsnet2/nsnet2-20ms-baseline.onnx")
TARGETS = {
    "onnxruntime": ".onnx",
    "openvino": ".xml",
    "tensorrt-rtx": ".engine",
    "mnn": ".mnn",
    "ncnn": ".param",
    "tvm": ".so",
}


def sides(model: str, target: str, folder: Path) -> dict[str, list[str]]:
    """The commands that are timed."""
    row = targets_models.ROWS[model]
    every, fixed, fixing = targets_models.laid(row, CACHE / model)
    data = str(fixed or every)
    vendor = [sys.executable, str(CHILD), target, str(row.source), data]
    return {
        "vendor": [*vendor, str(folder / f"vendor{TARGETS[target]}")],
        "careful": [*vendor, str(folder / f"careful{TARGETS[target]}"), "--compare"],
        "deploykit": [
            *(sys.executable, "-m", "deploykit", "convert", str(row.source), "--to", target, "--force"),
            *("-o", str(folder / f"ours{TARGETS[target]}"), "--data", data, *fixing),
        ],
        "start-up": [sys.executable, "-m", "deploykit", "--version"],
    }


def main() -> None:
    """Measures each pair and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append")
    asked = parser.parse_args()
    made = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for model in MODELS:
        if asked.words and not any(word in model for word in asked.words):
            continue
        for target in asked.only or TARGETS:
            with tempfile.TemporaryDirectory() as scratch:
                found = pair(sides(model, target, Path(scratch)), asked.rounds)
            made.setdefault(model, {})[target] = found
            report(model, target, found)
            OUT.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def pair(commands: dict[str, list[str]], rounds: int) -> dict:
    """Medians of all sides, or why one did not run."""
    peaks: dict[str, list[int]] = {name: [] for name in commands}
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for name, command in commands.items():  # looking at memory takes time, so this run's is not counted
        try:
            measured(command, peaks[name], [], proportional)
        except subprocess.CalledProcessError as problem:
            return {"not_measured": f"{name}: exit {problem.returncode}"}
    for _ in range(rounds):
        for name, command in commands.items():
            seconds[name].append(measured(command, [], []))
    return {
        name: {"seconds": round(statistics.median(seconds[name]), 3), "peak_mib": max(peaks[name])} for name in commands
    }


def report(model: str, target: str, found: dict) -> None:
    """One line."""
    if "not_measured" in found:
        print(f"{model} {target}: {found['not_measured']}", flush=True)
        return
    own = found["deploykit"]["seconds"] - found["start-up"]["seconds"]
    ratios = {name: own / found[name]["seconds"] for name in ("vendor", "careful")}
    memory = {name: found["deploykit"]["peak_mib"] / found[name]["peak_mib"] for name in ("vendor", "careful")}
    print(
        f"{model} {target}: {found['deploykit']['seconds']} s, less start-up {ratios['vendor']:.2f} of vendor and "
        f"{ratios['careful']:.2f} of careful; memory {memory['vendor']:.2f} and {memory['careful']:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
