"""Converts published models to every target, and writes what came of each: verified, with which numbers, or refused.

python benchmarks/targets.py [--only TARGET,TARGET] [WORD...]   # writes targets.json, of which docs/ has a table
python benchmarks/targets.py --latency [...]                    # times what was verified, on a quiet machine

WORD: only models whose name contains it; the other cells stay as they are. Models lie beside the checkout. A model with
symbolic dimensions is converted as it is; where that fails, with the sizes of its first input fixed. Each cell is one
`deploykit convert` and its gates: the artifact against its source, on real inputs.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import targets_models
from quantization_data import ROOT, SHARED

from deploykit.target import get_target, parse_target, target_names

OUT = ROOT / "benchmarks" / "targets.json"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deploykit-benchmarks" / "targets"
DEPLOYKIT = [sys.executable, "-m", "deploykit"]
_LONGEST_S = 1200
_FIXED = "fixed sizes"
# What a toolchain has to be told: the chip, and inputs where it quantizes by itself.
_TOLD = {"ascend": ("--option", "soc_version=Ascend310P3")}
_MEASURING = {"hailo", "tidl"}


def main() -> None:
    """Runs the cells that were asked for and writes the file after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--only", default=",".join(target_names()))
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--missing", action="store_true", help="only cells that are not there, or that a bug ended")
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    rows = {
        name: row
        for name, row in targets_models.ROWS.items()
        if not asked.words or any(word in name for word in asked.words)
    }
    cells = [(name, target) for name in rows for target in asked.only.split(",")]
    if asked.missing:
        cells = [(name, target) for name, target in cells if lacks(known().get(name, {}).get(target))]
    if asked.latency:
        for name, target in cells:
            cell = known().get(name, {}).get(target, {})
            if cell.get("status") == "verified":
                cell["latency"] = latency(name, target, cell)
                print(name, target, cell["latency"], flush=True)
                keep(name, target, cell)
        return
    for name, row in rows.items():
        targets_models.laid(row, CACHE / name)
    with ThreadPoolExecutor(asked.workers) as pool:
        for (name, target), cell in zip(cells, pool.map(lambda pair: judged(*pair), cells), strict=True):
            keep(name, target, cell)
            print(name, target, cell["status"], cell.get("because", cell.get("difference")), flush=True)


def keep(name: str, target: str, cell: dict) -> None:
    """Puts a cell into the file, rows and columns in the order of the tables; others may be writing to it."""
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = known()
        made.setdefault(name, {})[target] = cell
        rows = {
            row: {column: made[row][column] for column in target_names() if column in made[row]}
            for row in targets_models.ROWS
            if row in made
        }
        OUT.write_text(json.dumps({"rows": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def lacks(cell: dict | None) -> bool:
    """Whether a cell is to be made."""
    return cell is None or any(cell.get(why, {}).get("code") == "DK890" for why in ("because", "unless"))


def known() -> dict:
    """Cells by row and column, as far as they were measured."""
    return json.loads(OUT.read_text(encoding="utf-8"))["rows"] if OUT.exists() else {}


def judged(name: str, target: str) -> dict:
    """One cell: converted as it is, else with fixed sizes; the better one, and why the other one is not it."""
    row = targets_models.ROWS[name]
    every, fixed, fixing = targets_models.laid(row, CACHE / name)
    told = [*_TOLD.get(target, ())]
    if target in _MEASURING:
        told += ["--calib", str(fixed or every)]
    first = converted(name, target, [*row.options, *told, "--data", str(every)])
    if first["status"] not in ("refused", "failed") or fixed is None:
        return first
    options = [text for text in row.options if not text.startswith("length=")]
    options = [text for place, text in enumerate(options) if text != "--dim" or place + 1 < len(options)]
    second = converted(name, target, [*options, *told, "--data", str(fixed), *fixing])
    if second["status"] in ("refused", "failed"):
        return {**second, "sizes": _FIXED, "unless": first["because"]}
    return {**second, "sizes": _FIXED, "unless": first["because"]}


def artifact_path(name: str, target: str) -> Path:
    """Where the artifact of a cell is kept."""
    described = get_target(target)
    return CACHE / name / target / f"{Path(name).stem}{described.suffix}"


def converted(name: str, target: str, options: list[str]) -> dict:
    """What one `deploykit convert` says."""
    output = artifact_path(name, target)
    output.parent.mkdir(parents=True, exist_ok=True)
    source = str(targets_models.ROWS[name].source)
    command = [*DEPLOYKIT, "convert", source, "--to", target, "-o", str(output), "--json", "--force", *options]
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
        report = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"status": "failed", "because": {"message": f"took more than {_LONGEST_S} s"}}
    except ValueError:
        return {"status": "failed", "because": {"message": f"exit {done.returncode}: {done.stderr[-300:]}"}}
    cell = {"status": _status(report), "seconds": round(time.perf_counter() - started, 1)}
    version = parse_target(target)[1]
    if version:
        cell["version"] = version
    if cell["status"] in ("refused", "failed", "missing"):
        return {**cell, "because": _because(report)}
    artifact = report["artifact"]
    gates = report["metrics"].get("parity") or {}
    parity = gates.get("parent") or gates.get("source") or gates
    outputs = parity.get("outputs") or []
    cell["size_bytes"] = artifact["size_bytes"]
    if str(source).endswith(".onnx"):
        cell["size_ratio"] = round(artifact["size_bytes"] / Path(source).stat().st_size, 3)
    if outputs:
        worst = [row["sqnr_db"] for row in outputs if row["sqnr_db"] is not None]
        cell["sqnr_db"] = round(min(worst), 1) if worst else None
        cell["difference"] = max((row["max_abs"] or 0.0 for row in outputs), default=0.0)
        cell["samples"] = parity["samples"]
        cell["engine"] = (parity.get("engines") or {}).get("candidate")
    said = [f for f in report["findings"] if f["code"] in ("DK502", "DK590")]
    if said and cell["status"] != "verified":
        told = next((f for f in said if "build bundle" in f["message"]), said[0])
        cell["because"] = {"message": _clean(told["message"])}
    return cell


def _status(report: dict) -> str:
    if report["exit_code"] == 0:
        execution = report["artifact"]["execution"]
        return {"real": "verified", "simulated": "simulated"}.get(execution, "built")
    if report["exit_code"] == 3 and any(f["code"] == "DK214" for f in report["findings"]):
        return "refused"  # no package would change that
    if report["exit_code"] == 3:
        return "bundle" if report["status"] == "passed" and report["artifact"] else "missing"
    return "refused" if report["exit_code"] in (1, 2) else "failed"


def _because(report: dict) -> dict:
    """The first error, without the folders of this machine."""
    found = [f for f in report["findings"] if f["severity"] == "error"] or [{"message": "no reason was given"}]
    named = next((f for f in found if f.get("node")), found[0])
    kept = {key: named.get(key) for key in ("code", "node", "op", "message") if named.get(key)}
    return {**kept, "message": _clean(kept["message"]), **({"findings": len(found)} if len(found) > 1 else {})}


def _clean(text: str) -> str:
    for folder in (CACHE, SHARED, ROOT):
        text = text.replace(f"{folder}/", "")
    # Folders that were made for one run.
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/(?:[^ '\"/]+/)*", "", " ".join(text.split()))[:400]


def latency(name: str, target: str, cell: dict) -> float | None:
    """How many times as fast as onnxruntime the artifact is, one sample a call, same data and threads, interleaved."""
    row = targets_models.ROWS[name]
    every, fixed, _ = targets_models.laid(row, CACHE / name)
    data = fixed if cell.get("sizes") == _FIXED else every
    base = row.source if str(row.source).endswith(".onnx") else artifact_path(name, "onnxruntime")
    if not Path(base).exists():
        return None
    command = [*DEPLOYKIT, "bench", str(base), str(artifact_path(name, target)), "--data", str(data)]
    done = subprocess.run(
        [*command, "--threads", "2", "--seconds", "1", "--json"], capture_output=True, text=True, check=False
    )
    rows = json.loads(done.stdout)["metrics"].get("rows", [])
    if len(rows) != 2 or not all(row.get("p50_ms") for row in rows):
        return None
    return round(rows[0]["p50_ms"] / rows[1]["p50_ms"], 3)


if __name__ == "__main__":
    main()
