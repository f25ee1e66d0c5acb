"""`check` beside its nearest peers, node by node: Microsoft's winml-cli, and onnxruntime's mobile usability checker.

    python benchmarks/check_peers.py [--env FOLDER] [MODEL.onnx ...]

The peers get an environment of their own (winml-cli pins its own onnx and numpy). winml-cli judges fixed shapes only,
so every symbolic dimension is 1 for both sides. Its `analyze` looks each node up in tables that Microsoft measured; the
mobile checker looks operator types up in onnxruntime's documentation. For openvino and tensorrt-rtx our verdicts are
the installed engines' own, so that a difference is an error of the table; for the others two tables differ. Constants
are left out: both runtimes compute them before anything is cut, and the mobile checker counts them as refused.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from deploykit import graph
from deploykit.graph.shapes import set_dims
from deploykit.isolation import workers
from deploykit.opsupport import Status
from deploykit.opsupport.checker import check_model

ROOT = Path(__file__).parents[1]
CHILD = Path(__file__).with_name("peer_verdicts.py")
# What `winml analyze` imports; torch, transformers and the rest of its requirements are for its other commands.
PINS = (
    "click>=8.4", "colorama", "pyarrow==23.0.1", "numpy>=2.2,<2.3", "onnx==1.18", "onnx-ir", "onnxscript",
    "pandas==2.3.3", "psutil", "pydantic>=2", "rapidfuzz", "rich>=14", "snakemd>=2", "opentelemetry-sdk", "onnxruntime",
    "filelock", "requests", "jsonschema", "tqdm",
)  # fmt: skip
TARGETS = ("openvino", "tensorrt-rtx", "onnxruntime@qnn", "onnxruntime@nnapi", "onnxruntime@coreml")
RUNS = {"supported": True, "partial": True, "unsupported": False, "unknown": None}
KINDS = {
    (True, True): "both run",
    (False, False): "both refuse",
    (True, False): "we run, they refuse",
    (False, True): "we refuse, they run",
    (True, None): "we run, they do not know",
    (False, None): "we refuse, they do not know",
    (None, True): "we do not know, they run",
    (None, False): "we do not know, they refuse",
    (None, None): "neither knows",
}


def main() -> int:
    """Prints the agreement with each peer on each target, with examples of each kind of difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", type=Path, default=Path(tempfile.gettempdir()) / "deploykit-peers")
    parser.add_argument("models", nargs="*", type=Path)
    asked = parser.parse_args()
    shared = Path(os.environ.get("DEPLOYKIT_SHARED", ROOT.parent / "shared")) / "models"
    models = asked.models or sorted(shared.rglob("*.onnx"))
    python = environment(asked.env)
    kinds: dict[str, Counter[str]] = {}
    examples: dict[tuple[str, str], list[str]] = {}
    seconds: Counter[str] = Counter()
    pieces: list[str] = []
    with tempfile.TemporaryDirectory() as folder, workers():
        for model in models:
            fixed = fix_shapes(model, Path(folder) / f"{model.parent.name}-{model.name}")
            theirs = ask_peers(python, fixed)
            started = time.perf_counter()
            ours = dict(zip(TARGETS, check_model(fixed, TARGETS), strict=True))
            seconds["deploykit, all of these targets"] += time.perf_counter() - started
            for peer, answer in theirs.items():
                summary = ours[peer.split()[1]]
                seconds[peer] += answer["seconds"]
                mine = {node.node: node for node in summary.nodes}
                for name, said in answer["nodes"].items():
                    if mine[name].op == "Constant":
                        continue
                    verdict = mine[name].verdict
                    known = None if verdict.status is Status.UNKNOWN else verdict.runs
                    kind = KINDS[known, RUNS[said]]
                    kinds.setdefault(peer, Counter())[kind] += 1
                    reason = f": {verdict.reason[:140]}" if verdict.reason else ""
                    examples.setdefault((peer, kind), []).append(f"{fixed.stem} {name} ({mine[name].op}){reason}")
                if answer["partitions"] is not None:
                    pieces.append(f"{peer} {fixed.stem}: {summary.partitions} here, {answer['partitions']} there")
    report(kinds, examples, seconds, pieces)
    return 0


def report(
    kinds: dict[str, Counter[str]],
    examples: dict[tuple[str, str], list[str]],
    seconds: Counter[str],
    pieces: list[str],
) -> None:
    """Prints what was found."""
    for peer, counts in kinds.items():
        total = counts.total()
        print(f"\n{peer}: {total:,} nodes")
        for kind, count in counts.most_common():
            print(f"  {kind:30} {count:6,}  {count / total:6.1%}")
            if kind in ("both run", "neither knows"):
                continue
            shown: dict[str, str] = {}
            for line in examples[peer, kind]:
                shown.setdefault(line.partition("(")[2].partition(")")[0], line)
            print("".join(f"      {line}\n" for line in list(shown.values())[:4]), end="")
    print("\npartitions")
    print("\n".join(f"  {line}" for line in pieces))
    print("\nseconds, imports left out")
    print("\n".join(f"  {name:34} {spent:7.2f}" for name, spent in seconds.items()))


def environment(folder: Path) -> Path:
    """The interpreter of the peers' environment, made when it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--no-deps", "winml-cli==0.4.0"], check=True)
        subprocess.run([*pip, *PINS], check=True)
    return python


def fix_shapes(model: Path, into: Path) -> Path:
    """A copy in which every node has a name and every symbolic dimension is 1."""
    loaded = set_dims(graph.name_nodes(graph.load(model)), {})
    graph.save(graph.infer_shapes(loaded), into)
    return into


def ask_peers(python: Path, model: Path) -> dict[str, dict[str, object]]:
    """What the peers say, by peer and target."""
    call = [str(python), str(CHILD), str(model.resolve())]
    # onnxruntime's shape inference writes a model of its own into the current folder.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{model.name}: the peers failed:\n{done.stderr[-500:]}", file=sys.stderr)
        return {}
    sys.stderr.writelines(f"{line}\n" for line in done.stderr.splitlines() if line.startswith(model.name))
    answers: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return answers


if __name__ == "__main__":
    sys.exit(main())
