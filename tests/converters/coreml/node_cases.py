"""The onnx package's single-operator test cases as real models have them: shape-like operands as initializers.

`python tests/converters/coreml/node_cases.py [--saved] [--write] [OPERATOR...]` prints the count of
each result and every wrong case; with operators named, the reasons of their refusals. --write keeps the counts for
docs/coreml-ops.md.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

CASES = Path(__file__).with_name("node_cases.json")
COUNTS = Path(__file__).resolve().parents[3] / "benchmarks" / "coreml_conformance.json"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a case: right, refused (with the reason), or wrong (with the difference)."""

    case: str
    op: str
    result: str
    why: str = ""


def load():
    """{case: TestCase} of the onnx package, and the list of those that count."""
    from onnx.backend.test.case.node import collect_testcases

    listed = json.loads(CASES.read_text(encoding="utf-8"))
    wanted = {row["case"] for row in listed}
    found = {case.name: case for case in collect_testcases(None) if case.name in wanted}
    return found, listed


def with_initializers(model, names, feeds):
    """The model with some of its inputs fixed."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for name in names:
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(feeds[name]), name))
    kept = [value for value in made.graph.input if value.name not in names]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    return made


def prepare(case, as_initializers):
    """The model, its feeds and the expected outputs."""
    inputs, outputs = case.data_sets[0]
    names = [value.name for value in case.model.graph.input]
    feeds = dict(zip(names, inputs, strict=False))
    model = with_initializers(case.model, as_initializers, feeds)
    kept = {name: feeds[name] for name in feeds if name not in as_initializers}
    expected = dict(zip((value.name for value in case.model.graph.output), outputs, strict=False))
    return model, kept, expected


def run(case, as_initializers, folder, *, saved=True):
    """Converts and evaluates one case. saved: through a package on disk, as users have it."""
    model, feeds, expected = prepare(case, as_initializers)
    path = Path(folder) / "case.onnx"
    onnx.save(model, path)
    op = ",".join(node.op_type for node in model.graph.node)
    made = _through_package(path, feeds) if saved else _in_memory(path, feeds)
    if isinstance(made, str):
        return Outcome(case.name, op, "refused", made)
    return Outcome(case.name, op, *judged(made, expected, case))


def judged(made, expected, case):
    for name, wanted in expected.items():
        have, wanted = made[name], np.asarray(wanted)
        if have.shape != wanted.shape:
            return "wrong", f"{name} has shape {have.shape}, not {wanted.shape}"
        half = wanted.dtype == np.float16
        close = np.allclose(
            have.astype(np.float64), wanted.astype(np.float64), rtol=2e-2 if half else max(case.rtol, 1e-4),
            atol=1e-3 if half else 1e-5, equal_nan=True,
        )  # fmt: skip
        if not close:
            worst = np.nanmax(np.abs(have.astype(np.float64) - wanted.astype(np.float64)), initial=0)
            return "wrong", f"{name} differs by {worst:.3g}"
    return "right", ""


def _through_package(path, feeds):
    from deploykit.converters.coreml.convert import convert_job
    from deploykit.converters.coreml.runtime import SimulatedRuntime
    from deploykit.errors import UnavailableError

    package = path.with_suffix(".mlpackage")
    result = convert_job(str(path), str(package), {}, {}, {}, "fp32")
    refused = [finding["message"] for finding in result["findings"] if finding["severity"] == "error"]
    if refused:
        return refused[0]
    try:
        return SimulatedRuntime(package).predict(feeds)
    except UnavailableError as problem:
        return f"not simulated: {problem.message}"


def _in_memory(path, feeds):
    """Without coremltools' passes and without a package: ten times faster."""
    import coremltools as ct

    from deploykit import graph
    from deploykit.converters.coreml.frontend import build
    from deploykit.converters.coreml.simulator import Interpreter
    from deploykit.converters.coreml.support import interface_problems
    from deploykit.errors import UnavailableError

    loaded = graph.infer_shapes(graph.load(path))
    inputs, outputs = graph.interface(loaded)
    problems = interface_problems(inputs, outputs)
    if problems:
        return problems[0].message
    built = build(loaded, inputs, outputs, {}, ct.target.iOS17)
    if built.program is None:
        return "; ".join(row.verdict.reason for row in built.refused)
    try:
        given = {built.names[name]: array for name, array in feeds.items()}
        made = Interpreter(built.program.functions["main"], "case").run(given)
    except UnavailableError as problem:
        return f"not simulated: {problem.message}"
    return {name: made[built.names[name]] for name in (spec.name for spec in outputs)}


def sweep(listed, found, *, saved=True):
    """Outcomes of the listed cases."""
    with tempfile.TemporaryDirectory() as folder:
        for row in listed:
            try:
                yield dataclasses.replace(
                    run(found[row["case"]], row["as_initializers"], folder, saved=saved), op=row["op"]
                )
            except Exception as problem:  # one broken case must not end the sweep
                yield Outcome(row["case"], row["op"], "broken", f"{type(problem).__name__}: {problem}")


def counts(outcomes):
    """What is kept of a whole sweep: totals, and {operator: [right, cases]}."""
    by_op = {}
    for outcome in outcomes:
        row = by_op.setdefault(outcome.op, [0, 0])
        row[0] += outcome.result == "right"
        row[1] += 1
    totals = collections.Counter(outcome.result for outcome in outcomes)
    return {
        "onnx": onnx.__version__,
        "cases": len(outcomes),
        **{name: totals[name] for name in ("right", "refused", "wrong", "broken")},
        "by_operator": dict(sorted(by_op.items())),
    }


def main(arguments):
    """Prints the numbers."""
    import logging

    logging.disable(logging.WARNING)
    found, listed = load()
    saved = "--saved" in arguments
    ops = [argument for argument in arguments if not argument.startswith("-")]
    if ops:
        listed = [row for row in listed if row["op"] in ops]
    outcomes = list(sweep(listed, found, saved=saved))
    if "--write" in arguments:
        COUNTS.write_text(json.dumps(counts(outcomes), indent=1) + "\n", encoding="utf-8")
    print(dict(collections.Counter(outcome.result for outcome in outcomes)))
    for outcome in outcomes:
        if outcome.result in ("wrong", "broken") or (ops and outcome.result != "right"):
            print(f"{outcome.result}: {outcome.case}: {outcome.why[:300]}")
    if not ops:
        refused = collections.Counter(outcome.op for outcome in outcomes if outcome.result == "refused")
        print(", ".join(f"{op} {count}" for op, count in refused.most_common()))


if __name__ == "__main__":
    main(sys.argv[1:])
