"""Nodes that each simplifier leaves of published and test models, and whether the result is the same model.

Use: python benchmarks/simplify_nodes.py [--engines native,onnxsim,onnxslim] [--only PART_OF_A_NAME]

Records the outcome beside this file; `tests/optimizers/test_simplify_nodes.py` holds the native engine to it. A result
is valid when `deploykit simplify` would accept it: equal interface and outputs, and a file within --max-growth.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import onnx

from deploykit.errors import DeploykitError
from deploykit.isolation import run_isolated, workers
from deploykit.optimizers.candidates import BLOCKED, TIMEOUT_SECONDS, attempt, worker_of
from deploykit.optimizers.stage import ALLOWANCE

SHARED = Path(__file__).parents[2] / "shared"
BACKEND = Path(onnx.__file__).parent / "backend" / "test" / "data"
RESULT = Path(__file__).with_suffix(".json")
GROWTH = 1.05
ENGINES = ("native", "onnxsim", "onnxslim")
_JOBS = "deploykit.optimizers.engines"


def models() -> dict[str, Path]:
    """By name: what is present of the shared models and cases, and the onnx package's whole-model tests."""
    found = {}
    for root, folders in (
        (SHARED, ("models", "cases")),
        (BACKEND, ("light", "simple", "pytorch-converted", "pytorch-operator")),
    ):
        for folder in folders:
            for path in sorted((root / folder).rglob("*.onnx")):
                found[str(path.relative_to(root)).removesuffix("/model.onnx")] = path
    return found


def outcome(engine: str, path: Path, size: int) -> dict[str, Any]:
    """Nodes and bytes of an engine's result, valid, and why not; the native engine gets its second, exact try."""
    with tempfile.TemporaryDirectory() as scratch:
        found: dict[str, Any] = {}
        for exact in (False, True) if engine == "native" else (False,):
            try:
                made = attempt(engine, path, Path(scratch), exact=exact)
                found = {"nodes": made.nodes, "bytes": made.size, **({"exact": True} if exact else {})}
                why = _wrong(path, made.path)
            except DeploykitError as problem:
                why = problem.message[:200]
            if not why and found["bytes"] > max(GROWTH * size, size + ALLOWANCE):
                why = f"the file is {found['bytes'] / size:.1f} times as large"
            if not why:
                return {**found, "valid": True}
        return {**found, "valid": False, "why": why}


def _wrong(original: Path, candidate: Path) -> str:
    arguments = {"original": str(original), "candidate": str(candidate), "dims": {}, "seed": 0}
    job = f"{_JOBS}:verify_job"
    result = run_isolated(worker_of("native"), job, arguments, block=BLOCKED, timeout=TIMEOUT_SECONDS)
    wrong = [finding["message"] for finding in result["findings"] if finding["severity"] == "error"]
    if not wrong and not result["compared"]:
        wrong = ["not compared: " + "; ".join(finding["message"] for finding in result["findings"])]
    return "; ".join(wrong).replace(f"{BACKEND.parents[3]}/", "")[:200]


def within(row: dict[str, Any], share: float = 1.05) -> bool:
    """Whether the native result is valid and at most `share` times the better valid one of the others."""
    others = [row[engine]["nodes"] for engine in ENGINES[1:] if row.get(engine, {}).get("valid")]
    best = min([row["nodes"], *others])
    return bool(row["native"]["valid"]) and row["native"]["nodes"] <= share * best


def main() -> None:
    """Measures, records and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    rows: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    with workers():
        for name, path in models().items():
            if given.only not in name:
                continue
            try:
                arguments = {"model": str(path)}
                before = run_isolated(worker_of("native"), f"{_JOBS}:measure_job", arguments, block=BLOCKED)
            except DeploykitError:  # a case of a file that has to be refused
                continue
            row = rows.setdefault(name, {})
            row.update(nodes=before["nodes"], bytes=path.stat().st_size)
            for engine in given.engines.split(","):
                row[engine] = outcome(engine, path, row["bytes"])
            RESULT.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    print(f"{'model':50} nodes  " + "  ".join(f"{engine:>10}" for engine in ENGINES))
    for name, row in rows.items():
        cells = [f"{row[e].get('nodes', '-')}{'' if row[e]['valid'] else '!'}" for e in ENGINES if e in row]
        print(f"{name:50} {row['nodes']:5}  " + "  ".join(f"{cell:>10}" for cell in cells))
    good = sum(map(within, rows.values()))
    print(f"native: valid on {sum(row['native']['valid'] for row in rows.values())} of {len(rows)},", end=" ")
    print(f"within 5 % of the better valid one of the others on {good}")


if __name__ == "__main__":
    main()
