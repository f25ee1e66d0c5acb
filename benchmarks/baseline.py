"""Whether `bench --baseline` finds a slower model, always, and raises no alarm for one that is not.

python benchmarks/baseline.py [--times 20] [--seconds 1] [--write]

A network of 12 residual convolutions is the baseline. It is held against itself, exported anew under another producer's
name (other bytes, the same work), and against one with 15 (really slower, by about a quarter). Both with an artifact
beside them that has not changed ("reference"), and alone. What else the machine does is left as it is: its load is
recorded. Sides are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

import numpy as np
import onnx

import deploykit

RESULTS = Path(__file__).with_suffix(".json")
_CHANNELS, _SIZE = 48, 40


def network(path, layers, producer):
    """A chain of residual 3x3 convolutions."""
    values = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for at in range(layers):
        kernel = (values.standard_normal((_CHANNELS, _CHANNELS, 3, 3)) * 0.02).astype(np.float32)
        weights.append(onnx.numpy_helper.from_array(kernel, f"w{at}"))
        nodes.append(onnx.helper.make_node("Conv", [last, f"w{at}"], [f"c{at}"], f"/layers.{at}/Conv", pads=[1] * 4))
        nodes.append(onnx.helper.make_node("Relu", [f"c{at}"], [f"r{at}"], f"/layers.{at}/Relu"))
        nodes.append(onnx.helper.make_node("Add", [last, f"r{at}"], [f"a{at}"], f"/layers.{at}/Add"))
        last = f"a{at}"
    shape = [1, _CHANNELS, _SIZE, _SIZE]
    made = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", last)]
    graph = onnx.helper.make_graph(nodes, "network", made[:1], made[1:], weights)
    opsets = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, producer_name=producer, ir_version=9, opset_imports=opsets), path)
    return path


def once(files, baseline, seconds):
    """One comparison: exit code, what is said of the last artifact, and the numbers."""
    report = deploykit.bench(*files, baseline=baseline, seconds=seconds, threads=1)
    row = report.metrics["baseline"]["rows"][-1]
    return {
        "exit": int(report.exit_code),
        "verdict": row["verdict"],
        "ratio": round(row["ratio"], 3),
        "interval": [round(bound, 3) for bound in row["interval"]],
        "runs": len(row["runs"]),
        "load": round(os.getloadavg()[0], 1),
    }


def measured(folder, times, seconds):
    """By mode and side what each comparison said."""
    reference = network(folder / "released.onnx", 10, "reference")
    (folder / "same").mkdir()
    (folder / "slow").mkdir()
    candidate = network(folder / "candidate.onnx", 12, "before")
    sides = {
        "unchanged": network(folder / "same" / "candidate.onnx", 12, "now"),
        "slower": network(folder / "slow" / "candidate.onnx", 15, "now"),
    }
    modes = {"reference": [reference], "alone": []}
    baselines = {}
    for mode, beside in modes.items():
        report = deploykit.bench(*beside, candidate, seconds=seconds, threads=1)
        baselines[mode] = folder / f"{mode}.json"
        baselines[mode].write_text(json.dumps(report.as_dict()), encoding="utf-8")
    found = {mode: {side: [] for side in sides} for mode in modes}
    for turn in range(times):
        for mode, beside in modes.items():
            for side, file in sides.items():
                one = once([*beside, file], baselines[mode], seconds)
                found[mode][side].append(one)
                print(turn, mode, side, one, flush=True)
    return found


def summary(found):
    """Counts by mode and side."""
    lines = {}
    for mode, sides in found.items():
        for side, rows in sides.items():
            lines[f"{mode}, {side}"] = {
                "times": len(rows),
                "alarms": sum(row["exit"] == 1 for row in rows),
                "undecided": sum(row["verdict"] == "undecided" for row in rows),
                "median_ratio": statistics.median(row["ratio"] for row in rows),
                "ratios": [min(row["ratio"] for row in rows), max(row["ratio"] for row in rows)],
                "mean_runs": round(statistics.mean(row["runs"] for row in rows), 2),
                "load": [min(row["load"] for row in rows), max(row["load"] for row in rows)],
            }
    return lines


def main():
    """Runs, prints, and writes where asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), given.times, given.seconds)
    told = {"seconds": given.seconds, "max_slowdown": 1.1, "summary": summary(found), "comparisons": found}
    print(json.dumps(told["summary"], indent=1))
    if given.write:
        RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
