"""Compares what `deploykit check` says of the onnx package's node tests with what really happens.

python benchmarks/compatibility.py [ENGINE...] [--cache FILE] [--only verdicts|outcomes] [--again] [--write]

Outcomes are kept in the cache (a JSON file outside the checkout), so that an interrupted sweep goes on where it stopped
and verdicts can be asked for again after a change (--again). --write: benchmarks/compatibility.json, and the table and
the exceptions in docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import onnx  # noqa: E402
import operator_cases  # noqa: E402
import operator_outcomes  # noqa: E402

from deploykit.errors import VendorError  # noqa: E402
from deploykit.isolation import Worker, workers  # noqa: E402
from deploykit.lazy import version_of  # noqa: E402
from deploykit.opsupport.checker import check_model  # noqa: E402
from deploykit.opsupport.verdict import Status  # noqa: E402
from deploykit.target import get_target  # noqa: E402

ENGINES = ("onnxruntime", "openvino", "tensorrt-rtx", "coreml")
_PATH = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
TIMEOUT = 60
BEGIN, END = "<!-- confusion: written by benchmarks/compatibility.py -->", "<!-- confusion: end -->"
EXPECTED = ("supported, runs", "conditional, runs", "unsupported, does not")
EVERY = 300  # cases before a worker is renewed: vendors keep memory


def outcomes(engine, names, *, function="operator_outcomes:outcome"):
    """(name, [result, why]) of each case; a crash of the vendor is an outcome."""
    worker, used = None, 0
    for name in names:
        if worker is None or used == EVERY:
            if worker is not None:
                worker.close()
            worker, used = Worker(f"outcomes-{engine}", environment={"PYTHONPATH": _PATH}), 0
        used += 1
        try:
            found = worker.call(
                function,
                {"engine": engine, "name": name},
                block=get_target(engine).blocked,
                timeout=TIMEOUT,
            )
        except VendorError as problem:
            found = ["crashed", problem.message]
            if not worker.alive:
                worker.close()
                worker = None
        yield name, found
    if worker is not None:
        worker.close()


def verdicts(engine, names):
    """(name, [runs, reason]) of each case, as `check` has it: the whole path, not the engine's own function."""
    for start in range(0, len(names), EVERY):
        with workers():
            for name in names[start : start + EVERY]:
                with operator_outcomes.saved(operator_cases.case(name)) as path:
                    yield name, verdict(path, engine)


def verdict(path, engine):
    """[supported, conditional, unsupported or unknown, reason]."""
    summary = check_model(path, [engine])[0]
    if summary.problem is not None:
        return ["unknown", summary.problem.message[:300]]
    reasons = [f"{node.op}: {node.verdict.reason}" for node in summary.nodes if node.verdict.reason]
    reasons += [finding.message for finding in summary.findings if finding.severity == "error"]
    words = {True: "supported", False: "unsupported", None: "unknown"}
    said = "conditional" if summary.runs and summary.of(Status.CONDITIONAL) else words[summary.runs]
    return [said, "; ".join(reasons)[:300]]


def confusion(rows):
    """Counts of {verdict x outcome}: rows as {name: (verdict, outcome)}."""
    counts = collections.Counter()
    for said, really in rows.values():
        counts[kind(said, really)] += 1
    return counts


def kind(said, really):
    """Which field of the matrix a case is in."""
    if really[0] == "unseen":
        return f"{said[0]}, unseen"
    return f"{said[0]}, {'runs' if really[0] in operator_outcomes.TAKEN else 'does not'}"


class Cache:
    """A JSON file of {engine: {kind: {case: answer}}}, written every 20 s."""

    def __init__(self, path):
        self.path = path
        self.rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.written = time.monotonic()

    def of(self, engine, kind):
        """The answers of one kind, to be added to."""
        return self.rows.setdefault(engine, {}).setdefault(kind, {})

    def save(self, *, now=False):
        """Writes the file, when it was not written lately."""
        if now or time.monotonic() - self.written > 20:
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(self.rows), encoding="utf-8")
            new.replace(self.path)
            self.written = time.monotonic()


def record(rows):
    """What is kept of an engine: the matrix, and each case that is not as the verdict says, with both reasons."""
    surprising = {
        name: [kind(said, really), said[1], really[1]]
        for name, (said, really) in sorted(rows.items())
        if kind(said, really) not in EXPECTED
    }
    return {"matrix": dict(sorted(confusion(rows).items())), "exceptions": surprising}


def section(kept):
    """The part of docs/compatibility.md that the numbers make."""
    lines = [
        "| target | engine | cases | supported | do not run | conditional | do not run | refused | run | unknown |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in kept["targets"].items():
        matrix = collections.Counter(found["matrix"])
        cells = [sum(matrix.values())]
        for said, surprise in (("supported", "does not"), ("conditional", "does not"), ("unsupported", "runs")):
            cells += [sum(matrix[f"{said}, {what}"] for what in ("runs", "does not")), matrix[f"{said}, {surprise}"]]
        cells.append(sum(count for field, count in matrix.items() if field.startswith("unknown")))
        lines.append(f"| `{name}` | {found['version']} | {' | '.join(map(str, cells))} |")
    lines += ["", "Exceptions, by the name of the test (`@constants`: all inputs but the first as initializers):", ""]
    for name, found in kept["targets"].items():
        groups = collections.defaultdict(list)
        for case, (field, said, really) in found["exceptions"].items():
            groups[field, _in_words(field, said, really)].append(f"`{case.removeprefix('test_')}`")
        for (field, why), names in sorted(groups.items()):
            lines.append(f"- `{name}`, {field}: {why}. {', '.join(names)}")
    return "\n".join(lines)


def _in_words(field, said, really):
    """Why a case is an exception: the condition that it breaks, or what the verdict has against it."""
    told = said.split(": ", 1)[-1].split("; ")[0] if said else really
    return told.rstrip(".") or "no reason is known"


def write(kept):
    """Puts the numbers into the repository."""
    (HERE / "compatibility.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    docs = HERE.parent / "docs" / "compatibility.md"
    before, _, rest = docs.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    docs.write_text(f"{before}{BEGIN}\n{section(kept)}\n{END}{after}", encoding="utf-8")


def main():
    """Sweeps, prints the matrices, and writes them where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "deploykit-compatibility.json")
    parser.add_argument("--only", choices=("verdicts", "outcomes"))
    parser.add_argument("--again", action="store_true", help="ask for the verdicts again")
    parser.add_argument("--write", action="store_true", help="write the numbers into the repository")
    chosen = parser.parse_args()
    names = operator_cases.names()
    cache = Cache(chosen.cache)
    kept = {"onnx": onnx.__version__, "cases": len(names), "targets": {}}
    for engine in chosen.engines or ENGINES:
        for what, function in (("outcomes", outcomes), ("verdicts", verdicts)):
            if chosen.only not in (None, what):
                continue
            known = cache.of(engine, what)
            if what == "verdicts" and chosen.again:
                known.clear()
            started = time.perf_counter()
            for name, answer in function(engine, [name for name in names if name not in known]):
                known[name] = answer
                cache.save()
            cache.save(now=True)
            print(engine, what, len(known), f"{time.perf_counter() - started:.0f} s", flush=True)
        said, really = cache.of(engine, "verdicts"), cache.of(engine, "outcomes")
        made = record({name: (said[name], really[name]) for name in names if name in said and name in really})
        print(engine, made["matrix"], flush=True)
        kept["targets"][engine] = {"version": version_of(get_target(engine).distributions[0]), **made}
    if chosen.write:
        write(kept)


if __name__ == "__main__":
    main()
