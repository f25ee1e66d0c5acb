"""The conformance run of the Core ML converter for the two others of 2026: onnx2coreml and onnxsim's exporter.

`python benchmarks/coreml_rivals.py [RIVAL...] [--write] [--case NAME]`: the 952 single-operator cases of
tests/converters/coreml/node_cases.py, shape-like operands as initializers. The rivals convert in an environment of
their own (fp32, iOS17), each case with a time limit; their packages are evaluated here, by the interpreter that judges
ours. --write keeps the counts in benchmarks/coreml_rivals.json, from which docs/coreml-ops.md has its columns.

right: shapes and values as the case says. refused: an error of the converter's own. crashed: another exception, the end
of the process, the time limit, or a package that coremltools does not load. wrong: a package that gives other values,
or declares another shape. unchecked: Apple's documentation leaves it open, or the interpreter lacks an operator.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import importlib.util
import json
import logging
import os
import selectors
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("DEPLOYKIT_BENCHMARKS", Path.home() / ".cache" / "deploykit-benchmarks"))
RESULT = Path(__file__).with_suffix(".json")
CHILD = Path(__file__).with_name("coreml_rivals_child.py")
RIVALS = {"onnx2coreml": "1.1.0", "onnxsim": "0.8.1"}
RESULTS = ("right", "refused", "crashed", "wrong", "unchecked")
SECONDS = 60.0
KEPT = 300  # characters of a reason
# Differences that are no proof against the converter, by the end of the case's name, looked at by hand.
OPEN = {
    "_select_last_index": "the documentation of reduce_argmax and reduce_argmin guarantees no order of ties",
    "_div_int32_trunc": "the documentation of real_div does not say how it rounds integers",
}


def rivals_python() -> Path:
    """The interpreter of an environment with both, and with the versions of what they share with us."""
    folder = CACHE / "rivals"
    python = folder / "bin" / "python"
    if not (folder / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        wanted = [f"{name}=={version}" for name, version in RIVALS.items()]
        constraints = ["-c", str(ROOT / "constraints.txt")]
        packages = [*wanted, "onnx", "coremltools", "numpy"]
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *constraints, *packages], check=True)
        (folder / "done").touch()
    return python


class Child:
    """A process of the rivals' environment; a new one after a crash or when the time is over."""

    def __init__(self) -> None:
        """Nothing is started before the first case."""
        self._process: subprocess.Popen[str] | None = None

    def call(self, request: dict[str, str]) -> dict[str, str]:
        """What the child answers; result "crashed" when it does not."""
        if self._process is None:
            self._process = subprocess.Popen(
                [str(rivals_python()), str(CHILD)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ)
            ready = waiting.select(SECONDS)
        line = process.stdout.readline() if ready else ""
        if line:
            answer: dict[str, str] = json.loads(line)
            return answer
        why = f"the process ended ({process.poll()})" if ready else f"no answer within {SECONDS:g} s"
        self.close()
        return {"result": "crashed", "why": why}

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class NotLoadedError(Exception):
    """A package that coremltools does not load again."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    case: str
    op: str
    result: str
    why: str = ""


def cases_module() -> Any:
    """tests/converters/coreml/node_cases.py, which lists the cases and judges ours."""
    file = ROOT / "tests" / "converters" / "coreml" / "node_cases.py"
    spec = importlib.util.spec_from_file_location("node_cases", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def evaluated(package: Path, model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """Outputs of a package by the model's names. Inputs and outputs go by name, by position where a name is another."""
    from deploykit.converters.coreml.inspect import open_package
    from deploykit.converters.coreml.simulator import Interpreter

    try:
        opened = open_package(package)
    except Exception as problem:  # whatever coremltools raises for a program that is not sound
        raise NotLoadedError(f"does not load: {type(problem).__name__}: {problem}") from problem
    inputs = opened.function.inputs
    taken = by_name_or_place([value.name for value in model.graph.input if value.name in feeds], list(inputs))
    given = {}
    for name, own in taken.items():
        variable = inputs[own]
        array = np.asarray(feeds[name])
        # A scalar is a vector of one in some packages; the declared type is what the package takes.
        shape = tuple(variable.shape)
        given[own] = array.reshape(1) if array.ndim == 0 and len(shape) == 1 else array
    made = Interpreter(opened.function, package.name).run(given)
    names = [value.name for value in model.graph.output]
    return {name: made[own] for name, own in by_name_or_place(names, list(made)).items()}


def by_name_or_place(names: list[str], own: list[str]) -> dict[str, str]:
    """The package's name for each name."""
    if set(names) <= set(own):
        return {name: name for name in names}
    return dict(zip(names, own, strict=False))


def judge(module: Any, case: Any, package: Path, model: onnx.ModelProto, feeds: Any, expected: Any) -> tuple[str, str]:
    """The result of a package that was made, and why."""
    from deploykit.errors import UnavailableError, VendorError

    try:
        made = evaluated(package, model, feeds)
    except NotLoadedError as problem:
        return "crashed", str(problem)
    except UnavailableError as problem:
        return "unchecked", problem.message
    except VendorError as problem:
        return "wrong", problem.message
    except Exception as problem:  # numpy's and torch's, where an operator is asked for something that they do not do
        return "unchecked", f"the interpreter fails: {type(problem).__name__}: {problem}"
    missing = [name for name in expected if name not in made]
    if missing:
        return "wrong", f"output {missing[0]!r} is missing"
    for name, wanted in expected.items():
        # A scalar is a vector of one where the interface has no scalars.
        if np.ndim(wanted) == 0 and made[name].shape == (1,):
            made[name] = made[name].reshape(())
    result, why = module.judged(made, expected, case)
    known = next((reason for end, reason in OPEN.items() if case.name.endswith(end)), "")
    return ("unchecked", known) if result == "wrong" and known else (result, why)


def sweep(rival: str, only: str | None = None) -> list[Outcome]:
    """Outcomes of all cases for one of them."""
    module = cases_module()
    found, listed = module.load()
    child = Child()
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for number, row in enumerate(listed):
            if only is not None and row["case"] != only:
                continue
            case = found[row["case"]]
            model, feeds, expected = module.prepare(case, row["as_initializers"])
            path, package = Path(folder) / "case.onnx", Path(folder) / f"case{number}.mlpackage"
            onnx.save(model, path)
            answer = child.call({"rival": rival, "model": str(path), "package": str(package)})
            result, why = answer["result"], answer["why"]
            if result == "made":
                result, why = judge(module, case, package, model, feeds, expected)
            subprocess.run(["rm", "-rf", str(package)], check=True)
            outcomes.append(Outcome(row["case"], row["op"], result, why[:KEPT]))
            if number % 50 == 0:
                print(f"{rival} {number}/{len(listed)}", file=sys.stderr)
    child.close()
    return outcomes


def summary(rival: str, outcomes: list[Outcome]) -> dict[str, Any]:
    """What is kept: totals, {operator: [right, cases]}, and every wrong and crashed case."""
    totals = collections.Counter(outcome.result for outcome in outcomes)
    by_op: dict[str, list[int]] = {}
    for outcome in outcomes:
        row = by_op.setdefault(outcome.op, [0, 0])
        row[0] += outcome.result == "right"
        row[1] += 1
    return {
        "version": RIVALS[rival],
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "onnx": onnx.__version__,
        "cases": len(outcomes),
        **{name: totals[name] for name in RESULTS},
        "by_operator": dict(sorted(by_op.items())),
        "wrong_cases": {outcome.case: outcome.why for outcome in outcomes if outcome.result == "wrong"},
        "crashed_cases": {outcome.case: outcome.why for outcome in outcomes if outcome.result == "crashed"},
    }


def main() -> None:
    """Runs what is asked for and prints the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rivals", nargs="*", default=list(RIVALS), metavar="RIVAL")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--case")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    kept = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    for rival in arguments.rivals:
        outcomes = sweep(rival, arguments.case)
        kept[rival] = summary(rival, outcomes)
        print(rival, {name: kept[rival][name] for name in RESULTS})
        for outcome in outcomes:
            if outcome.result in ("wrong", "crashed", "unchecked") or arguments.case:
                print(f"  {outcome.result}: {outcome.case}: {outcome.why}")
        if arguments.write and arguments.case is None:
            RESULT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
